"""`lenmem data`: what it says, and how it checks directories that are whole, damaged or not there."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from lenmem import catalogue, cli
from lenmem.catalogue import checks
from lenmem.data import babi, cifar10, flare, imdb, mathematics, parallel_text, squad, wordpiece
from lenmem.tasks.scan import grammar
from tests.models import test_bert


def babi_files(folder: Path) -> Path:
    folder = folder / "en"
    folder.mkdir()
    for task in range(1, 21):
        for split, count in (("train", 3), ("test", 2)):
            story = "1 Ann went up.\n2 Bob went down.\n3 Where is Ann? \tup\t1\n"
            (folder / f"qa{task}_a-name_{split}.txt").write_text(story * count)
    return folder


def multi30k_files(folder: Path) -> Path:
    for part in parallel_text.PARTS:
        (folder / f"{part}.en").write_text("A man sleeps.\nA dog runs.\n")
        (folder / f"{part}.de.gz").write_bytes(gzip.compress("Ein Mann schläft.\nEin Hund läuft.\n".encode()))
    return folder


def scan_files(folder: Path) -> Path:
    lines = [f"IN: {' '.join(words)} OUT: {' '.join(actions)}\n" for words, actions in grammar()]
    (folder / "tasks.txt").write_text("".join(lines))
    return folder


def mathematics_files(folder: Path) -> Path:
    for name in (*(f"train-{d}" for d in mathematics.DIFFICULTIES), "interpolate", "extrapolate"):
        (folder / name).mkdir()
        for module in mathematics.MODULES.values():
            suffix = "_big" if name == "extrapolate" else ""
            (folder / name / f"{module.name}{suffix}.txt").write_text("Sum 1 and 2.\n3\n")
    return folder


def imdb_files(folder: Path) -> Path:
    for split in ("train", "test"):
        for kind in imdb.CLASSES:
            (folder / split / kind).mkdir(parents=True)
            (folder / split / kind / "0_1.txt").write_text("Dull.")
    return folder


def cifar10_files(folder: Path) -> Path:
    for name in sum(cifar10.FILES.values(), ()):
        records = np.zeros((10, 3073), np.uint8)
        records[:, 0] = np.arange(10)
        records.tofile(folder / name)
    return folder


def flare_files(folder: Path) -> Path:
    for split in flare.SPLITS.values():
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / "main.tok").write_text("0 1\n1 1\n")
        (folder / split / "labels.txt").write_text("0\n1\n")
    return folder


def squad_files(folder: Path) -> Path:
    for name, contents in squad.example().items():
        (folder / name).write_text(json.dumps(contents))
    return folder


def bert_files(folder: Path) -> Path:
    pieces = wordpiece.example()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return test_bert.write(folder, test_bert.CONFIG | {"vocab_size": len(pieces)})


FILES = {
    "babi": babi_files,
    "multi30k": multi30k_files,
    "squad": squad_files,
    "bert": bert_files,
    "scan": scan_files,
    "mathematics": mathematics_files,
    "imdb": imdb_files,
    "cifar10": cifar10_files,
    "flare": flare_files,
}


@pytest.fixture
def published(monkeypatch):
    """As if the small files were what is published."""
    monkeypatch.setitem(babi.DIRECTORIES, "en", {"train": 3, "test": 2})
    for part in parallel_text.PARTS:
        monkeypatch.setitem(parallel_text.PARTS, part, 2)
        texts = {"en": "A man sleeps.\nA dog runs.\n", "de": "Ein Mann schläft.\nEin Hund läuft.\n"}
        for language, text in texts.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            monkeypatch.setitem(checks.MULTI30K, f"{part}.{language}", digest)
    for (name, contents), count in zip(squad.example().items(), (200, 40), strict=True):
        monkeypatch.setitem(squad.FILES, name, count)
        monkeypatch.setitem(checks.SQUAD, name, hashlib.sha256(json.dumps(contents).encode()).hexdigest())
    monkeypatch.setattr(checks, "REVIEWS", 1)
    monkeypatch.setattr(checks, "PICTURE_FILE", 10 * 3073)


def test_every_data_set_has_files_here():
    assert set(FILES) == set(catalogue.names())


@pytest.mark.parametrize("name", FILES)
def test_a_whole_directory_can_be_used(name, tmp_path, published, capsys):
    folder = FILES[name](tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    cli.main(["data", name, "--directory", str(folder)])
    printed = capsys.readouterr().out
    assert f"{folder} can be used: lenmem train " in printed
    assert len(printed.splitlines()) >= 2 and all(len(line) < 400 for line in printed.splitlines())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


WRONG = {
    "babi": ("qa7_a-name_test.txt", r"has no file qa7_\*_test\.txt", r"line 1: got 'nothing'"),
    "multi30k": ("val.en", r"has neither val\.en nor", r"val\.en has 1 lines; the published one has 2"),
    "squad": ("dev-v1.1.json", r"dev-v1\.1\.json cannot be read", r"dev-v1\.1\.json, line 1, column 1: it is not JSON"),
    "bert": ("model.safetensors", r"model\.safetensors cannot be read", r"model\.safetensors is not a complete"),
    "scan": ("tasks.txt", r"tasks\.txt cannot be read", r"tasks\.txt, line 1: got 'nothing'"),
    "mathematics": ("interpolate/numbers__place_value.txt", "cannot be read", r"line 1: the question 'nothing' has"),
    "imdb": ("test/neg/0_1.txt", r"neg has no \*\.txt", None),
    "cifar10": ("data_batch_3.bin", r"data_batch_3\.bin cannot be read", r"data_batch_3\.bin has 8 bytes"),
    "flare": ("datasets/test/labels.txt", r"labels\.txt cannot be read", r"line 1: got 'nothing'; a label is 0 or 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_or_wrong_file_is_one_line(name, tmp_path, published, capsys):
    path, missing, wrong = WRONG[name]
    folder = FILES[name](tmp_path)
    file = folder / path
    if wrong:
        file.write_text("nothing\n")
        with pytest.raises(ValueError, match=wrong) as error:
            catalogue.checked(name, folder)
        assert "\n" not in str(error.value) and file.name in str(error.value)
    file.unlink()
    with pytest.raises(ValueError, match=missing):
        catalogue.checked(name, folder)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", name, "--directory", str(folder)])
    assert stopped.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["babi", "multi30k", "squad", "imdb", "cifar10"])
def test_numbers_are_compared_with_those_published(name, tmp_path):
    """The small files are whole, but not the published ones."""
    with pytest.raises(ValueError, match=r"has [\d,]+ \D+; the published one has [\d,]+$"):
        catalogue.checked(name, FILES[name](tmp_path))


def test_the_options_for_other_sizes_are_said(tmp_path, capsys):
    """Those that the example with random weights needs."""
    cli.main(["data", "bert", "--directory", str(bert_files(tmp_path))])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--model.hidden-size 10 --model.layers 2 --model.heads 2 --model.feedforward-size 12" in printed
    assert "--model.max-positions 16 --task.vocabulary-size 181 --task.separator 102" in printed


def test_another_file_of_the_same_size_is_found(tmp_path, published):
    folder = multi30k_files(tmp_path)
    (folder / "val.en").write_text("A dog runs.\nA man sleeps.\n")
    with pytest.raises(ValueError, match=r"val\.en is not the published file: its SHA-256 does not begin with \w{12}$"):
        catalogue.checked("multi30k", folder)


@pytest.mark.parametrize("name", FILES)
def test_what_is_said_of_a_data_set(name, capsys):
    cli.main(["data", name])
    printed = capsys.readouterr().out
    assert all(f"\n{title} " in printed for title in ("published", "licence", "read by", "check"))
    assert f"lenmem data {name} --directory DIRECTORY" in printed


def test_all_data_sets_are_listed(capsys):
    cli.main(["data"])
    printed = capsys.readouterr().out
    assert all(f"\n{name}" in f"\n{printed}" for name in (*catalogue.names(), *catalogue.DRAWN))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["data", "babbi"], "there is no data set 'babbi'. Did you mean 'babi'? All of them: lenmem data"),
        (["data", "scan", "--directory", "nowhere"], "nowhere is not a directory; scan expects tasks.txt"),
        (["data", "--directory", "."], "say which data set is in the directory: babi, multi30k"),
    ],
)
def test_errors_are_one_message(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "task, model",
    [("babi", "lstm"), ("translation", "lstm"), ("flare", "lstm"), ("lra_text", "lstm"), ("squad", "lstm")],
)
def test_nothing_is_written_before_the_files_are_read(task, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    option = "--task.origin" if task == "lra_text" else "--task.directory"
    with pytest.raises(SystemExit):
        cli.main(["train", task, "--model", model, option, "nowhere", "--training.steps", "1"])
    assert "nowhere" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
