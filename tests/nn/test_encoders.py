"""Recurrent encoders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.cells import GRUCell, LSTMCell, Stacked
from lenmem.nn.encoders import Recurrent, first_and_last, reverse

LENGTHS = (5, 2, 0)
MASK = jnp.arange(5) < jnp.array(LENGTHS)[:, None]
STATES = jnp.where(MASK[..., None], jax.random.normal(jax.random.key(0), (3, 5, 4)), jnp.nan)


def test_reversal_is_per_row_and_undoes_itself():
    numbers = jnp.arange(15.0).reshape(3, 5)
    expected = [[4, 3, 2, 1, 0], [6, 5, 7, 8, 9], [10, 11, 12, 13, 14]]
    np.testing.assert_array_equal(reverse(numbers, MASK), expected)
    np.testing.assert_array_equal(reverse(reverse(numbers, MASK), MASK), numbers)


def test_the_gradient_of_a_reversal_is_a_reversal():
    states, moved = jnp.nan_to_num(STATES), jax.random.normal(jax.random.key(1), STATES.shape)
    _, pull = jax.vjp(lambda states: reverse(states, MASK), states)
    (gradient,) = pull(moved)
    np.testing.assert_array_equal(gradient, reverse(moved, MASK))
    _, tangent = jax.jvp(lambda states: reverse(states, MASK), (states,), (moved,))
    np.testing.assert_array_equal(tangent, gradient)
    np.testing.assert_allclose(jnp.vdot(moved, reverse(states, MASK)), jnp.vdot(gradient, states), rtol=1e-6)


def test_backward_is_the_forward_cell_on_reversed_rows():
    model = Recurrent(LSTMCell(3), bidirectional=True)
    params = jax.jit(model.init)(jax.random.key(1), STATES, MASK)["params"]
    outputs = np.asarray(jax.jit(lambda params: model.apply({"params": params}, STATES, MASK))(params))
    assert outputs.shape == (3, 5, 6)
    np.testing.assert_array_equal(outputs[~np.asarray(MASK)], 0)
    one_way = jax.jit(Recurrent(LSTMCell(3)).apply)
    for half, name in ((outputs[..., :3], "cell"), (outputs[..., 3:], "backward")):
        for row, n in enumerate(LENGTHS[:2]):
            alone = np.asarray(STATES[row, :n])
            alone = alone[::-1] if name == "backward" else alone
            weights = {"params": {"cell": params[name]}}
            expected = np.asarray(one_way(weights, alone[None], np.ones((1, n), bool)))[0]
            expected = expected[::-1] if name == "backward" else expected
            np.testing.assert_allclose(half[row, :n], expected, atol=1e-6)


def test_final_states():
    model = Recurrent(GRUCell(3), bidirectional=True)
    outputs, _ = jax.jit(model.init_with_output)(jax.random.key(1), STATES, MASK)
    final = model.final(outputs, MASK)
    for row, n in enumerate(LENGTHS[:2]):
        np.testing.assert_array_equal(final[row], jnp.concatenate([outputs[row, n - 1, :3], outputs[row, 0, 3:]]))
    np.testing.assert_array_equal(final[2], 0)
    np.testing.assert_array_equal(Recurrent(GRUCell(6)).final(outputs, MASK)[1], outputs[1, 1])
    np.testing.assert_array_equal(first_and_last(outputs, MASK)[1], outputs[1, :2].reshape(-1))


def test_directions_have_their_own_parameters_even_in_stacks():
    model = Recurrent(Stacked([GRUCell(3), GRUCell(3)]), bidirectional=True)
    params = jax.jit(model.init)(jax.random.key(1), STATES, MASK)["params"]
    assert set(params) == {"cell", "backward"}
    assert jax.tree.structure(params["cell"]) == jax.tree.structure(params["backward"])
    kernels = [params[name]["cells_0"]["input"]["kernel"] for name in params]
    assert not np.allclose(*kernels)
    assert (model.causal, Recurrent(GRUCell(3)).causal) == (False, True)


def test_another_cell_backward():
    model = Recurrent(GRUCell(4), bidirectional=True, backward=LSTMCell(4))
    outputs, variables = jax.jit(model.init_with_output)(jax.random.key(1), STATES, MASK)
    assert outputs.shape == (3, 5, 8)
    assert bool(jnp.all(jnp.isfinite(outputs)))
    assert "start_memory" in variables["params"]["backward"]
    with pytest.raises(ValueError, match="the same width; forward and backward have 3 and 5"):
        Recurrent(GRUCell(3), bidirectional=True, backward=LSTMCell(5)).init(jax.random.key(1), STATES, MASK)
