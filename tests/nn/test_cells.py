"""Cells against the equations, written out in float64 NumPy."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import Experiment, Training, train
from lenmem.nn.cells import FlaxCell, GRUCell, LSTMCell, Stacked, as_cell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import Transducer
from lenmem.tasks.lantm import Copy
from lenmem.types import Step

ROWS, WIDTH, SIZE = 3, 4, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def a_step(seed=0, width=WIDTH):
    inputs = jax.random.normal(jax.random.key(seed), (ROWS, width))
    return Step(inputs, jnp.zeros(ROWS, bool), jnp.ones(ROWS, bool))


class Once(nn.Module):
    """One step of a cell from its own start."""

    cell: nn.Module

    def setup(self):
        self.adapted = as_cell(self.cell)

    def __call__(self, step):
        start = self.adapted.start((ROWS,), 1)
        return start, self.adapted(start, step)


def once(cell, step, **options):
    params = jax.jit(Once(cell).init)(jax.random.key(1), step)["params"]
    return params, Once(cell).apply({"params": params}, step, **options)


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def test_lstm_equations():
    step = a_step()
    params, ((memory, hidden), (after, output)) = once(LSTMCell(SIZE), step)
    params, memory, hidden = float64((params["cell"], memory, hidden))
    gates = np.concatenate([np.asarray(step.inputs), hidden], 1) @ params["kernel"] + params["bias"]
    forget, write, out, candidate = np.split(gates, 4, axis=1)
    memory = sigmoid(forget) * memory + sigmoid(write) * np.tanh(candidate)
    np.testing.assert_allclose(after[0], memory, atol=2e-6)
    np.testing.assert_allclose(after[1], sigmoid(out) * np.tanh(memory), atol=2e-6)
    np.testing.assert_array_equal(output, after[1])
    np.testing.assert_array_equal(params["bias"][:SIZE], 1.0)  # The forget gates'.


def test_gru_equations():
    step = a_step()
    params, (hidden, (after, output)) = once(GRUCell(SIZE, learned_start=True), step)
    params, hidden = float64((params["cell"], hidden))
    of_input = np.asarray(step.inputs) @ params["input"]["kernel"] + params["input"]["bias"]
    of_hidden = hidden @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    (rx, zx, nx), (rh, zh, nh) = np.split(of_input, 3, 1), np.split(of_hidden, 3, 1)
    update = sigmoid(zx + zh)
    expected = (1 - update) * np.tanh(nx + sigmoid(rx + rh) * nh) + update * hidden
    np.testing.assert_allclose(after, expected, atol=2e-6)
    np.testing.assert_array_equal(output, after)


@pytest.mark.parametrize("cell_type", [LSTMCell, GRUCell])
@pytest.mark.parametrize("learned", [True, False])
def test_start_is_learned_or_zero(cell_type, learned):
    params, (start, _) = once(cell_type(SIZE, learned_start=learned), a_step())
    starts = {name for name in params["cell"] if name.startswith("start")}
    assert bool(starts) == learned
    for leaf in jax.tree.leaves(start):
        assert leaf.shape == (ROWS, SIZE)
        assert bool(jnp.any(leaf != 0)) == learned


def test_initialisation_bounds():
    fan_in = once(LSTMCell(16, learned_start=False), a_step())[0]["cell"]["kernel"]
    assert np.abs(fan_in[:WIDTH]).max() <= WIDTH**-0.5
    assert np.abs(fan_in[WIDTH:]).max() <= 16**-0.5
    uniform = once(LSTMCell(16, initialization="uniform"), a_step())[0]["cell"]["kernel"]
    assert 0.9 < np.abs(uniform).max() <= 1.0


def test_stack_is_its_layers_one_after_the_other():
    step = a_step()
    params, (starts, (carries, output)) = once(Stacked([GRUCell(SIZE), GRUCell(3)]), step)
    params = params["cell"]
    first, hidden = GRUCell(SIZE).apply({"params": params["cells_0"]}, starts[0], step)
    second, top = GRUCell(3).apply({"params": params["cells_1"]}, starts[1], step._replace(inputs=hidden))
    for got, expected in zip((*carries, output), (first, second, top), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


class Told(nn.Module):
    """A cell whose output is the length that it was told."""

    def start(self, batch_shape, steps=0, *, lengths):
        return lengths[:, None].astype(float)

    def __call__(self, carry, step):
        return carry, carry


class Regularised(Told):
    def sequence_loss(self, carries, valid):
        return jnp.zeros(())


def test_a_stacked_cell_is_told_what_it_asks_for():
    stack = Stacked([nn.GRUCell(SIZE), Told()])
    starts = stack.apply({}, (2,), 5, lengths=jnp.array([3, 4]), deterministic=True, method="start")
    np.testing.assert_array_equal(starts[1][:, 0], [3, 4])
    with pytest.raises(ValueError, match="Regularised has a sequence_loss, so it cannot be stacked"):
        Stacked([Regularised()]).apply({}, (2,), 5, method="start")


def test_dropout_between_layers_acts_in_training_only():
    cell, step = Stacked([GRUCell(SIZE, parent=None), GRUCell(SIZE, parent=None)], dropout=0.5), a_step()
    _, (_, (_, quiet)) = once(cell, step)
    _, (_, (_, again)) = once(cell, step)
    _, (_, (_, noisy)) = once(cell, step._replace(deterministic=False), rngs={"dropout": jax.random.key(5)})
    np.testing.assert_array_equal(quiet, again)
    assert not np.allclose(quiet, noisy)


class Through(nn.Module):
    """A cell without a state that gives its input."""

    def start(self, batch_shape, steps=0):
        return ()

    def __call__(self, carry, step):
        return carry, step.inputs


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_is_not_of_the_input(layers):
    step = a_step()._replace(deterministic=False)
    stack = Stacked([Through() for _ in range(layers)], dropout=0.5)
    _, output = stack.apply({}, ((),) * layers, step, rngs={"dropout": jax.random.key(0)})
    assert np.array_equal(output, step.inputs) == (layers == 1)


def test_flax_cells_run_unchanged():
    step = a_step()
    params, (start, (carry, output)) = once(nn.GRUCell(SIZE), step)
    weights = params["cell"] if "cell" in params else params["adapted"]["cell"]
    expected = nn.GRUCell(SIZE).apply({"params": weights}, jnp.zeros((ROWS, SIZE)), step.inputs)[1]
    np.testing.assert_array_equal(start, 0)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    np.testing.assert_allclose(carry, expected, atol=1e-6)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(nn.GRUCell(SIZE), marks=pytest.mark.thorough, id="one"),
        pytest.param(Stacked([nn.GRUCell(SIZE), nn.LSTMCell(SIZE)]), id="two"),
    ],
)
def test_flax_cells_are_scanned_and_trained(cell):
    task = Copy(vocabulary=4, train_lengths=(1, 2))
    result = train(Experiment(task, Transducer(cell), Training(steps=1, batch_size=2, log_every=1)))
    assert np.all(np.isfinite(result.history[-1]["loss"]))


def test_a_flax_cell_reads_in_both_directions():
    states, mask = jax.random.normal(jax.random.key(0), (2, 3, 4)), jnp.ones((2, 3), bool)
    both = Recurrent(nn.GRUCell(SIZE), bidirectional=True)
    params = both.init(jax.random.key(0), states, mask)
    outputs = both.apply(params, states, mask)
    weights = [params["params"][f"FlaxCell_{n}"]["cell"] for n in range(2)]
    for cell, reads, got in zip(weights, (states, states[:, ::-1]), np.split(outputs, 2, axis=-1), strict=True):
        expected = nn.RNN(nn.GRUCell(SIZE)).apply({"params": {"cell": cell}}, reads)
        np.testing.assert_allclose(got if cell is weights[0] else got[:, ::-1], expected, atol=1e-6)


def test_as_cell():
    cell = LSTMCell(SIZE)
    assert as_cell(cell) is cell
    assert isinstance(as_cell(nn.GRUCell(SIZE)), FlaxCell)
    with pytest.raises(ValueError, match="Dense is not a recurrent cell"):
        as_cell(nn.Dense(3))
