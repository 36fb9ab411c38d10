"""The multi-head two-way transducer: rounding, its limits, and the ends of its input."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import TwoWay, make, name_of, supports
from lenmem.models.two_way import Machine
from lenmem.tasks.base import draw
from lenmem.tasks.groups import WordProblem
from lenmem.tasks.lantm import Copy
from lenmem.tasks.panm import PanmPrioritySort
from lenmem.types import Batch
from tests.drawing import drawn

TASK = Copy(vocabulary=3, train_lengths=(1, 4))
MODEL = TwoWay(hidden_size=8, states=3, heads=2, spec=TASK.spec)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.array([1, 3, 4]), 4))(jax.random.key(1))
GIVEN = BATCH.inputs, BATCH.input_mask, BATCH.target_mask


@functools.cache
def numbers() -> Any:
    return drawn(MODEL.init, *GIVEN)


def parameters() -> Any:
    """A copy of the tree, of which a test may change leaves."""
    return jax.tree.map(lambda x: x, numbers())


@functools.cache
def program(model: TwoWay, train: bool, drawing: bool) -> Any:
    """(params, key) -> (outputs, traces), compiled once for all tests."""

    @jax.jit
    def run(params: Any, key: jax.Array) -> Any:
        rngs = {"gate": key} if drawing else {}
        return model.apply({"params": params}, *GIVEN, train=train, rngs=rngs, mutable=["traces"])

    return run


def answers(model: TwoWay, params: Any, *, train: bool = False, gate: int | None = None) -> np.ndarray:
    """The outputs at the real answer slots."""
    outputs, _ = program(model, train, gate is not None)(params, jax.random.key(gate or 0))
    return np.asarray(outputs)[np.asarray(BATCH.target_mask)]


def heads_of(model: TwoWay, params: Any) -> np.ndarray:
    """The places of the rounded heads, [answers, rows, heads]."""
    (heads,) = program(model, False, False)(params, jax.random.key(0))[1]["traces"]["decoder"]["machine"]["head"]
    return np.asarray(heads)


def test_the_machine_of_the_training_becomes_the_rounded_one():
    """With sure weights, rounding changes nothing."""
    params = parameters()
    machine = params["decoder"]["machine"]
    for name in ("jump", "shift", "next_symbol", "pattern"):
        machine[name] = jax.tree.map(lambda x: np.float32(3000) * x, machine[name])
    np.testing.assert_allclose(answers(MODEL, params), answers(MODEL.clone(rounding="none"), params), atol=1e-4)


def test_only_evaluation_is_rounded():
    params = parameters()
    trained = answers(MODEL, params, train=True)
    np.testing.assert_array_equal(trained, answers(MODEL.clone(rounding="none"), params))
    assert not np.allclose(trained, answers(MODEL, params))


@pytest.mark.thorough
def test_certain_rows_train_the_rounded_machine_with_the_gradient_of_the_soft_one():
    """With sure patterns, which are not rounded; a gradient flows to every choice but those."""
    params = parameters()
    machine = params["decoder"]["machine"]
    machine["pattern"] = jax.tree.map(lambda x: np.float32(3000) * x, machine["pattern"])
    model, rngs = MODEL.clone(certain=1.0), {"gate": jax.random.key(2)}

    def total(params: Any) -> tuple[jax.Array, Any]:
        outputs: Any = model.apply({"params": params}, *GIVEN, train=True, rngs=rngs)
        return jnp.sum(jnp.sin(outputs)), outputs

    gradients, outputs = jax.jit(jax.grad(total, has_aux=True))(params)
    np.testing.assert_allclose(outputs[BATCH.target_mask], answers(MODEL, params), atol=1e-5)
    for name in ("jump", "shift", "next_symbol", "before"):
        assert np.abs(gradients["decoder"]["machine"][name]["kernel"]).max() > 0, name


def test_sharp_rows_are_between_the_soft_and_the_rounded_machine():
    """Each row is that of the soft machine whose logits are larger by a factor of its own; evaluation has none."""
    params = parameters()
    model = MODEL.clone(sharpest=50.0)
    np.testing.assert_array_equal(answers(model, params), answers(MODEL, params))
    first, other, again = (answers(model, params, train=True, gate=i) for i in (2, 3, 2))
    assert not np.allclose(first, other)
    np.testing.assert_array_equal(first, again)
    soft = answers(MODEL, params, train=True)
    assert not np.allclose(first, soft)
    np.testing.assert_allclose(answers(MODEL.clone(sharpest=1.0001), params, train=True, gate=2), soft, atol=1e-3)


def test_eager_patterns_are_those_of_larger_parameters():
    params, larger = parameters(), parameters()
    pattern = larger["decoder"]["machine"]["pattern"]
    larger["decoder"]["machine"]["pattern"] = jax.tree.map(lambda x: np.float32(10) * x, pattern)
    for train in (False, True):
        eager = answers(MODEL.clone(eager=10.0), params, train=train)
        np.testing.assert_allclose(eager, answers(MODEL, larger, train=train), atol=1e-5)


@pytest.mark.parametrize("rounding", ["evaluation", "none"])
def test_a_row_is_read_to_its_end_and_no_further(rounding):
    """The state that reading leaves is that of the row alone, whatever rows and padding are beside it."""
    params = jax.tree.map(lambda x: 5 * np.asarray(x), parameters())  # moves and symbols change in most steps
    run = jax.jit(MODEL.clone(rounding=rounding).apply)

    def read(capacity: int) -> list[np.ndarray]:
        more = [(0, 0), (0, capacity - BATCH.inputs.shape[1])]
        given = [np.pad(np.asarray(x), more) for x in GIVEN]
        outputs = np.asarray(run({"params": params}, *given))
        return [row[: n + 1] for row, n in zip(outputs, (1, 3, 4), strict=True)]

    beside = read(4)
    for capacity in (5, 20):
        for row, expected in zip(read(capacity), beside, strict=True):
            np.testing.assert_allclose(row, expected, atol=1e-5)


def test_heads_of_a_rounded_machine_are_slots_in_use():
    heads = heads_of(MODEL, parameters())
    last = np.asarray(BATCH.input_mask).sum(-1) + 1
    assert heads.dtype == np.int32
    assert heads.shape == (5, 3, 2)  # answers, rows, heads
    assert (heads >= 0).all()
    assert (heads <= last[None, :, None]).all()


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("reach", [2, 3])
def test_a_head_walks_jumps_to_another_and_to_a_match(reach, rounded):
    """Logits that are sure of one move: the second head's place, the match on either side, and each shift."""
    machine = Machine(hidden_size=4, states=2, heads=2, reach=reach, rounded=rounded).bind(
        {"params": {"pattern": {"kernel": np.float32([[-50, -50], [100, 100]]), "bias": np.zeros(2, np.float32)}}}
    )
    symbols = np.array([[0, 0, 1, 0, 1, 0, 0]])  # the pattern matches slots 2 and 4
    start = np.array([[3, 5]])
    heads = start if rounded else np.eye(7, dtype=np.float32)[start]

    @jax.jit
    def move(heads, sure, walk):
        memory = machine.memory(jax.nn.one_hot(symbols, 2), jnp.ones((1, 7), bool))
        return machine.moved(heads, sure, walk, memory)

    def place(jump: int, shift: int) -> int:
        sure = 100.0 * np.eye(4, dtype=np.float32)[[jump, 1]].reshape(1, -1)
        walk = np.eye(2 * reach + 1, dtype=np.float32)[[reach + shift, reach]].reshape(1, -1)
        moved = np.asarray(move(heads, sure, 100.0 * walk))
        moved = moved if rounded else moved.argmax(axis=-1)
        assert moved[0, 1] == 5
        return int(moved[0, 0])

    own, other, left, right = range(4)
    assert [place(own, shift) for shift in range(-reach, reach + 1)] == list(range(3 - reach, 4 + reach))
    assert [place(jump, 0) for jump in (other, left, right)] == [5, 2, 4]
    assert [place(other, 2), place(left, -2), place(right, 1)] == [6, 0, 5]
    assert place(other, 1) == 6


def test_without_jumps_a_head_walks_and_without_reading_it_starts_at_an_end():
    model = MODEL.clone(jumps=False, reading=False)
    heads = heads_of(model, parameters())
    last = np.asarray(BATCH.input_mask).sum(-1) + 1
    ends = np.stack([np.zeros_like(last), last], axis=-1)
    walked = np.diff(heads, axis=0, prepend=ends[None])
    assert np.abs(walked).max() <= 2


def test_causal_tasks_are_refused():
    assert supports(make("two_way"), WordProblem().spec) == "answers come after the whole input; the task is causal"
    assert name_of(TwoWay()) == "two_way"


SORT = PanmPrioritySort(vocabulary=3, train_lengths=(1, 4), scored_lengths=(5,))


def sorting(lengths: list[int]) -> Batch:
    return jax.jit(lambda key: draw(SORT, key, jnp.array(lengths), max(lengths)))(jax.random.key(1))


def sorter() -> np.ndarray:
    """Exact match of a machine whose first head follows the order of the scores and whose answer is what it reads."""
    model = TwoWay(hidden_size=4, states=2, heads=2, index=True, spec=SORT.spec)
    batch = sorting([1, 4, 9, 40])
    given = batch.inputs, batch.input_mask, batch.target_mask
    shapes = jax.eval_shape(model.init, jax.random.key(0), *given)["params"]
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    machine = params["decoder"]["machine"]
    # The scores are column 3, after the tokens. Heads wait while a token is read; a blank is the last input.
    machine["columns"]["columns"][0, 0, 3] = 100.0
    for name in ("before", "after"):
        machine[name]["kernel"][-1, 0] = 1.0
    machine["follow"]["kernel"][0, 1] = 100.0
    machine["gate"]["bias"][0] = 100.0
    params["EncoderDecoder_0"]["readout"]["kernel"][:3, :3] = np.eye(3)

    @jax.jit
    def matches(params: Any) -> jax.Array:
        outputs: Any = model.apply({"params": params}, *given)
        return SORT.metrics(outputs, batch)["exact_match"]

    return np.asarray(matches(params))


def test_a_head_that_follows_an_index_sorts():
    np.testing.assert_array_equal(sorter(), 1)


@pytest.mark.thorough
def test_channels_are_seen_by_the_index_alone():
    """With an order that stays the same, other scores change nothing; without an index they do."""
    batch = sorting([4, 4])
    doubled = np.asarray(batch.inputs) * np.where(np.arange(batch.inputs.shape[-1]) == 3, np.float32(2), 1)
    other = batch._replace(inputs=jnp.asarray(doubled, batch.inputs.dtype))
    for index in (True, "channels", False):
        model = TwoWay(hidden_size=8, states=3, heads=2, index=index, spec=SORT.spec)
        given = batch.input_mask, batch.target_mask
        params = drawn(model.init, batch.inputs, *given)
        run = jax.jit(functools.partial(model.apply, {"params": params}, train=True))
        outputs: Any = [run(x.inputs, *given) for x in (batch, other)]
        assert np.allclose(*outputs, atol=1e-6) == bool(index)
        if index:
            columns = params["decoder"]["machine"]["columns"]["columns"].shape[-1]
            assert columns == 1 if index == "channels" else columns > 1


def test_an_index_of_channels_is_none_where_there_are_none():
    plain, indexed = (jax.eval_shape(x.init, jax.random.key(0), *GIVEN) for x in (MODEL, MODEL.clone(index="channels")))
    assert plain == indexed
