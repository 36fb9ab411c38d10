"""The multi-head two-way transducer: rounding, its limits, and the ends of its input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import TwoWay, make, name_of, supports
from lenmem.models.two_way import SHIFTS, Machine
from lenmem.tasks.base import draw
from lenmem.tasks.groups import WordProblem
from lenmem.tasks.lantm import Copy

TASK = Copy(vocabulary=3, train_lengths=(1, 4))
MODEL = TwoWay(hidden_size=8, states=3, heads=2, spec=TASK.spec)
BATCH = draw(TASK, jax.random.key(1), jnp.array([1, 3, 4]), 4)
GIVEN = BATCH.inputs, BATCH.input_mask, BATCH.target_mask


def parameters():
    return MODEL.init(jax.random.key(0), *GIVEN)["params"]


def test_the_machine_of_the_training_becomes_the_rounded_one():
    """With sure weights, rounding changes nothing."""
    params = parameters()
    machine = params["decoder"]["machine"]
    for name in ("jump", "shift", "next_symbol", "pattern"):
        machine[name] = jax.tree.map(lambda x: 300 * x, machine[name])
    rounded, soft = (MODEL.clone(rounding=how).apply({"params": params}, *GIVEN) for how in ("evaluation", "none"))
    np.testing.assert_allclose(*(x[BATCH.target_mask] for x in (rounded, soft)), atol=1e-4)


def test_only_evaluation_is_rounded():
    params, plain = parameters(), MODEL.clone(rounding="none")
    trained = MODEL.apply({"params": params}, *GIVEN, train=True)
    np.testing.assert_array_equal(trained, plain.apply({"params": params}, *GIVEN))
    assert not np.allclose(trained, MODEL.apply({"params": params}, *GIVEN))


def test_heads_of_a_rounded_machine_start_at_the_ends_and_stay_inside():
    _, sown = MODEL.apply({"params": parameters()}, *GIVEN, mutable=["traces"])
    (heads,) = sown["traces"]["decoder"]["machine"]["head"]
    last = np.asarray(BATCH.input_mask).sum(-1) + 1
    assert heads.dtype == jnp.int32
    assert heads.shape == (5, 3, 2)  # answers, rows, heads
    assert (np.asarray(heads) >= 0).all()
    assert (np.asarray(heads) <= last[None, :, None]).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_a_head_walks_jumps_to_another_and_to_a_match(rounded):
    """Logits that are sure of one move: the second head's place, the match on either side, and each shift."""
    machine = Machine(hidden_size=4, states=2, heads=2, rounded=rounded).bind(
        {"params": {"pattern": {"kernel": jnp.array([[-50.0, -50.0], [100.0, 100.0]]), "bias": jnp.array([0.0, 0.0])}}}
    )
    symbols = jnp.array([[0, 0, 1, 0, 1, 0, 0]])  # the pattern matches slots 2 and 4
    memory = machine.memory(jax.nn.one_hot(symbols, 2), jnp.ones((1, 7), bool))
    start = jnp.array([[3, 5]])
    heads = start if rounded else jax.nn.one_hot(start, 7)

    def place(jump: int, shift: int) -> int:
        sure = 100.0 * jax.nn.one_hot(jnp.array([jump, 1]), 4).reshape(1, -1)
        walk = 100.0 * jax.nn.one_hot(jnp.array([SHIFTS.index(shift), SHIFTS.index(0)]), len(SHIFTS)).reshape(1, -1)
        moved = machine.moved(heads, sure, walk, memory)
        moved = moved if rounded else jnp.argmax(moved, axis=-1)
        assert moved[0, 1] == 5
        return int(moved[0, 0])

    own, other, left, right = range(4)
    assert [place(own, shift) for shift in SHIFTS] == [1, 2, 3, 4, 5]
    assert [place(jump, 0) for jump in (other, left, right)] == [5, 2, 4]
    assert [place(other, 2), place(left, -2), place(right, 1)] == [6, 0, 5]
    assert place(other, 1) == 6


def test_causal_tasks_are_refused():
    assert supports(make("two_way"), WordProblem().spec) == "answers come after the whole input; the task is causal"
    assert name_of(TwoWay()) == "two_way"
