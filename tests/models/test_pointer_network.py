"""The Pointer Network: its mixture against NumPy, the tasks it can answer, and learning."""

from __future__ import annotations

import dataclasses

import hypothesis
import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from lenmem.models.pointer_network import FLOOR, LogMixture, PointerNetwork
from lenmem.nn.interfaces import with_computation
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Reverse
from lenmem.types import Spec
from tests.drawing import drawn
from tests.learning import briefly, fit, trained
from tests.models import contract

SPEC = Spec(vocabulary=5, output_size=6, shared_ids=True, end_id=5)
INPUTS = jnp.array([[0, 3, 3, 1], [2, 4, 0, 0]])
MASK = jnp.arange(4) < jnp.array([[4], [2]])
SLOTS = jnp.ones((2, 3), bool)
TASK = Reverse(vocabulary=4, train_lengths=(1, 5))


def answered(model, inputs=INPUTS, seed=1):
    """Outputs and pointer weights of large random parameters."""
    model = model.clone(hidden_size=6, embedding_size=4)
    params = drawn(model.init, inputs, MASK, SLOTS, scale=2, seed=seed)
    run = briefly(lambda p, x: model.apply({"params": p}, x, MASK, SLOTS, mutable=["traces"]))
    outputs, mutated = run(params, inputs)
    return np.asarray(outputs), np.swapaxes(mutated["traces"]["decoder"]["attention"][0], 0, 1)


@pytest.mark.parametrize("feedback", ["open_loop", "teacher_forced"])
def test_answers_are_the_weights_of_the_tokens(feedback):
    outputs, weights = answered(PointerNetwork(spec=SPEC, feedback=feedback))
    np.testing.assert_array_equal(weights[..., 0], 0)  # The begin symbol.
    for row, n in enumerate((4, 2)):
        tokens = [-1, *INPUTS[row, :n].tolist(), 5]
        for slot in range(3):
            mixture = np.zeros(6)
            for token, weight in zip(tokens[1:], np.float64(weights[row, slot, 1 : n + 2]), strict=True):
                mixture[token] += weight
            expected = np.log((1 - FLOOR) * mixture + FLOOR / 6)
            np.testing.assert_allclose(outputs[row, slot], expected, atol=1e-5)
    np.testing.assert_allclose(np.exp(outputs).sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(outputs[0, :, [2, 4]], np.log(FLOOR / 6), rtol=1e-5)


def test_without_an_end_symbol_only_tokens_are_pointed_at():
    spec = dataclasses.replace(SPEC, output_size=5, end_id=None)
    _, weights = answered(PointerNetwork(spec=spec))
    np.testing.assert_allclose(weights[0, :, 1:5].sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(weights[1, :, 1:3].sum(-1), 1, atol=1e-6)


def test_tokens_beside_channels():
    """The answer is the one-hot part of [one-hot | channels]; the channels determine the place."""
    spec = dataclasses.replace(SPEC, channels=2)
    channels = jax.random.normal(jax.random.key(0), (2, 4, 2))
    inputs = jnp.concatenate([jax.nn.one_hot(INPUTS, 5), channels], -1)
    outputs, weights = answered(PointerNetwork(spec=spec), jnp.where(MASK[..., None], inputs, jnp.nan))
    np.testing.assert_allclose(np.exp(outputs[0, :, 3]), weights[0, :, 2] + weights[0, :, 3], atol=2e-6)
    np.testing.assert_allclose(outputs[0, :, [2, 4]], np.log(FLOOR / 6), rtol=1e-5)
    other, _ = answered(PointerNetwork(spec=spec), inputs.at[0, 0, 5:].add(1.0))
    assert not np.allclose(outputs[0], other[0], atol=1e-3)


@hypothesis.given(
    logits=arrays.arrays(np.float32, (3, 5), elements=st.floats(-20, 20, width=32)),
    classes=st.integers(2, 7),
    end=st.booleans(),
)
def test_the_mixture_is_finite_and_never_above_one(logits, classes, end):
    spec = Spec(vocabulary=4, output_size=classes, shared_ids=True, end_id=classes - 1 if end else None)
    symbols = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    outputs = np.asarray(LogMixture(spec).apply({}, jnp.asarray(symbols)))
    expected = np.zeros((3, classes))
    for token in range(min(4, classes)):
        expected[:, token] += symbols[:, token]
    if end:
        expected[:, classes - 1] += symbols[:, 4]
    np.testing.assert_allclose(np.exp(outputs), (1 - FLOOR) * expected + FLOOR / classes, atol=1e-6)
    assert (
        np.all(np.isfinite(outputs)) and np.all(outputs <= 1e-6) and np.all(outputs >= np.log(FLOOR / classes) - 1e-3)
    )


def test_a_computation_token_is_no_answer():
    """Its id may be that of the end symbol, which only the end delimiter stands for."""
    spec = with_computation(Spec(vocabulary=4, output_size=5, shared_ids=True, end_id=4), 1)
    outputs = LogMixture(spec).apply({}, jnp.array([[0.1, 0, 0, 0, 0.7, 0.2]]))
    np.testing.assert_allclose(np.exp(outputs)[0], [0.1, 0, 0, 0, 0.2], atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [{"shared_ids": False}, {"outputs": "multi_hot"}, {"vocabulary": 0, "channels": 3}, {"causal": True}],
)
def test_tasks_it_cannot_take(change):
    spec = dataclasses.replace(SPEC, **change)
    reason = PointerNetwork().supports(spec)
    assert reason and "\n" not in reason and PointerNetwork().supports(SPEC) is None
    with pytest.raises(ValueError, match="PointerNetwork cannot take the task"):
        jax.eval_shape(PointerNetwork(spec=spec).init, jax.random.key(0), INPUTS, MASK, SLOTS)


@pytest.mark.learning
@pytest.mark.thorough
def test_it_learns_to_reverse_by_pointing(learns):
    """Trained on Reverse, its pointer runs from the last input to the first, then to the end delimiter."""
    model, length = PointerNetwork(hidden_size=16, embedding_size=8, spec=TASK.spec), 4

    def loss(params, batch, _):
        return TASK.loss(contract.apply(model, params, batch), batch)

    @trained
    def right(key):
        """The lower of the shares of right answers and of right pointers."""
        start, data, test, steps = jax.random.split(key, 4)
        batches = jax.vmap(lambda key: draw(TASK, key, jnp.arange(16) % 5 + 1, 5))(jax.random.split(data, 300))
        batch = draw(TASK, test, jnp.full(64, length), length)
        params = model.init(start, batch.inputs, batch.input_mask, batch.target_mask)["params"]
        params = fit(params, loss, batches, steps)
        outputs, mutated = contract.apply(model, params, batch, mutable=["traces"])
        pointed = jnp.argmax(mutated["traces"]["decoder"]["attention"][0], -1).T
        expected = jnp.array([4, 3, 2, 1, 5])  # Position 0 is the begin symbol.
        return jnp.minimum(jnp.mean(TASK.metrics(outputs, batch)["token_accuracy"]), jnp.mean(pointed == expected))

    learns(right, bar=0.97, worst=1.0)
