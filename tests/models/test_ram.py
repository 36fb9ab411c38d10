"""RAM and RAM/tape against the float64 twin that runs whole rows with a list as memory."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

from lenmem.models.ram import RAM, RAMTape
from lenmem.tasks.lantm import Copy
from tests.models import twin

small = {"hidden_size": 7, "memory_width": 4, "embedding_size": 5}
TASK = Copy(vocabulary=6, train_lengths=(1, 6))


@pytest.mark.parametrize(
    "model",
    [
        RAM(**small, key_size=3),
        RAMTape(**small),
        RAMTape(**small, key_size=3, sharpening=True),
        RAMTape(**small, key_size=3, sharpening=True, sharpening_order="after_strengths"),
    ],
    ids=["ram", "ram_tape", "sharpened_before_strengths", "sharpened_after_strengths"],
)
def test_whole_rows_equal_the_twin(model):
    twin.check(functools.partial(twin.RandomAccessTwin, tape=isinstance(model, RAMTape)), model, TASK)


def test_only_a_tape_has_neighbours_and_a_second_slot():
    def names(model):
        call = (jnp.zeros((1, 3), int), jnp.ones((1, 3), bool), jnp.ones((1, 4), bool))
        params = jax.eval_shape(lambda: model.clone(spec=TASK.spec).init(jax.random.key(0), *call))["params"]["cell"]
        return {name: leaf.shape for name, leaf in params.items() if name.startswith("start_")}

    ram, tape = names(RAM(**small)), names(RAMTape(**small))
    assert ram["start_keys"] == (20, 1)
    assert tape["start_keys"] == (2, 2)
    assert set(tape) - set(ram) == {"start_left_key", "start_right_key"}


def test_unknown_sharpening_order():
    with pytest.raises(ValueError, match="'sideways'.*before_strengths, after_strengths"):
        RAMTape(sharpening=True, sharpening_order="sideways", spec=TASK.spec)  # pyright: ignore[reportArgumentType]
