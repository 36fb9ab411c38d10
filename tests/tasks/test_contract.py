"""What every task keeps: more capacity is more padding, and neither loss nor metrics depend on what padding holds."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import Task, draw
from lenmem.types import Batch
from tests.learning import briefly
from tests.papers.test_nam import FIXTURES, pictures
from tests.test_bad_input import MADE_AT_LENGTH, small

FIELDS: dict[str, dict[str, Any]] = {
    "lra_text": {"origin": str(FIXTURES / "aclImdb"), "max_length": 20},
    "lra_listops": {"max_length": 40},
    **{name: {"length_given": True} for name in ("add_or_sub", "place_value")},
}
"""What else makes a task small. Without its length, the answer to a question in words has as many slots as the capacity
allows."""
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in MADE_AT_LENGTH else pytest.mark.thorough)
    for name in tasks.names()
]
ROOM = 3
"""Capacity beyond the longest row."""


class Drawn(NamedTuple):
    """A task, and rows of it drawn twice from one key: at the capacity of the longest, and with more room."""

    task: Task
    tight: Batch
    wide: Batch


@functools.cache
def drawn(name: str) -> Drawn:
    """The small task and its rows. A task on files has its own example, or those that other tests read."""
    kind = type(tasks.make(name))
    with tempfile.TemporaryDirectory() as folder:
        if name == "lra_image":
            pictures(Path(folder))
        task = kind(**small(kind, {"origin": folder} if name == "lra_image" else FIELDS.get(name, {})))
        return Drawn(task, *both_of(task))


def both_of(task: Task) -> tuple[Batch, Batch]:
    """Rows of the shortest, of the longest and of another length of the training, as NumPy arrays."""
    low, high = task.train_lengths
    lengths = [n for n in task.curve_lengths if low <= n <= high] or [low, high]
    lengths = np.array([lengths[0], lengths[-1], lengths[len(lengths) // 2], lengths[0]])
    capacities = lengths.max(), lengths.max() + ROOM
    both = briefly(lambda key: [draw(task, key, jnp.asarray(lengths), int(capacity)) for capacity in capacities])
    with jax.numpy_dtype_promotion("strict"):  # other JAX projects may forbid implicit promotion
        return tuple(jax.tree.map(np.asarray, both(jax.random.key(5))))


def soiled(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Other padding: NaN, or ids that no token has."""
    values = values.copy()
    values[~mask] = np.nan if np.issubdtype(values.dtype, np.floating) else -99
    return values


@pytest.mark.parametrize("name", NAMES)
def test_masks_are_prefixes_and_what_is_scored_is_answered(name):
    for batch in drawn(name)[1:]:
        for mask in (batch.input_mask, batch.target_mask):
            assert mask.dtype == bool and np.all(mask[:, :-1] >= mask[:, 1:])
        assert not np.any(batch.score_mask & ~batch.target_mask)
        assert batch.inputs.shape[:2] == batch.input_mask.shape
        assert batch.targets.shape[:2] == batch.target_mask.shape == batch.score_mask.shape


@pytest.mark.parametrize("name", NAMES)
def test_more_capacity_is_more_padding(name):
    """One key draws the same rows at any capacity."""
    _, tight, wide = drawn(name)
    for mask, contents in (("input_mask", ("inputs",)), ("target_mask", ("targets", "score_mask"))):
        real, still_real = getattr(tight, mask), getattr(wide, mask)
        room = still_real.shape[1] - real.shape[1]
        np.testing.assert_array_equal(still_real, np.pad(real, [(0, 0), (0, room)]))
        for part in contents:
            np.testing.assert_array_equal(getattr(wide, part)[still_real], getattr(tight, part)[real])


@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_say_in_loss_gradient_and_metrics(name):
    task, _, batch = drawn(name)

    @briefly
    def judged(outputs: jax.Array, batch: Batch) -> Any:
        return *jax.value_and_grad(task.loss)(outputs, batch), task.metrics(outputs, batch)

    outputs = np.random.default_rng(0).normal(size=(*batch.target_mask.shape, task.spec.output_size))
    outputs = outputs.astype(np.float32)
    dirty = batch._replace(
        inputs=soiled(batch.inputs, batch.input_mask), targets=soiled(batch.targets, batch.target_mask)
    )
    with jax.numpy_dtype_promotion("strict"):
        clean = judged(outputs, batch)
        jax.tree.map(np.testing.assert_array_equal, judged(soiled(outputs, batch.target_mask), dirty), clean)
    loss, gradient, metrics = clean
    assert np.isfinite(loss) and not np.asarray(gradient)[~batch.target_mask].any()
    assert all(value.shape == batch.target_mask.shape[:1] for value in metrics.values())
