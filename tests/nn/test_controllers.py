"""Controllers of memory machines against the equations, written out in float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.controllers import FeedForwardController, LSTMController, clip, cut, make_controller, oneplus
from lenmem.types import Step

ROWS, WIDTH, SIZE = 3, 4, 5


def a_step():
    inputs = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))
    return Step(inputs, jnp.zeros(ROWS, bool), jnp.ones(ROWS, bool))


def init(controller, step):
    """Parameters, the carry they start from, and the carry of some later time."""
    params = jax.jit(controller.init)(jax.random.key(1), carry_of(0), step)["params"]
    start = controller.apply({"params": params}, (ROWS,), method="start")
    return params, start


def carry_of(seed):
    keys = jax.random.split(jax.random.key(seed))
    return tuple(2 * jax.random.normal(key, (ROWS, SIZE)) for key in keys)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("feedback", ["hidden", "cell"])
@pytest.mark.parametrize("compression", [False, True])
def test_lstm_equations(feedback, compression):
    step, carry = a_step(), carry_of(2)
    controller = LSTMController(SIZE, feedback, compression, forget_bias=0.5)
    params, start = init(controller, step)
    kernel = np.asarray(params["kernel"], np.float64)
    bias = np.random.default_rng(0).normal(size=4 * SIZE)
    params = {**params, "bias": jnp.asarray(bias, jnp.float32)}
    (new, output), sown = controller.apply({"params": params}, carry, step, mutable=["traces"])

    c, h = (np.asarray(x, np.float64) for x in carry)
    seen = np.concatenate([np.asarray(step.inputs), h if feedback == "hidden" else c], axis=1)
    f, i, o, g = np.split(seen @ kernel + bias, 4, axis=1)
    raw = sigmoid(f + 0.5) * c + sigmoid(i) * np.tanh(g)
    cell = np.tanh(raw) if compression else raw
    hidden = sigmoid(o) * (cell if compression else np.tanh(raw))
    np.testing.assert_allclose(new[0], cell, atol=2e-6)
    np.testing.assert_allclose(new[1], hidden, atol=2e-6)
    np.testing.assert_array_equal(output, new[1])
    np.testing.assert_allclose(sown["traces"]["controller_state"][0], raw, atol=2e-6)
    assert [x.shape for x in start] == [(ROWS, SIZE)] * 2


def test_only_what_is_fed_back_matters():
    step, (cell, hidden) = a_step(), carry_of(3)
    for feedback, changes in (("hidden", True), ("cell", False)):
        controller = LSTMController(SIZE, feedback)
        params, start = init(controller, step)
        outputs = [controller.apply({"params": params}, (cell, h), step)[1] for h in (hidden, hidden + 1)]
        assert np.any(outputs[0] != outputs[1]) == changes
        assert ("start_hidden" in params) == changes
        assert np.any(start[1] != 0) == changes
        assert np.all(start[0] == start[0][:1]) and np.any(start[0] != 0)


def test_compressed_states_stay_in_range():
    step = a_step()
    controller = LSTMController(SIZE, "cell", compression=True)
    params, carry = init(controller, step)
    params = {**params, "bias": params["bias"] + 9.0}  # all gates open, for ever
    for _ in range(20):
        carry, _ = controller.apply({"params": params}, carry, step)
    assert np.all(np.abs(carry[0]) <= 1)


def test_initialisation():
    step = Step(jnp.zeros((1, 60)), jnp.zeros(1, bool), jnp.ones(1, bool))
    params = LSTMController(100).init(jax.random.key(0), (jnp.zeros((1, 100)),) * 2, step)["params"]
    np.testing.assert_allclose(np.std(params["kernel"]), 160**-0.5, rtol=0.02)
    assert np.abs(params["kernel"]).max() < 2.3 * 160**-0.5  # cut off at two standard deviations of the uncut normal
    np.testing.assert_array_equal(params["bias"], 0)
    assert 0.8 < np.std(params["start_cell"]) < 1.2
    params = FeedForwardController(100).init(jax.random.key(0), (), step)["params"]
    assert 0.95 < np.abs(params["layer_0"]["kernel"]).max() * np.sqrt(160 / 6) <= 1


def test_feed_forward_equations():
    step = a_step()
    controller = FeedForwardController(SIZE)
    params = jax.jit(controller.init)(jax.random.key(0), (), step)["params"]
    carry, output = controller.apply({"params": params}, controller.start((ROWS,)), step)
    x = np.asarray(step.inputs, np.float64)
    for layer in range(3):
        x = (np.tanh(x) if layer else x) @ np.asarray(params[f"layer_{layer}"]["kernel"], np.float64)
    assert carry == ()
    np.testing.assert_allclose(output, x, atol=2e-6)


def test_helpers():
    parts = cut(jnp.arange(12.0).reshape(2, 6), {"a": (1,), "b": (2, 2), "c": (1, 1)})
    assert {name: part.shape for name, part in parts.items()} == {"a": (2, 1), "b": (2, 2, 2), "c": (2, 1, 1)}
    np.testing.assert_array_equal(parts["b"][1], [[7, 8], [9, 10]])
    np.testing.assert_array_equal(clip((jnp.asarray([-3.0, 1.0]), ()), 2.0)[0], [-2, 1])
    np.testing.assert_array_equal(clip(jnp.asarray([-3.0]), None), [-3])
    np.testing.assert_allclose(oneplus(jnp.asarray([-50.0, 0.0])), [1, 1 + np.log(2)], atol=1e-6)


def test_wrong_names():
    with pytest.raises(ValueError, match="'gru'.*lstm, peephole, feedforward"):
        make_controller("gru", 4)
    with pytest.raises(ValueError, match="'both'.*hidden, cell"):
        LSTMController(SIZE, "both").init(jax.random.key(0), carry_of(0), a_step())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["lstm", "peephole"])
@pytest.mark.parametrize("dtypes", [{"param_dtype": jnp.bfloat16}, {"dtype": jnp.bfloat16}, {}])
def test_the_state_keeps_its_type(kind, dtypes):
    """Also where the cell state, in float32, is read with inputs in half precision."""
    cell = make_controller(kind, 4, **dtypes)
    inputs = jnp.ones((2, 3), jnp.bfloat16 if dtypes else jnp.float32)
    step = Step(inputs, jnp.zeros(2, bool), jnp.ones(2, bool), True)

    def types():
        _, variables = cell.init_with_output(jax.random.key(0), (2,), method="start")
        carry = cell.apply(variables, (2,), method="start")
        (after, _), _ = cell.init_with_output(jax.random.key(0), carry, step)
        return carry, after

    carry, after = jax.eval_shape(types)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, carry)
