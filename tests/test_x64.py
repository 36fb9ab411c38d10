"""Programs of users who switch JAX to 64 bits: networks and runs stay in 32 bits unless asked otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lenmem
from lenmem import export_run, models, tasks, train
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.types import check_batch
from tests.marks import often
from tests.training.tiny import experiment

SHORT = Copy(vocabulary=4, train_lengths=(1, 3))


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def widths(tree) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)} & {"float64", "int64"}


@pytest.mark.parametrize(
    "name", ["copy", "dnc_logic", "modular_arithmetic_brackets", "solve_equation", "tracked_arithmetic_brackets"]
)
def test_tasks_draw_examples(name):
    """Random numbers of 64 bits are others, so the examples are, too."""
    task = tasks.make(name)
    short, long = task.train_lengths
    batch = draw(task, jax.random.key(0), jnp.array([short, long]), long)
    check_batch(task.spec, batch.inputs, batch.input_mask, batch.target_mask, batch.targets)
    assert np.all(batch.input_mask.sum(axis=1) > 0)


@pytest.mark.parametrize(
    "name",
    often(["act_geometric", "dnc", "lantm", "lstm", "ndr", "panm", "two_way_indexed"], always=("lantm", "lstm", "ndr")),
)
def test_networks_compute_in_32_bits_or_in_64_if_asked(name):
    """With the gradient."""
    batch = draw(SHORT, jax.random.key(0), jnp.array([3, 2]), 3)
    asked = batch.inputs, batch.input_mask, batch.target_mask

    def trained(model) -> tuple[jax.Array, jax.Array]:
        params = jax.jit(model.init)({"params": jax.random.key(0), "dropout": jax.random.key(1)}, *asked)["params"]
        assert not widths(params)
        return jax.jit(jax.value_and_grad(lambda p: SHORT.loss(model.apply({"params": p}, *asked), batch)))(params)

    model = models.make(name, SHORT.spec)
    loss, gradient = trained(model)
    assert not widths((loss, gradient))
    wide, _ = trained(model.clone(dtype=jnp.float64))
    np.testing.assert_allclose(wide, loss, rtol=1e-5)


@pytest.mark.thorough
def test_a_run_is_restored_and_exported(tmp_path):
    """With the state of a selection."""
    options = {"selection": "validation", "validate_every": 2, "validation_batches": 1, "selection_window": 2}
    run = train(experiment(steps=4, **options), directory=tmp_path / "run")
    assert not widths(run.params)
    assert train(run.experiment, directory=tmp_path / "run", resume=True).step == 4
    export_run(lenmem.load(tmp_path / "run"), tmp_path / "run.safetensors", with_optimizer=True)
    lenmem.import_run(tmp_path / "run.safetensors", tmp_path / "copy")
