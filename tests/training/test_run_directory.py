"""The directory of a run: what its checkpoints say of where they were made, and what loading leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

import lenmem
from lenmem.training import CheckpointError, checkpoint, train
from lenmem.training.environment import describe_environment
from lenmem.training.run_directory import CHECKPOINTS
from tests.training.tiny import experiment


def test_a_checkpoint_says_what_it_was_made_with(tmp_path):
    train(experiment(steps=2), directory=tmp_path / "run")
    environment, now = checkpoint.read_manifest(tmp_path / "run" / CHECKPOINTS)["environment"], describe_environment()
    json.dumps(now)
    assert environment["versions"]["jax"] == jax.__version__
    assert environment["devices"] == jax.device_count()
    assert environment["date"].endswith("+00:00")
    assert environment["commit"] is None or len(environment["commit"]) == 40
    assert environment["python"] == now["python"]


def test_loading_reads_the_parameters_alone(tmp_path):
    """A fault in the state of the optimiser is no concern of who wants to predict, but of who wants to go on."""
    result = train(experiment(steps=2), directory=tmp_path / "run")
    damaged = _damage(tmp_path / "run", "members/optimizer_state/0/mu")
    chex.assert_trees_all_equal(lenmem.load(tmp_path / "run").params, result.params)
    with pytest.raises(CheckpointError, match=f"damaged: .*leaf {damaged}"):
        train(experiment(steps=2), directory=tmp_path / "run", resume=True)
    damaged = _damage(tmp_path / "run", "members/params")
    with pytest.raises(CheckpointError, match=f"damaged: .*{damaged}"):
        lenmem.load(tmp_path / "run")


def _damage(run: Path, below: str) -> str:
    """Change what the manifest says of the first leaf whose name begins so, and see to it that it has its hash."""
    folder = run / CHECKPOINTS / "2"
    body = json.loads((folder / "manifest.json").read_bytes())
    name = next(name for name in body["leaves"] if name.startswith(below))
    body["leaves"][name]["sha256"] = "0" * 64
    data = json.dumps(body).encode()
    (folder / "manifest.json").write_bytes(data)
    (folder / "manifest.sha256").write_text(checkpoint._sha256(data))
    return name


def test_a_finished_run_that_is_resumed_is_left_as_it_is(tmp_path):
    result = train(experiment(steps=2), directory=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run" / CHECKPOINTS).rglob("*") if path.is_file()}
    again = train(experiment(steps=2), directory=tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in before} == before
    chex.assert_trees_all_equal(again.params, result.params)
    np.testing.assert_array_equal(again.alive, result.alive)
