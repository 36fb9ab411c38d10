"""Trained networks by name: the list, names, files that are elsewhere, cards, and the way to the Hub and back."""

from __future__ import annotations

import functools
import http.server
import inspect
import json
import re
import shutil
import threading
from pathlib import Path

import chex
import numpy as np
import pytest
import yaml

import lenmem
from lenmem import cli, runs
from lenmem.tasks.lantm import Copy
from lenmem.training import Training
from lenmem.zoo import cards, hub, shelf

ROOT = Path(__file__).parents[1]
SMALL = "panm/dyck_2-stack_rnn"
"""The smallest network of the zoo."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two seeds."""
    directory = tmp_path_factory.mktemp("trained") / "tiny"
    experiment = lenmem.Experiment(
        Copy(vocabulary=4, train_lengths=(1, 3)),
        lenmem.models.GRU(hidden_size=6, embedding_size=3),
        Training(steps=2, seeds=2, batch_size=4, log_every=1),
        lenmem.Evaluation(lengths=(2, 5), samples=4),
    )
    runs.train_and_measure(experiment, directory)
    return directory


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory and cache, and no setting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LENMEM_ZOO", raising=False)
    return tmp_path


@pytest.fixture
def wheel(here, monkeypatch):
    """The zoo as in an installed package: all records, and the parameters of one network."""
    package = here / "package"
    (package / SMALL).parent.mkdir(parents=True)
    known = shelf.entries()
    some = [known[SMALL], known["panm/dyck_3-stack_rnn"]]
    (package / shelf.INDEX).write_text(json.dumps(shelf.index(some)))
    shutil.copyfile(known[SMALL].file(), package / f"{SMALL}.safetensors")
    monkeypatch.setattr(shelf, "BUILT_IN", package)
    return package


def run(capsys, *arguments: str) -> str:
    """What a successful call prints."""
    cli.main(list(arguments))
    return capsys.readouterr().out


def fails(capsys, *arguments: str) -> str:
    """The error of a call, which is one line."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# The list -------------------------------------------------------------------------------------------------------------


def test_every_network_of_the_clone_is_listed_with_what_its_record_says():
    """Against the files themselves, and a twin in NumPy."""
    known = shelf.entries()
    files = {
        path.relative_to(ROOT / "results").with_suffix("").as_posix(): path
        for path in ROOT.rglob("results/**/*.safetensors")
        if path.with_suffix(".json").exists()
    }
    files = {name.removesuffix("/model"): path for name, path in files.items()}  # a folder is named by itself
    assert len(files) > 80 and set(files) == set(known)
    for name, entry in known.items():
        record = json.loads(files[name].with_suffix(".json").read_text())
        lengths = np.concatenate([curve["lengths"] for curve in record["curves"]])
        exact = [np.array(curve["values"]["exact_match"], np.float64) for curve in record["curves"]]
        mastered = np.nan_to_num(np.concatenate(exact, axis=1)) >= 0.95
        counted = lengths >= record["curves"][0]["train_lengths"][0]
        failed = [np.min(lengths[counted & ~row], initial=10**9) for row in mastered]
        assert entry.reaches == [int(np.max(lengths[counted & (lengths < first)], initial=0)) for first in failed]
        assert entry.reach == entry.reaches[entry.best_seed] == max(entry.reaches)
        assert entry.size == files[name].stat().st_size
        assert list(entry.train_lengths) == record["curves"][0]["train_lengths"]


def test_a_short_name_means_the_solved_network_with_the_longest_reach():
    known = shelf.entries()
    short = shelf.short_names(known.values())
    assert short["lantm/reverse"].name == "lantm/reverse-lantm-L"
    for name, best in short.items():
        others = [entry for entry in known.values() if entry.short == name]
        assert best.reach == max(entry.reach for entry in others) > best.train_lengths[1]
    unsolved = {entry.short for entry in known.values()} - set(short)
    assert "lantm/odd_first" in unsolved
    assert all(not entry.solved for entry in known.values() if entry.short in unsolved)
    sent = shelf.travelling(known.values())
    small = {entry.name for entry in short.values() if entry.size < shelf.SMALL}
    assert {entry.name for entry in sent} == small | set(shelf.GALLERY)
    assert sum(entry.size for entry in sent) < 15e6, "the wheel is to stay small"


def test_the_list_is_printed(capsys):
    printed = run(capsys, "zoo", "panm/reverse")
    assert re.search(r"^panm/reverse-beyond +\* +1-9 ", printed, re.MULTILINE)
    assert "lantm" not in printed.split("networks.")[0]
    narrow = run(capsys, "zoo", "lantm/interleaved")  # names of 52 letters, in 80 columns
    assert re.search(r"95% up to +kB", narrow) and not re.search("…", narrow)
    assert "Did you mean" in fails(capsys, "zoo", "panm/revers-beyond")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zoo:lantm/revers", "the zoo has no 'lantm/revers'. Did you mean 'lantm/reverse'"),
        (
            "zoo:lantm/odd_first",
            "no network of the zoo solves lantm/odd_first, so it has no short name; full names are lantm/odd",
        ),
        ("zoo:", "the zoo has no ''"),
        ("zoo:../../etc/passwd", "the zoo has no '../../etc/passwd'"),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "predict", "plot", "export"])
def test_an_unknown_name_is_one_line(capsys, here, verb, name, message):
    assert message in fails(capsys, verb, name)
    assert not list(here.iterdir())


def test_every_verb_takes_a_name(capsys, here):
    loaded = lenmem.load("zoo:panm/dyck_2")
    entry = shelf.find(SMALL)
    chex.assert_trees_all_equal(loaded.params, lenmem.load(entry.file()).params)
    assert (loaded.preferred, loaded.directory) == (entry.best_seed, Path("runs/zoo") / SMALL)
    chex.assert_trees_all_equal(loaded.seed_params(), loaded.seed_params(entry.best_seed))
    assert "10 of 10 right" in run(capsys, "predict", "zoo:panm/dyck_2", "--length", "10")
    printed = run(capsys, "evaluate", f"zoo:{SMALL}", "--lengths", "4", "--samples", "2")
    assert "100" in printed
    run(capsys, "export", "zoo:panm/dyck_2", "--output", "away.safetensors")
    chex.assert_trees_all_equal(lenmem.load("away.safetensors").params, loaded.params)
    assert "runs/zoo/panm/dyck_2-stack_rnn" in run(capsys, "plot", "zoo:panm/dyck_2", "--trace").replace("\n", "")
    assert "has nothing at step 3" in fails(capsys, "plot", "zoo:panm/dyck_2", "--step", "3")
    printed = run(capsys, "compare", "zoo:panm/dyck_2", "away.safetensors", "--lengths", "2", "4", "--samples", "2")
    assert "panm/dyck_2" in printed and (here / "runs/compare/comparison/curve.png").exists()


# Files that are elsewhere ---------------------------------------------------------------------------------------------


def test_an_installed_package_says_where_other_networks_come_from(wheel, capsys, monkeypatch):
    assert "elsewhere: not on this machine" in run(capsys, "zoo", "dyck_3")
    assert lenmem.load(f"zoo:{SMALL}").step > 0
    far = "zoo:panm/dyck_3"
    assert "is not on this machine; set LENMEM_ZOO to the results/ of a clone" in fails(capsys, "predict", far)
    monkeypatch.setenv("LENMEM_ZOO", str(ROOT / "results"))
    assert lenmem.load(far).experiment.task.train_lengths == (2, 20)
    monkeypatch.setenv("LENMEM_ZOO", "nowhere")
    assert "LENMEM_ZOO is nowhere; it must be a directory" in fails(capsys, "zoo")


def test_an_address_is_read_once_and_checked(wheel, capsys, monkeypatch, tmp_path):
    served = tmp_path / "served"
    file = served / "panm/dyck_3-stack_rnn.safetensors"
    file.parent.mkdir(parents=True)
    right = (ROOT / "results/panm/dyck_3-stack_rnn.safetensors").read_bytes()
    file.write_bytes(right[:-1] + b"x")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=served)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("LENMEM_ZOO", f"http://127.0.0.1:{server.server_port}")
        assert "is not the file that the record describes" in fails(capsys, "predict", "zoo:panm/dyck_3")
        file.write_bytes(right)
        assert shelf.find("panm/dyck_3").file().read_bytes() == right
        file.unlink()
        assert shelf.find("panm/dyck_3").file().read_bytes() == right, "the cache"
        shutil.rmtree(tmp_path / "cache")
        assert "cannot be fetched: HTTP Error 404" in fails(capsys, "predict", "zoo:panm/dyck_3")
        server.shutdown()


# Cards, and the Hub ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_joins_the_zoo_with_a_card(here, capsys, trained):
    printed = run(capsys, "zoo", "add", str(trained), "--notes", "A test.", "--command", "lenmem train tiny.py")
    assert "its name is zoo:own/tiny" in printed.replace("\n", " ")
    folder = here / "zoo/own/tiny"
    assert {path.name for path in folder.iterdir()} == set(cards.FILES)
    chex.assert_trees_all_equal(lenmem.load("zoo:own/tiny").params, lenmem.load(trained).params)
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["license"] == "apache-2.0" and about["library_name"] == "lenmem"
    (result,) = about["model-index"][0]["results"]
    assert result["dataset"]["type"] == "copy" and 0 <= result["metrics"][0]["value"] <= 1
    for said in ("A test.", "`lenmem train tiny.py`", "lengths 3 6", "2 seeds", "Commit of lenmem", "length 1 to 3"):
        assert said in body
    assert "the zoo already has own/tiny" in fails(capsys, "zoo", "add", str(trained))
    assert "the name is '../x'" in fails(capsys, "zoo", "add", str(trained), "--name", "../x")
    assert "Did you mean 'mit'" in fails(capsys, "zoo", "add", str(trained), "--name", "own/b", "--licence", "mti")
    assert "usage: lenmem zoo add RUN" in fails(capsys, "zoo", "add")
    assert [path.name for path in (here / "zoo/own").iterdir()] == ["tiny"]


def test_a_network_that_was_changed_after_training_is_shared_as_it_was_measured(here, capsys):
    name = "chomsky/reverse_string-tape_rnn-small"
    changed = shelf.find(name).record["after_training"]
    assert changed == {"slots": 1024}
    run(capsys, "export", f"zoo:{name}", "--output", "away.safetensors")
    run(capsys, "zoo", "push", name, "./shared")
    for file in ("away.safetensors", "shared/model.safetensors"):
        assert lenmem.load(file).experiment.model.slots == 1024
    assert json.loads((here / "shared/model.json").read_text())["experiment"]["model"]["slots"] == 1024


def test_every_network_has_a_card():
    for entry in shelf.entries().values():
        head = yaml.safe_load(cards.card(entry).split("---\n", 2)[1])
        assert head["model-index"][0]["name"] == entry.name


def test_push_and_pull_by_a_directory(here, capsys):
    run(capsys, "zoo", "push", "panm/dyck_2", "./shared")
    assert "is not empty; nothing was written" in fails(capsys, "zoo", "push", "panm/dyck_3", "./shared")
    assert "zoo:own/shared" in run(capsys, "zoo", "pull", f"file://{here}/shared")
    chex.assert_trees_all_equal(lenmem.load("zoo:own/shared").params, lenmem.load("zoo:panm/dyck_2").params)
    assert shelf.find("own/shared").reaches == shelf.find("panm/dyck_2").reaches
    (here / "shared/README.md").write_text("My own card.\n")
    hub.pull("./shared", "own/second")
    assert run(capsys, "export", "zoo:own/second") == "wrote second.safetensors\n"
    run(capsys, "zoo", "push", "own/second", "./third")
    assert (here / "third/README.md").read_text() == "My own card.\n", "a card that was edited is kept"
    assert "owner/name on the Hub" in fails(capsys, "zoo", "push", "panm/dyck_2", "shared")


@pytest.mark.parametrize("damage", ["model.safetensors", "model.json", "README.md"])
def test_what_is_damaged_is_not_kept(here, capsys, damage):
    hub.push("panm/dyck_2", "./shared")
    (here / "shared" / damage).unlink()
    assert f"it has no {damage}" in fails(capsys, "zoo", "pull", "./shared")
    if damage != "README.md":
        (here / "shared" / damage).write_text("[]")
        told = {
            "model.safetensors": "is not a readable safetensors file",
            "model.json": "is not the record of a network",
        }
        assert told[damage] in fails(capsys, "zoo", "pull", "./shared")
    assert not (here / "zoo").exists()


def test_the_hub_is_called_as_it_wants_to_be(here, capsys, monkeypatch):
    """The real functions' signatures, with a directory in the place of their server."""
    real = pytest.importorskip("huggingface_hub")
    store = here / "store"
    called = []

    def stand_in(name, act):
        def call(*arguments, **options):
            inspect.signature(getattr(real, name)).bind(*arguments, **options)
            called.append(name)
            return act(*arguments, **options)

        monkeypatch.setattr(real, name, call, raising=False)

    def download(repo_id, allow_patterns, local_dir):
        if not (store / repo_id).is_dir():
            raise RuntimeError("404 Client Error.\nRepository not found.")
        shutil.copytree(store / repo_id, local_dir, dirs_exist_ok=True)

    stand_in("create_repo", lambda name, exist_ok: (store / name).mkdir(parents=True, exist_ok=exist_ok))
    stand_in(
        "upload_folder",
        lambda repo_id, folder_path, commit_message: shutil.copytree(folder_path, store / repo_id, dirs_exist_ok=True),
    )
    stand_in("snapshot_download", download)
    assert "https://huggingface.co/me/dyck" in run(capsys, "zoo", "push", "panm/dyck_2", "me/dyck")
    card = real.ModelCard.load(store / "me/dyck/README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.eval_results[0].metric_type == "exact_match"
    run(capsys, "zoo", "pull", "me/dyck")
    assert called == ["create_repo", "upload_folder", "snapshot_download"]
    chex.assert_trees_all_equal(lenmem.load("zoo:me/dyck").params, lenmem.load("zoo:panm/dyck_2").params)
    assert "me/nothing cannot be fetched from the Hub: 404" in fails(capsys, "zoo", "pull", "me/nothing")
