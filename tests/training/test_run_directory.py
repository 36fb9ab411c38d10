"""The directory of a run: what its checkpoints say of where they were made, and what loading leaves alone."""

from __future__ import annotations

import json
import runpy
import sys
import tarfile
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

import lenmem
from lenmem.training import CheckpointError, checkpoint, run_directory, train
from lenmem.training.environment import describe_environment
from lenmem.training.run_directory import CHECKPOINTS, abstract_state
from tests.training.tiny import Bag, experiment


def test_a_checkpoint_says_what_it_was_made_with(tmp_path):
    train(experiment(Bag(), steps=2), directory=tmp_path / "run")
    environment, now = checkpoint.read_manifest(tmp_path / "run" / CHECKPOINTS)["environment"], describe_environment()
    json.dumps(now)
    assert environment["versions"]["jax"] == jax.__version__
    assert environment["devices"] == jax.device_count()
    assert environment["date"].endswith("+00:00")
    assert environment["commit"] is None or len(environment["commit"]) == 40
    assert environment["python"] == now["python"]


def test_windows_is_told_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(ImportError, match="needs fcntl, which Windows does not have; use WSL"):
        runpy.run_path(run_directory.__file__)


def test_loading_reads_the_parameters_alone(tmp_path):
    """A fault in the state of the optimiser is no concern of who wants to predict, but of who wants to go on."""
    result = train(experiment(Bag(), steps=2), directory=tmp_path / "run")
    damaged = _damage(tmp_path / "run", "optimizer")
    chex.assert_trees_all_equal(lenmem.load(tmp_path / "run", modules=[Bag]).params, result.params)
    with pytest.raises(CheckpointError, match=f"damaged: {damaged} is changed"):
        train(experiment(Bag(), steps=2), directory=tmp_path / "run", resume=True)
    damaged = _damage(tmp_path / "run", "state")
    with pytest.raises(CheckpointError, match=f"damaged: {damaged} is changed"):
        lenmem.load(tmp_path / "run", modules=[Bag])


def test_what_is_no_run_and_what_is_no_text_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: 'utf-8' codec"):
        run_directory.read_metrics(tmp_path)
    with pytest.raises(ValueError, match=r"metrics.jsonl is not a run: it is a file"):
        run_directory.folder_of(tmp_path / "metrics.jsonl")


def _damage(run: Path, item: str) -> str:
    """Change a file of an item of the checkpoint of step 2."""
    folder = run / CHECKPOINTS / "2"
    path = next(path for path in sorted((folder / item).rglob("d/*")) if path.is_file())
    path.write_bytes(path.read_bytes()[::-1])
    return path.relative_to(folder).as_posix()


@pytest.fixture
def old(tmp_path) -> Path:
    """A run of 6 steps, stopped after 4, as it was saved before checkpoints were Orbax's own; and its export."""
    with tarfile.open(Path(__file__).parent / "run_of_format_1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.thorough
def test_a_run_of_the_format_before_is_loaded_and_resumed(old):
    run, file = lenmem.load(old / "run"), lenmem.load(old / "run.safetensors")
    assert run.step == file.step == 4
    chex.assert_trees_all_equal(run.params, file.params)
    assert lenmem.load(old / "run", step=2).step == 2
    lenmem.import_run(old / "run.safetensors", old / "imported")
    results = [train(run.experiment, directory=old / name, resume=True) for name in ("run", "imported")]
    assert [result.step for result in results] == [6, 6]
    chex.assert_trees_all_equal(results[0].params, results[1].params)
    steps = [entry["step"] for entry in results[0].history]
    assert steps == sorted(set(steps)) and steps[-1] == 6, "each entry once"
    saved = checkpoint.steps(old / "run" / CHECKPOINTS)
    assert saved == [4, 6] and all(checkpoint.is_intact(old / "run" / CHECKPOINTS, step) for step in saved)


def test_a_flipped_bit_of_the_format_before_is_found(old):
    folder = old / "run" / CHECKPOINTS / "4"
    like = abstract_state(lenmem.load(old / "run.safetensors").experiment)
    checkpoint.restore(folder.parent, like)
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(CheckpointError, match="damaged: .*; nothing was loaded; there is no other checkpoint"):
            checkpoint.restore(folder.parent, like)
        path.write_bytes(data)


def test_a_finished_run_that_is_resumed_is_left_as_it_is(tmp_path):
    result = train(experiment(Bag(), steps=2), directory=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run" / CHECKPOINTS).rglob("*") if path.is_file()}
    again = train(experiment(Bag(), steps=2), directory=tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in before} == before
    chex.assert_trees_all_equal(again.params, result.params)
    np.testing.assert_array_equal(again.alive, result.alive)
