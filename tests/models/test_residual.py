"""DeltaNet, Mamba-2 and xLSTM against float64 twins that go step by step, with matrices written out."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models
from lenmem.models.delta_net import DeltaNet, DeltaRule
from lenmem.models.mamba import Mamba2, StateSpace
from lenmem.models.xlstm import XLSTM, MatrixLSTM, ScalarLSTM
from lenmem.nn.residual import ResidualEncoder, ShortConvolution
from lenmem.tasks.chomsky import ParityCheck
from lenmem.tasks.lantm import Copy
from tests.drawing import drawn
from tests.learning import briefly
from tests.models.twin import sigmoid, softplus

WIDTH, HEADS, LENGTH = 8, 2, 9
SMALL = {"hidden_size": WIDTH, "heads": HEADS, "layers": 2, "feedforward_size": 6}
MODELS = {
    "delta": DeltaNet(**SMALL),
    "negative": DeltaNet(**SMALL, negative_eigenvalues=True),
    "gated": DeltaNet(**SMALL, decay=True, gated_output=True),
    "product": DeltaNet(**SMALL, negative_eigenvalues=True, products=3, decay=True, kernel_size=2),
    "plain": DeltaNet(**SMALL, kernel_size=0),
    "wide": DeltaNet(**SMALL | {"heads": 3}, head_size=5, products=2, gated_output=True),
    "mamba": Mamba2(**{**SMALL, "feedforward_size": None}, state_size=3, kernel_size=3),
    "mlstm": XLSTM(**SMALL),
    "slstm": XLSTM(**SMALL, cell="slstm"),
}


def silu(x):
    return x * sigmoid(x)


def rms(x, epsilon):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def convolved(p, xs):
    """The last K states, each with its kernel: the kernel's last row belongs to the oldest."""
    kernel, outputs = p["kernel"], []
    for t in range(len(xs)):
        total = p.get("bias", 0.0)
        for back in range(min(len(kernel), t + 1)):
            total = total + kernel[back] * xs[t - back]
        outputs.append(silu(total))
    return np.array(outputs)


def blocked(p, x):
    """A block-diagonal matrix, written out."""
    count, size, _ = p["kernel"].shape
    matrix = np.zeros((count * size, count * size))
    for i, block in enumerate(p["kernel"]):
        matrix[i * size : (i + 1) * size, i * size : (i + 1) * size] = block
    return x @ matrix


def delta(model, p, xs):
    heads, n = model.heads, model.products
    size = model.head_size or WIDTH // heads

    def vectors(name):
        x = xs @ p[name]["kernel"]
        return convolved(p[f"{name}_convolution"], x) if model.kernel_size else silu(x)

    queries, keys, values = vectors("query"), vectors("key"), vectors("value")
    beta = sigmoid(xs @ p["strength"]["kernel"]) * (2 if model.negative_eigenvalues else 1)
    states, outputs = [np.zeros((size, size)) for _ in range(heads)], []
    for t in range(len(xs)):
        reads = []
        for head in range(heads):
            at = slice(head * size, (head + 1) * size)
            if model.decay:
                rate, bias = np.exp(p["decay"]["log_rate"][head]), p["decay"]["step_bias"][head]
                states[head] = states[head] * np.exp(
                    -rate * softplus((xs[t] @ p["decay_signal"]["kernel"])[head] + bias)
                )
            for i in range(n):
                key = keys[t].reshape(n, heads * size)[i, at]
                key = key / np.sqrt(np.sum(key**2) + 1e-10)
                strength = beta[t].reshape(n, heads)[i, head]
                states[head] = states[head] @ (np.eye(size) - strength * np.outer(key, key))
                states[head] = states[head] + strength * np.outer(values[t].reshape(n, heads * size)[i, at], key)
            query = queries[t, at] / np.sqrt(np.sum(queries[t, at] ** 2) + 1e-10)
            read = states[head] @ query / np.sqrt(size)
            reads.append(rms(read, 1e-5) * p["read_norm"]["scale"])
        read = np.concatenate(reads)
        outputs.append(read * silu(xs[t] @ p["gate"]["kernel"]) if model.gated_output else read)
    return np.array(outputs) @ p["out"]["kernel"]


def mamba(model, p, xs):
    inner, size = 2 * WIDTH, 2 * WIDTH // HEADS
    mixed = convolved(p["convolution"], xs @ p["in"]["kernel"])
    states, outputs = np.zeros((HEADS, size, model.state_size)), []
    for t, u in enumerate(xs):
        x, key, query = np.split(mixed[t], [inner, inner + model.state_size])
        reads = []
        for head in range(HEADS):
            mine = x[head * size : (head + 1) * size]
            step = softplus((u @ p["step"]["kernel"])[head] + p["decay"]["step_bias"][head])
            decay = np.exp(-np.exp(p["decay"]["log_rate"][head]) * step)
            states[head] = decay * states[head] + step * np.outer(mine, key)
            reads.append(states[head] @ query + p["skip"][head, 0, 0] * mine)
        outputs.append(rms(np.concatenate(reads) * silu(u @ p["gate"]["kernel"]), 1e-5))
    return (np.array(outputs) * p["read_norm"]["scale"]) @ p["out"]["kernel"]


def mlstm(model, p, xs):
    """Without the stabiliser m: the gates as they are, and a bound of 1 on the denominator."""
    inner, size = 2 * WIDTH, 2 * WIDTH // HEADS
    raw = xs @ p["in"]["kernel"]
    seen = convolved(p["convolution"], raw)
    queries, keys, values = blocked(p["query"], seen), blocked(p["key"], seen), blocked(p["value"], raw)
    cells, sums, outputs = np.zeros((HEADS, size, size)), np.zeros((HEADS, size)), []
    for t in range(len(xs)):
        joined = np.concatenate([queries[t], keys[t], values[t]])
        write = np.exp(joined @ p["input_gate"]["kernel"] + p["input_gate"]["bias"])
        forget = sigmoid(joined @ p["forget_gate"]["kernel"] + p["forget_gate"]["bias"])
        reads = []
        for head in range(HEADS):
            at = slice(head * size, (head + 1) * size)
            key = keys[t, at] / np.sqrt(size)
            cells[head] = forget[head] * cells[head] + write[head] * np.outer(values[t, at], key)
            sums[head] = forget[head] * sums[head] + write[head] * key
            # The published 1e-6 is added to the denominator after it was divided by e^m.
            reads.append(normed(cells[head] @ queries[t, at] / max(abs(sums[head] @ queries[t, at]), 1.0)))
        outputs.append(np.concatenate(reads) * p["read_norm"]["scale"] + p["skip"] * seen[t])
    assert inner == len(outputs[0])
    return (np.array(outputs) * silu(xs @ p["gate"]["kernel"])) @ p["out"]["kernel"]


def slstm(model, p, xs):
    size = WIDTH // HEADS
    seen = convolved(p["convolution"], xs)
    cell, count, last = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    outputs = []
    for t in range(len(xs)):
        gates = []
        for i, (name, x) in enumerate(
            [("input_gate", seen[t]), ("forget_gate", seen[t]), ("value", xs[t]), ("output_gate", xs[t])]
        ):
            recurrent = blocked({"kernel": p["recurrent"][i]}, last)
            gates.append(blocked(p[name], x) + recurrent + p["bias"][i].reshape(WIDTH))
        into, forget, value, output = gates
        cell = sigmoid(forget) * cell + np.exp(into) * np.tanh(value)
        count = sigmoid(forget) * count + np.exp(into)
        last = sigmoid(output) * cell / count
        outputs.append(normed(last.reshape(HEADS, size)).reshape(WIDTH) * p["read_norm"]["scale"])
    return np.array(outputs)


def encoder_twin(model, p, xs):
    mixer = {DeltaNet: delta, Mamba2: mamba, XLSTM: slstm if getattr(model, "cell", "") == "slstm" else mlstm}
    for i in range(model.layers):
        xs = xs + mixer[type(model)](model, p[f"mixer_{i}"], rms(xs, 1e-6) * p[f"mixer_norm_{i}"]["scale"])
        if model.feedforward_size is not None:
            hidden = rms(xs, 1e-6) * p[f"feedforward_norm_{i}"]["scale"]
            gate = silu(hidden @ p[f"feedforward_gate_{i}"]["kernel"])
            xs = xs + (gate * (hidden @ p[f"feedforward_in_{i}"]["kernel"])) @ p[f"feedforward_out_{i}"]["kernel"]
    return rms(xs, 1e-6) * p["norm"]["scale"]


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def encoder_of(model):
    return ResidualEncoder(mixer=model.mixer, layers=model.layers, feedforward_size=model.feedforward_size)


@pytest.mark.parametrize("name", MODELS)
def test_the_encoder_is_its_twin(name):
    model = MODELS[name]
    encoder = encoder_of(model)
    states = normal(2, LENGTH, WIDTH)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [5]])
    params = drawn(encoder.init, states, mask, scale=0.7)
    got = np.asarray(briefly(lambda params: encoder.apply({"params": params}, states, mask))(params))
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, length in enumerate((LENGTH, 5)):
        expected = encoder_twin(model, wide, np.asarray(states[row, :length], np.float64))
        np.testing.assert_allclose(got[row, :length], expected, atol=3e-4)
        assert not np.any(got[row, length:])


@pytest.mark.parametrize("name", ["gated", "mamba", "mlstm"])
def test_gradients_with_decay_are_those_of_the_twin(name):
    """Along one direction, by differences of the twin in float64. Decays near 1, where float32 rounds, count too."""
    model = MODELS[name].clone(layers=1)
    encoder, states, mask = encoder_of(model), normal(1, 40, WIDTH), np.ones((1, 40), bool)
    params = drawn(encoder.init, states, mask)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(40, WIDTH))
    loss = briefly(jax.grad(lambda params: jnp.sum(weights * encoder.apply({"params": params}, states, mask)[0])))
    gradients = loss(params)["mixer_0"]
    changed = {"gated": "decay_signal", "mamba": "decay", "mlstm": "forget_gate"}[name]
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), wide["mixer_0"][changed])

    def twin(step):
        moved = jax.tree.map(lambda x, d: x + step * d, wide["mixer_0"][changed], direction)
        mixer = wide["mixer_0"] | {changed: moved}
        return np.sum(weights * encoder_twin(model, wide | {"mixer_0": mixer}, np.asarray(states[0], np.float64)))

    expected = (twin(1e-6) - twin(-1e-6)) / 2e-6
    got = sum(np.sum(g * d) for g, d in zip(*map(jax.tree.leaves, (gradients[changed], direction)), strict=True))
    assert got == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_position_sees_nothing_after_it(name):
    """In one layer, and so in all."""
    encoder = encoder_of(MODELS[name].clone(layers=1))
    states = normal(1, 70, WIDTH)  # more than one chunk
    mask = np.ones((1, 70), bool)
    params = drawn(encoder.init, states, mask)
    run = briefly(lambda states: encoder.apply({"params": params}, states, mask))
    before, after = (np.asarray(run(x)) for x in (states, states + (np.arange(70) == 66)[:, None].astype(np.float32)))
    np.testing.assert_allclose(before[:, :66], after[:, :66], atol=1e-6)
    assert np.all(np.abs(before[:, 66] - after[:, 66]).max(axis=-1) > 1e-3)


@pytest.mark.parametrize("cell", ["mlstm", "slstm"])
def test_exponential_gates_do_not_overflow(cell):
    """Input gates of e^200 are far beyond float32; outputs and gradients stay finite."""
    encoder = encoder_of(XLSTM(**{**SMALL, "layers": 1}, cell=cell))
    states, mask = 3 * normal(1, 30, WIDTH), np.ones((1, 30), bool)
    params = drawn(encoder.init, states, mask)
    mixer = params["mixer_0"]
    if cell == "slstm":
        bias = np.array(mixer["bias"])
        bias[0] = 200.0
        mixer = mixer | {"bias": bias}
    else:
        mixer = mixer | {"input_gate": mixer["input_gate"] | {"bias": np.full(HEADS, 200, np.float32)}}
    total = briefly(jax.value_and_grad(lambda p: jnp.sum(encoder.apply({"params": p}, states, mask) ** 2)))
    value, gradients = total(params | {"mixer_0": mixer})
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_the_convolution_shifts():
    """A kernel that is 1 for the state two positions back."""
    module = ShortConvolution(kernel_size=3)
    states = np.arange(1, 6, dtype=np.float32)[None, :, None]
    params = {"kernel": np.float32([[0], [0], [1]])}
    got = np.asarray(jax.jit(module.apply)({"params": params}, states))
    np.testing.assert_allclose(got[0, :, 0], silu(np.array([0.0, 0.0, 1.0, 2.0, 3.0])), rtol=1e-6)


def started(mixer, width):
    """Initial parameters."""
    return jax.tree.map(
        np.asarray, jax.jit(mixer.init)(jax.random.key(0), np.zeros((1, 2, width), np.float32))["params"]
    )


@pytest.mark.parametrize(
    ("mixer", "slowest"),
    [(DeltaRule(heads=400, head_size=1, decay=True), 0.01), (StateSpace(heads=400, state_size=1), 1.0)],
    ids=["delta", "mamba"],
)
def test_decays_start_in_their_published_ranges(mixer, slowest):
    """A is uniform up to 16, and the size of a step log-uniform from 0.001 to 0.1."""
    params = started(mixer, 200)
    rates, steps = np.exp(params["decay"]["log_rate"]), np.log(softplus(params["decay"]["step_bias"]))
    for values, low, high in ((rates, slowest, 16), (steps, np.log(1e-3), np.log(1e-1))):
        edge = 0.02 * (high - low)
        assert low - 1e-4 < values.min() < low + edge and high - edge < values.max() < high + 1e-4
        assert values.mean() == pytest.approx((low + high) / 2, abs=3 * edge)
    bound = np.abs(params["convolution" if "convolution" in params else "query_convolution"]["kernel"]).max()
    assert 0.99 * 4**-0.5 < bound <= 4**-0.5


def test_gates_of_xlstm_start_open_and_more_so_in_later_layers():
    np.testing.assert_allclose(started(MatrixLSTM(heads=4), 8)["forget_gate"]["bias"], [3, 4, 5, 6])
    first, last = (started(ScalarLSTM(heads=1, depth=depth), 5)["bias"][1, 0] for depth in (0, 1))
    np.testing.assert_allclose(first, 5 - 12 * np.linspace(0, 1, 5) ** 0.3, rtol=1e-5)
    np.testing.assert_allclose(last, 5 - 12 * np.linspace(0, 1, 5) ** 1.6, rtol=1e-5)


class Scaled(nn.Module):
    """In the place of a mixer."""

    gain: float

    def __call__(self, states):
        return self.gain * states


def test_a_mixer_is_told_its_depth():
    told = []

    def mixer(depth, name):
        told.append(depth)
        return Scaled(1.0, name=name)

    for layers in (1, 3):
        encoder = ResidualEncoder(mixer, layers, None)
        jax.eval_shape(encoder.init, jax.random.key(0), normal(1, 2, WIDTH), np.ones((1, 2), bool))
    assert told == [0, 0, 0.5, 1]


@pytest.mark.parametrize(("gain", "size"), [(1.0, None), (0.0, 6)], ids=["mixer", "feedforward"])
def test_what_each_sublayer_gives_is_dropped_in_training_only(gain, size):
    encoder = ResidualEncoder(lambda depth, name: Scaled(gain, name=name), 1, size, dropout=0.5)
    states, mask = normal(1, LENGTH, WIDTH), np.ones((1, LENGTH), bool)
    params = drawn(encoder.init, states, mask)

    @briefly
    def run(params):
        rngs = {"dropout": jax.random.key(0)}
        forms = ({}, {"rngs": rngs}, {"rngs": rngs, "deterministic": False})
        return [encoder.apply({"params": params}, states, mask, **form) for form in forms]

    quiet, again, noisy = run(params)
    np.testing.assert_array_equal(quiet, again)
    assert not np.allclose(quiet, noisy)


def test_blocks_of_mlstm_that_do_not_fit_are_one_clear_line():
    batch = (jnp.zeros((1, 3), jnp.int32), jnp.ones((1, 3), bool), jnp.ones((1, 3), bool))
    with pytest.raises(ValueError, match="hidden_size is 7; mLSTM needs a multiple of 2"):
        models.make("mlstm", Copy().spec, hidden_size=7, heads=1).init(jax.random.key(0), *batch)


def test_heads_that_do_not_fit_are_one_clear_line():
    model = models.make("delta_net", Copy().spec, hidden_size=10, heads=4)
    batch = (jnp.zeros((1, 3), jnp.int32), jnp.ones((1, 3), bool), jnp.ones((1, 3), bool))
    with pytest.raises(ValueError, match="4 heads do not divide a hidden size of 10"):
        model.init(jax.random.key(0), *batch)


def test_aligned_tasks_are_read_as_they_come():
    assert models.supports(DeltaNet(), ParityCheck().spec) is None
