"""Tasks that read files: another content under the same name is another task, and another hash of the data."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from lenmem import Experiment, Training, load, tasks
from lenmem.data import cifar10, flare, listops, squad
from lenmem.models import make as make_model
from lenmem.runs.measuring import holds_same
from lenmem.tasks.rows import FileTask
from lenmem.tasks.scan import grammar
from lenmem.training import train

RELEASE = [*(f"train-{size}" for size in ("easy", "medium", "hard")), "interpolate"]
STRINGS = [os.path.join(folder, name) for folder in flare.SPLITS.values() for name in ("main.tok", "labels.txt")]
FILES = {
    "pairs": ({"path": "d/a.tsv"}, ["a.tsv"]),
    "babi": (
        {"directory": "d", "tasks": (1, 3)},
        [f"qa{n}_{s}.txt" for n in (1, 3) for s in ("train", "valid", "test")],
    ),
    "flare": ({"directory": "d"}, STRINGS),
    "translation": ({"directory": "d", "parts": ("a", "b")}, ["a.en", "a.de", "b.en.gz", "b.de.gz"]),
    "squad": ({"directory": "d", "vocabulary": "d/v"}, [*squad.FILES, "v/vocab.txt"]),
    "scan": ({"origin": "d/tasks.txt"}, ["tasks.txt"]),
    "add_or_sub": (
        {"origin": "d"},
        [f"{x}/arithmetic__add_or_sub.txt" for x in RELEASE] + ["extrapolate/arithmetic__add_or_sub_big.txt"],
    ),
    "place_value": (
        {"origin": "d"},
        [f"{x}/numbers__place_value.txt" for x in RELEASE] + ["extrapolate/numbers__place_value_big.txt"],
    ),
    "lra_listops": ({"origin": "d"}, [*listops.FILES.values()]),
    "lra_text": (
        {"origin": "d"},
        [f"{s}/{c}/{n}.txt" for s in ("train", "test") for c in ("neg", "pos") for n in "01"],
    ),
    "lra_image": ({"origin": "d"}, [*cifar10.FILES["train"], *cifar10.FILES["test"]]),
}
"""task -> its fields, and the files that it reads below the directory `d`."""


def written(names, folder="d"):
    for number, name in enumerate(names):
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(f"contents {number}")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_tasks_that_read_files_are_here():
    kinds = {name: type(tasks.make(name)) for name in tasks.names()}
    assert {name for name, kind in kinds.items() if issubclass(kind, FileTask)} == set(FILES)
    for kind in kinds.values():
        assert issubclass(kind, FileTask) == bool(
            {"path", "directory", "origin"} & {f.name for f in dataclasses.fields(kind)}
        )


@pytest.mark.parametrize("name", FILES)
def test_every_file_counts(name, here):
    fields, names = FILES[name]
    assert tasks.make(name).data_hash is None and hash(tasks.make(name)) == hash(tasks.make(name))
    missing = tasks.make(name, **fields)
    assert missing.data_hash is None, "until the files are there"
    written(names)
    task = tasks.make(name, **fields)
    assert isinstance(task, FileTask)
    assert {os.path.normpath(path) for path in task.files()} == {os.path.normpath(f"d/{one}") for one in names}
    assert task != missing and task == tasks.make(name, **fields) and hash(task) == hash(tasks.make(name, **fields))
    assert task == dataclasses.replace(task) and len({task, tasks.make(name, **fields)}) == 1
    hashes = {task.data_hash}
    for one in names:
        Path("d", one).write_text("others")
        assert tasks.make(name, **fields) != task
        hashes.add(tasks.make(name, **fields).data_hash)
    assert len(hashes) == len(names) + 1
    now, first = tasks.make(name, **fields), here / "d" / names[0]
    os.utime(first, ns=(1, 1))
    assert tasks.make(name, **fields) != now and tasks.make(name, **fields).data_hash == now.data_hash
    (here / "other").mkdir()
    os.chdir(here / "other")
    written(names)
    assert tasks.make(name, **fields) != now, "the same relative path in another directory"


def test_the_hash_of_one_file_is_that_of_its_contents(here):
    """Runs of earlier versions have stored it."""
    (here / "a.tsv").write_text("a b\tb a\n")
    assert tasks.make("pairs", path="a.tsv").data_hash == hashlib.sha256(b"a b\tb a\n").hexdigest()


def test_tasks_differ_by_their_class_and_fields():
    one = tasks.make("add_or_sub")
    assert one == tasks.make("add_or_sub") != tasks.make("add_or_sub", data_seed=1) and one != tasks.make("place_value")
    assert one != "add_or_sub"


def babi(folder, place):
    Path(folder).mkdir(parents=True)
    story = "".join(f"{n} Ann went to the {'hall' if n % 2 else place}.\n" for n in range(1, 5))
    lines = [f"1 Ann went to the {place}.\n2 Where is Ann?\t{place}\t1\n"] * 8 + [
        f"{story}5 Where is Ann?\t{place}\t4\n"
    ] * 2
    for split in ("train", "test"):
        Path(folder, f"qa1_{split}.txt").write_text("".join(lines))


def test_words_are_those_of_the_directory_and_a_run_is_not_used_with_other_words(here, monkeypatch):
    """Without this the ids of words would shift silently: `spec` is the same."""
    babi("one/en", "shed")
    babi("two/en", "attic")

    def experiment():
        task = tasks.make("babi", directory="en", tasks=(1,))
        return Experiment(task, make_model("elman", hidden_size=4), Training(steps=1, batch_size=2))

    monkeypatch.chdir(here / "one")
    first = experiment()
    train(first, directory=here / "run")
    assert load(here / "run").manifest["data"] == first.task.data_hash and holds_same(experiment(), here / "run")
    assert "shed" in first.task.input_names
    monkeypatch.chdir(here / "two")
    assert experiment().task.spec == first.task.spec and experiment().task != first.task
    assert "attic" in experiment().task.input_names
    assert not holds_same(experiment(), here / "run")
    with pytest.raises(ValueError, match="the data file of .*run has changed since its training"):
        load(here / "run")
    with pytest.raises(ValueError, match="cannot be resumed .* its data file has changed"):
        train(experiment(), directory=here / "run", resume=True)


def test_a_run_without_a_stored_hash_is_loaded(here, monkeypatch):
    babi("en", "shed")
    task = tasks.make("babi", directory=str(here / "en"), tasks=(1,))
    experiment = Experiment(task, make_model("elman", hidden_size=4), Training(steps=1, batch_size=2))
    with monkeypatch.context() as earlier:
        earlier.setattr(FileTask, "data_hash", None)
        train(experiment, directory=here / "run")
    assert "data" not in load(here / "run").manifest
    (here / "en" / "qa1_train.txt").write_bytes((here / "en" / "qa1_test.txt").read_bytes() * 2)
    assert load(here / "run").experiment.task != task and holds_same(load(here / "run").experiment, here / "run")


def test_contents_are_read_again(here):
    """FLaRe's strings and SCAN's pairs, which are cached by their path."""
    for alphabet in ("ab", "cd"):
        for name in STRINGS:
            text = (
                "".join(f"{alphabet[0]} {alphabet[1]}\n" for _ in range(4)) if name.endswith("tok") else "1\n0\n1\n0\n"
            )
            Path("d", name).parent.mkdir(parents=True, exist_ok=True)
            Path("d", name).write_text(text)
        os.utime(Path("d", STRINGS[0]), ns=(ord(alphabet[0]), 1))
        assert tasks.make("flare", directory="d").input_names == tuple(alphabet)
    lines = [f"IN: {' '.join(words)} OUT: {' '.join(actions)}\n" for words, actions in grammar()]
    batches = []
    for number, order in enumerate((lines, lines[::-1])):
        Path("tasks.txt").write_text("".join(order))
        os.utime("tasks.txt", ns=(number, number))
        batches.append(tasks.make("scan", origin="tasks.txt").source("validation", 64).batch(jax.random.key(0), 0))
    assert not np.array_equal(batches[0].inputs, batches[1].inputs), "others are held out"
