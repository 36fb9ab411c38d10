"""The two scans against a Python loop: values, gradients, skipped chunks, memory."""

from __future__ import annotations

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.lantm import LANTM
from lenmem.nn.recurrence import CHUNK, AppendOnlyCell, any_valid, scan_cell
from lenmem.placement import on_platform
from lenmem.types import Spec, Step
from tests.drawing import drawn

WIDTH = 3


class Leaky(nn.Module):
    """h' = tanh(W h + gain x): the smallest plain cell."""

    gain: Any = 1.0

    def setup(self):
        self.kernel = self.param("kernel", nn.initializers.normal(0.5), (WIDTH, WIDTH))
        self.first = self.param("first", nn.initializers.normal(1.0), (WIDTH,))

    def start(self, batch_shape, steps=0):
        return jnp.broadcast_to(self.first, (*batch_shape, WIDTH))

    def __call__(self, carry, step):
        carry = jnp.tanh(carry @ self.kernel + self.gain * step.inputs)
        self.sow("traces", "norm", jnp.sum(carry**2, axis=-1))
        return carry, (carry, 2 * carry)


class Notebook(AppendOnlyCell):
    """Reads a softmax mean of its entries, and writes its state."""

    gain: Any = 1.0

    def setup(self):
        self.kernel = self.param("kernel", nn.initializers.normal(0.5), (WIDTH, WIDTH))
        self.first = self.param("first", nn.initializers.normal(1.0), (WIDTH,))

    def start(self, batch_shape, steps):
        entry = jnp.broadcast_to(self.first, (*batch_shape, WIDTH))
        memory = jnp.pad(entry[..., None], [(0, 0), (0, 0), (0, steps)])
        return entry, memory, jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state, memory, filled, step):
        scores = jnp.einsum("bd,bdt->bt", state, memory)
        read = jnp.einsum("bt,bdt->bd", jax.nn.softmax(jnp.where(filled, scores, -1e9)), memory)
        state = jnp.tanh(state @ self.kernel + self.gain * step.inputs + read)
        return state, state[::1] * 0.5, (state, read)


class Scanned(nn.Module):
    """`scan_cell` from the cell's start."""

    cell: nn.Module
    slots: int

    @nn.compact
    def __call__(self, steps):
        return scan_cell(self.cell, self.cell.start(steps.valid.shape[1:], self.slots), steps)


class Looped(nn.Module):
    """The same by a Python loop over `cell.__call__`, differentiated by JAX."""

    cell: nn.Module
    slots: int

    @nn.compact
    def __call__(self, steps):
        carry, outputs = self.cell.start(steps.valid.shape[1:], self.slots), []
        for time in range(steps.valid.shape[0]):
            carry, output = self.cell(carry, jax.tree.map(lambda x, time=time: x[time], steps))
            outputs.append(output)
        return carry, jax.tree.map(lambda *x: jnp.stack(x), *outputs)


def some_steps(length, ends, answers_from=None):
    """Rows that end at `ends`, decoding from `answers_from` on."""
    time = np.arange(length)[:, None]
    decoding = time >= np.asarray(answers_from or ends)
    inputs = np.random.default_rng(length).normal(size=(length, len(ends), WIDTH)).astype(np.float32)
    return Step(inputs, np.broadcast_to(decoding, inputs.shape[:2]), time < np.asarray(ends))


def parameters(module, steps):
    """Of a scale at which a state says something about the one before."""
    return drawn(module.init, steps, scale=0.8)


def value_and_gradients(module, params, steps):
    """Outputs at valid steps, and the gradients of a scalar function of them in parameters and inputs."""

    def loss(params, inputs):
        _, outputs = module.apply({"params": params}, steps._replace(inputs=inputs))
        real = jax.tree.map(lambda x: jnp.where(steps.valid[..., None], x, 0), outputs)
        scalar = sum(jnp.sum(jnp.sin((1 + i) * leaf)) for i, leaf in enumerate(jax.tree.leaves(real)))
        return scalar, real

    (_, real), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, steps.inputs)
    return real, gradients


def close(left, right, atol=1e-5):
    chex.assert_trees_all_close(left, right, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("cell", [Leaky(), Notebook()], ids=["plain", "append_only"])
def test_a_field_of_the_cell_may_be_traced(cell):
    """As in a sweep over it: the same values and gradients, also in the field itself."""
    steps = some_steps(5, ends=[5, 3])
    params = parameters(Scanned(cell, 5), steps)

    def loss(gain, params):
        _, outputs = Scanned(cell.clone(gain=gain), 5).apply({"params": params}, steps)
        return sum(jnp.sum(jnp.sin(jnp.where(steps.valid[..., None], x, 0))) for x in outputs)

    gains = (0.5, 2.0)
    traced = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)), in_axes=(0, None)))(jnp.array(gains), params)
    for lane, gain in enumerate(gains):
        value, (d_gain, d_params) = jax.tree.map(lambda x, lane=lane: x[lane], traced)
        close((value, d_params), jax.jit(jax.value_and_grad(lambda params, gain=gain: loss(gain, params)))(params))
        slope = (loss(gain + 1e-2, params) - loss(gain - 1e-2, params)) / 2e-2
        np.testing.assert_allclose(d_gain, slope, rtol=0.02, atol=1e-2)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("cell", [Leaky(), Notebook()], ids=["plain", "append_only"])
def test_equals_a_python_loop(cell, device):
    """Values and gradients; rows start to answer, and end, at different times, across a chunk's border."""
    length = CHUNK + 3
    steps = some_steps(length, ends=[length, 5, 9], answers_from=[7, 4, 9])
    slots = 9
    params = parameters(Scanned(cell, slots), steps)
    with on_platform(device):
        scanned = value_and_gradients(Scanned(cell, slots), params, steps)
    looped = value_and_gradients(Looped(cell, slots), params, steps)
    close(scanned, looped)
    d_inputs = np.asarray(scanned[1][1])
    np.testing.assert_array_equal(d_inputs[~steps.valid], 0)


@pytest.mark.parametrize("cell", [Leaky(), Notebook()], ids=["plain", "append_only"])
def test_can_be_differentiated_forward(cell):
    """The derivative in a direction of parameters and inputs agrees with the gradients and with the loop."""
    steps = some_steps(7, ends=[7, 5], answers_from=[4, 5])
    params = parameters(Scanned(cell, 4), steps)
    towards = jax.tree.map(np.cos, (params, steps.inputs))

    def loss(module, params, inputs):
        _, outputs = module.apply({"params": params}, steps._replace(inputs=inputs))
        real = jax.tree.map(lambda x: jnp.where(steps.valid[..., None], x, 0), outputs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(real))

    @jax.jit
    def slopes(params, inputs):
        scanned, looped = (functools.partial(loss, kind(cell, 4)) for kind in (Scanned, Looped))
        backward = jax.grad(scanned, (0, 1))(params, inputs)
        return [jax.jvp(f, (params, inputs), towards)[1] for f in (scanned, looped)], backward

    (mine, expected), gradients = slopes(params, steps.inputs)
    np.testing.assert_allclose(mine, expected, rtol=1e-4)
    products = jax.tree.map(lambda g, t: np.sum(np.asarray(g) * t), gradients, towards)
    np.testing.assert_allclose(mine, sum(jax.tree.leaves(products)), rtol=1e-4)


def test_final_carry():
    """If no row ends early, the final carry and its gradient are the loop's, too."""
    steps = some_steps(6, ends=[6, 6], answers_from=[4, 6])
    for cell in (Leaky(), Notebook()):
        params = parameters(Scanned(cell, 6), steps)

        def loss(params, module):
            carry, _ = module.apply({"params": params}, steps)
            state, memory = carry[:2] if isinstance(carry, tuple) else (carry, carry)
            # Slot 5 and 6 of row 0 hold nothing that counts; slots up to 4 do.
            return jnp.sum(jnp.sin(state)) + jnp.sum(jnp.cos(memory[..., :5])), carry

        results = [
            jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)(params, module)
            for module in (Scanned(cell, 6), Looped(cell, 6))
        ]
        close(*[((value, gradient)) for (value, _), gradient in results])
        if isinstance(cell, AppendOnlyCell):
            for index in (2, 3):  # `written` and the time.
                np.testing.assert_array_equal(results[0][0][1][index], results[1][0][1][index])


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_any_length_against_numpy(length):
    steps = some_steps(length, ends=[length, max(1, length // 2)])
    module = Scanned(Leaky(), 0)
    params = parameters(module, steps)
    carry, (outputs, doubled) = jax.tree.map(np.asarray, jax.jit(module.apply)({"params": params}, steps))
    kernel, hidden = (np.asarray(params["cell"][name], np.float64) for name in ("kernel", "first"))
    for time in range(length):
        hidden = np.tanh(hidden @ kernel + np.asarray(steps.inputs[time], np.float64))
        valid = steps.valid[time]
        np.testing.assert_allclose(outputs[time][valid], hidden[valid], atol=1e-5)
        np.testing.assert_allclose(doubled[time][valid], 2 * hidden[valid], atol=1e-5)
    np.testing.assert_allclose(carry[:1], hidden[:1], atol=1e-5)


@pytest.mark.parametrize("cell", [Leaky(), Notebook()], ids=["plain", "append_only"])
def test_chunks_after_the_last_row_are_skipped_without_a_trace(cell):
    """A capacity several chunks longer than every row changes neither values nor gradients."""
    real, capacity = CHUNK + 3, 4 * CHUNK + 1
    long = some_steps(capacity, ends=[real, 4], answers_from=[8, 3])
    short = jax.tree.map(lambda x: x[:real], long)
    params = parameters(Scanned(cell, 8), short)
    values, (d_params, d_inputs) = value_and_gradients(Scanned(cell, 8), params, short)
    long_values, (long_d_params, long_d_inputs) = value_and_gradients(Scanned(cell, 8), params, long)
    long_values, long_d_inputs = jax.tree.map(np.asarray, (long_values, long_d_inputs))
    close((values, d_params, d_inputs), (jax.tree.map(lambda x: x[:real], long_values), long_d_params,
                                         long_d_inputs[:real]))  # fmt: skip
    np.testing.assert_array_equal(long_d_inputs[real:], 0)


def test_what_is_sown_is_stacked_over_time():
    steps = some_steps(CHUNK + 1, ends=[CHUNK + 1, 2])
    module = Scanned(Leaky(), 0)
    params = parameters(module, steps)
    run = jax.jit(lambda params, steps: module.apply({"params": params}, steps, mutable=["traces"]))
    (_, (outputs, _)), sown = jax.tree.map(np.asarray, run(params, steps))
    (norms,) = sown["traces"]["cell"]["norm"]
    assert norms.shape == steps.valid.shape
    np.testing.assert_allclose(norms[steps.valid], np.sum(outputs**2, axis=-1)[steps.valid], rtol=1e-5)


class Noisy(nn.Module):
    """Its output is noise, times a parameter."""

    def setup(self):
        self.gain = self.param("gain", nn.initializers.ones, ())

    def start(self, batch_shape, steps=0):
        return jnp.zeros(batch_shape)

    def __call__(self, carry, step):
        return carry, self.gain * jax.random.normal(self.make_rng("dropout"), step.valid.shape)


class NoisyNotebook(AppendOnlyCell):
    """The same, with a growing memory."""

    def setup(self):
        self.gain = self.param("gain", nn.initializers.ones, ())

    def start(self, batch_shape, steps):
        zero = jnp.zeros(batch_shape, jnp.int32)
        return jnp.zeros(batch_shape), jnp.zeros((*batch_shape, 1 + steps)), zero, jnp.zeros((), jnp.int32)

    def advance(self, state, memory, filled, step):
        return state, state, self.gain * jax.random.normal(self.make_rng("dropout"), step.valid.shape)


@pytest.mark.parametrize("cell", [Noisy(), NoisyNotebook()], ids=["plain", "append_only"])
def test_noise_differs_between_times_and_is_drawn_again_in_the_backward_pass(cell):
    """The gradient in the factor of all noise is the sum of the noise."""
    length = CHUNK + 3
    steps, module = some_steps(length, ends=[length, length]), Scanned(cell, length)

    def total(params):
        outputs = module.apply({"params": params}, steps, rngs={"dropout": jax.random.key(0)})[1]
        return jnp.sum(outputs), outputs

    gradient, outputs = jax.jit(jax.grad(total, has_aux=True))({"cell": {"gain": jnp.ones(())}})
    assert len(np.unique(outputs)) == outputs.size == 2 * length
    np.testing.assert_allclose(gradient["cell"]["gain"], np.sum(outputs), rtol=1e-5)


def test_any_valid_stays_one_scalar_under_vmap():
    def program(valid, x):
        return jax.lax.cond(any_valid(valid), lambda x: x + 1, lambda x: x, x)

    valid, x = np.array([[False, True], [False, False]]), np.zeros(2, np.float32)
    mapped = jax.jit(jax.vmap(program))
    np.testing.assert_array_equal(mapped(valid, x), [1, 1])
    np.testing.assert_array_equal(mapped(np.zeros_like(valid), x), [0, 0])
    assert " cond[" in str(jax.make_jaxpr(mapped)(valid, x))


def test_seeds_in_one_program_equal_seeds_alone():
    steps = some_steps(CHUNK + 4, ends=[CHUNK + 1, 3], answers_from=[6, 2])
    module = Scanned(Notebook(), 6)
    params = jax.tree.map(lambda x: np.stack([x, 0.5 - x]), parameters(module, steps))

    def gradients(params):
        def loss(params):
            outputs = module.apply({"params": params}, steps)[1][0]
            return jnp.sum(jnp.where(steps.valid[..., None], outputs, 0) ** 2)

        return jax.grad(loss)(params)

    together = jax.tree.map(np.asarray, jax.jit(jax.vmap(gradients))(params))
    one = jax.jit(gradients)
    for seed in range(2):
        alone = one(jax.tree.map(lambda x, seed=seed: x[seed], params))
        close(jax.tree.map(lambda x, seed=seed: x[seed], together), alone)


def test_backward_memory_grows_linearly():
    """Doubling the sequence doubles the memory of LANTM's compiled gradient; storing all steps would give x 4."""
    model = LANTM(hidden_size=8, memory_width=8, embedding_size=4, spec=Spec(vocabulary=4, output_size=5))

    def temporary_bytes(length):
        inputs, mask = jnp.zeros((2, length // 2), jnp.int32), jnp.ones((2, length // 2), bool)
        params = jax.eval_shape(model.init, jax.random.key(0), inputs, mask, mask)["params"]
        gradient = jax.jit(jax.grad(lambda params: jnp.sum(model.apply({"params": params}, inputs, mask, mask) ** 2)))
        return gradient.lower(params).compile().memory_analysis().temp_size_in_bytes

    small, large = (temporary_bytes(length) for length in (256, 512))
    assert large < 2.2 * small


class HalfNotebook(Notebook):
    """Its entries have half the precision of its memory."""

    def advance(self, state, memory, filled, step):
        state, entry, output = super().advance(state, memory, filled, step)
        return state, entry.astype(jnp.bfloat16), output


def test_entries_are_cast_to_the_type_of_the_memory():
    steps = Step(jnp.ones((3, 2, WIDTH)), jnp.zeros((3, 2), bool), jnp.ones((3, 2), bool))
    scanned, looped = Scanned(HalfNotebook(), 3), Looped(HalfNotebook(), 3)
    variables = scanned.init(jax.random.key(0), steps)

    def mean(module, variables):
        return jnp.mean(module.apply(variables, steps)[1][1])

    got, expected = (jax.value_and_grad(functools.partial(mean, module))(variables) for module in (scanned, looped))
    chex.assert_trees_all_close(got, expected, rtol=1e-2)
