"""The Neural Data Router against a published layer's numbers and against float64 twins written from the equations."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models
from lenmem.evaluation import plots, traces
from lenmem.evaluation.plots.ndr import data_flow_of
from lenmem.models.ndr import NDR, from_torch_state
from lenmem.models.ndr_baselines import LSTMClassifier, LSTMEncoder
from lenmem.nn.act import AdaptiveSteps, Repeated
from lenmem.nn.attention import Layout
from lenmem.nn.ndr import (
    ContentAttention,
    GatedLayer,
    GatedPositionAttention,
    GeometricAttention,
)
from lenmem.nn.positions import PositionScores
from lenmem.nn.transformer import PostNormLayer
from lenmem.types import STREAMS, Batch, Spec
from tests.drawing import drawn as drawn_by
from tests.learning import briefly
from tests.models.twin import lstm_step, sigmoid, softmax

CTL = Spec(vocabulary=19, output_size=8, shapes=lambda capacity: (capacity, 1))
ARITHMETIC = dataclasses.replace(CTL, vocabulary=14, output_size=10)
LISTOPS = dataclasses.replace(CTL, vocabulary=15, output_size=10)
CAUSAL = Spec(vocabulary=6, output_size=5, alignment="aligned", causal=True)

LENGTHS = (5, 2)
MASK = jax.device_put(np.arange(6) < np.array(LENGTHS)[:, None])
STATES = jax.device_put(np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32))
DIRTY = np.where(MASK[..., None], STATES, np.float32(1e6))


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def drawn(module, *arguments, scale=0.8):
    """Nothing is 0 or 1, and almost nothing is linear."""
    return drawn_by(module.init, *arguments, scale=scale)


def pair(spec, lengths=LENGTHS, seed=0):
    """Arguments of a model call: rows of one answer slot."""
    inputs = np.random.default_rng(seed).integers(0, spec.vocabulary, (len(lengths), max(lengths)))
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return tuple(map(jax.device_put, (inputs, mask, np.ones((len(lengths), 1), bool))))


# The published layer --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    return dict(np.load(Path(__file__).parent / "data" / "ndr_layer.npz"))


def arrays(published, prefix):
    return {name.removeprefix(prefix): value for name, value in published.items() if name.startswith(prefix)}


def test_a_published_layer(published):
    layer = GatedLayer(GeometricAttention(features=16, heads=4, parent=None), 40)
    params = from_torch_state(arrays(published, "param/"))
    states, mask = jnp.asarray(published["in/x"]), jnp.asarray(~published["in/pad_mask_true_is_padding"])
    real = np.asarray(mask)
    shapes = jax.eval_shape(functools.partial(layer.init, jax.random.key(0)), states, mask)["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)

    @briefly
    def run(params, states):
        def goal(params, states):
            outputs = layer.apply({"params": params}, states, mask)
            return jnp.sum(outputs * published["grad_weight"]), outputs

        looked = ["traces", "intermediates"]
        inside = layer.apply({"params": params}, states, mask, mutable=looked, capture_intermediates=True)
        thrice = Repeated(layer, 3).apply({"params": {"layer": params}}, states, mask)
        return jax.grad(goal, (0, 1), has_aux=True)(params, states), inside, thrice

    (gradients, outputs), (traced, inside), thrice = jax.tree.map(np.asarray, run(params, states))
    for got, wanted in ((outputs, "out"), (traced, "out"), (thrice, "out_3_steps")):
        np.testing.assert_allclose(got[real], published[wanted][real], atol=1e-5)
    middle = inside["intermediates"]
    attention = np.swapaxes(inside["traces"]["attention"]["attention"][0], 1, 2)
    np.testing.assert_allclose(attention[real], np.swapaxes(published["mid/attention"], 1, 2)[real], atol=1e-5)
    gate = sigmoid(np.asarray(middle["gate_out"]["__call__"][0]))
    np.testing.assert_allclose(gate[real], published["mid/gate"][real], atol=1e-5)
    np.testing.assert_allclose(inside["traces"]["gate"][0][real], published["mid/gate"].mean(-1)[real], atol=1e-5)
    for name, wanted in (("attention_norm", "mid/a_after_ln"), ("update_norm", "mid/u_after_ln")):
        np.testing.assert_allclose(middle[name]["__call__"][0][real], published[wanted][real], atol=1e-5)
    expected = (from_torch_state(arrays(published, "grad/")), published["grad/x"])
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), gradients, expected)


def test_what_is_missing_of_a_layer_is_named(published):
    state = arrays(published, "param/")
    del state["g1.bias"], state["att.scale"]
    with pytest.raises(ValueError, match=r"missing: att\.scale, g1\.bias"):
        from_torch_state(state)


# Parameters -----------------------------------------------------------------------------------------------------------


def counted(model, spec):
    """Number of parameters."""
    model = model.clone(spec=spec)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), *pair(spec)))["params"]
    return sum(x.size for x in jax.tree.leaves(params))


base: dict[str, Any] = {"hidden_size": 128, "feedforward_size": 256, "heads": 4, "steps": 11}
big: dict[str, Any] = {"hidden_size": 512, "heads": 16, "steps": 20}
listops: dict[str, Any] = {"hidden_size": 256, "heads": 16, "feedforward_size": 1024, "steps": 6}
POSITIONS = 256 * 256
"""The published geometric attention holds a map of positions that it never uses; of width 256."""


@pytest.mark.parametrize(
    ("name", "fields", "spec", "published", "unused"),
    [
        ("ndr", {}, CTL, 731_405, POSITIONS),
        ("ndr", {"heads": 4, "feedforward_size": 1024, "steps": 15}, ARITHMETIC, 994_837, POSITIONS),
        ("ndr", {**big, "feedforward_size": 1024, "test_steps": 24}, LISTOPS, 2_918_957, 4 * POSITIONS),
        # A LayerNorm in addition to the tanh, and the offset of a softmax.
        ("ndr_absolute_relative_gate", {"feedforward_size": 1024}, CTL, 994_059, 2 * 256 + 1),
        ("ndr_relative_gate", {"feedforward_size": 1024}, CTL, 994_059, 2 * 256 + 1 + 256 + 1),
        ("ndr_absolute_relative_gate", {**big, "feedforward_size": 2048}, LISTOPS, 3_960_860, 2 * 512 + 1),
        ("transformer_shared", base, CTL, 135_688, 0),
        ("transformer_relative", base, CTL, 152_330, 1),
        ("transformer_geometric", base, CTL, 153_235, POSITIONS // 4),
        ("transformer_relative", listops, LISTOPS, 861_708, 1),
        ("act_relative", base, CTL, 152_330 + 128 + 1, 1),
    ],
)
def test_published_parameter_counts(name, fields, spec, published, unused):
    assert counted(models.make(name, **fields), spec) == published - unused


@pytest.mark.parametrize(
    ("fields", "spec", "published", "layers"),
    [
        ({}, CTL, 176_328, [200]),
        ({"bidirectional": True}, CTL, 96_328, [100, 100]),
        ({"hidden_size": 512, "layers": 4, "embedding_size": 512}, LISTOPS, 8_418_314, [512] * 4),
    ],
)
def test_published_parameter_counts_of_lstms(fields, spec, published, layers):
    """Torch has two biases instead of one; we have a begin token."""
    model = LSTMClassifier(**fields)
    assert counted(model, spec) == published - 4 * sum(layers) + model.embedding_size


def test_initial_distributions():
    """As measured in the published code at the size of CTL: mean gate 0.073, weights of a target sum to 0.99."""
    model = NDR(spec=CTL, steps=1)
    arguments = pair(CTL, (6,) * 64)

    @briefly
    def start(key):
        params = model.init(key, *arguments)["params"]
        _, mutated = model.apply({"params": params}, *arguments, mutable=["traces"])
        return params["encoder"]["depth"]["layer"], mutated["traces"]["encoder"]["depth"]["layer"]

    layer, inside = start(jax.random.key(0))
    assert np.mean(inside["gate"][0]) == pytest.approx(0.073, abs=0.006)
    assert np.mean(np.sum(inside["attention"]["attention"][0], -1)) == pytest.approx(0.99, abs=0.015)
    bounds = {
        ("attention", "query"): (6 / 512) ** 0.5,
        ("attention", "direction"): 1 / 16,
        ("feedforward_in",): (2 * 6 / 768) ** 0.5,
        ("feedforward_out",): 5 / 3 * (6 / 768) ** 0.5,
        ("gate_in",): (2 * 6 / 512) ** 0.5,
        ("gate_out",): (6 / 512) ** 0.5,
    }
    for path, bound in bounds.items():
        kernel = functools.reduce(lambda tree, name: tree[name], path, layer)["kernel"]
        assert 0.95 * bound < np.max(np.abs(kernel)) <= bound
        assert np.std(kernel) == pytest.approx(bound / 3**0.5, rel=0.05)
    np.testing.assert_array_equal(layer["gate_out"]["bias"], -3)
    np.testing.assert_allclose(np.max(np.abs(layer["gate_in"]["bias"])), 1 / 16, rtol=0.05)


def test_initial_attention_by_content():
    states, mask = np.zeros((1, 2, 64), np.float32), np.ones((1, 2), bool)
    params = briefly(ContentAttention(features=64, heads=2).init)(jax.random.key(0), states, mask)["params"]
    for name, bound in (("query", 3 / 64), ("key", 2 / 64), ("value", 2 / 64), ("merge", 1 / 64)):
        assert np.max(np.abs(params[name]["kernel"])) == pytest.approx(bound**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("init", "std"), [("normal", 1.0), ("kaiming", (2 / 512) ** 0.5), ("xavier", (2 / (19 + 2 + 512)) ** 0.5)]
)
def test_initial_embeddings(init, std):
    model = NDR(spec=CTL, hidden_size=512, steps=1, embedding_init=init)

    @briefly  # The rest of the parameters is never computed.
    def table(key):
        return model.init(key, *pair(CTL))["params"]["Readout_0"]["embedding"]["Embed_0"]["embedding"]

    assert np.std(table(jax.random.key(0))) == pytest.approx(std, rel=0.03)


# Twins ----------------------------------------------------------------------------------------------------------------


def linear(params, x):
    return x @ params["kernel"] + params.get("bias", 0)


def layer_norm(params, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * params["scale"] + params["bias"]


def feedforward(params, name, x):
    return linear(params[f"{name}_out"], np.maximum(linear(params[f"{name}_in"], x), 0))


def sinusoid(position, width):
    angles = position * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1)


def geometric_row(logits, i, visible):
    """Equations 6 to 8 for one target: go outward, right neighbour first."""
    weights, left = np.zeros(len(logits)), 1.0
    for distance in range(1, len(logits)):
        for j in (i + distance, i - distance):
            if 0 <= j < len(logits) and visible(j):
                weights[j] = left * sigmoid(logits[j])
                left *= 1 - sigmoid(logits[j])
    return weights


def attended(module, p, h):
    """Any of the three attentions on one row without padding, by loops."""
    n, d = h.shape
    size = d // module.heads
    query, key, value = (linear(p[name], h).reshape(n, module.heads, size) for name in ("query", "key", "value"))
    mixed = np.zeros((n, module.heads, size))
    for head in range(module.heads):
        for i in range(n):
            q, logits = query[i, head], np.zeros(n)
            for j in range(n):
                k = key[j, head]
                if isinstance(module, GeometricAttention):
                    left, right = linear(p["direction"], h[i]).reshape(module.heads, 2)[head]
                    content = p["content_scale"] * (q + p["query_bias"][head]) @ k
                    logits[j] = content + p["direction_scale"] * (right if j > i else left) + p["offset"]
                elif module.encoding is not None:
                    r = sigmoid(linear(p["relative_gate"], h[i]))[head] if "relative_gate" in p else 1
                    place = r * sinusoid(j - i, d) + (1 - r) * sinusoid(j, d)
                    place = linear(p["position"], place).reshape(module.heads, size)[head]
                    logits[j] = (q + p["content_bias"][head]) @ k + (q + p["position_bias"][head]) @ place
                    logits[j] *= p["scale"]
                else:
                    logits[j] = q @ k / np.sqrt(size)
            seen = i if module.causal else n - 1
            if isinstance(module, GeometricAttention):
                weights = geometric_row(logits, i, lambda j, seen=seen: j <= seen)
                weights = weights / max(weights.sum(), 1e-12) if module.normalize else weights
            else:
                weights = np.concatenate([softmax(logits[: seen + 1]), np.zeros(n - seen - 1)])
            mixed[i, head] = weights @ value[:, head]
    return linear(p["merge"], mixed.reshape(n, d))


def layer_twin(layer, p, h):
    a = layer_norm(p["attention_norm"], h + attended(layer.attention, p["attention"], h))
    u = feedforward(p, "feedforward", a)
    if isinstance(layer, PostNormLayer):
        return layer_norm(p["feedforward_norm"], a + u)
    u = layer_norm(p["update_norm"], u) if layer.update == "norm" else np.tanh(u)
    g = sigmoid(feedforward(p, "gate", a))
    return (1 - g) * h + g * u


two: dict[str, Any] = {"features": 8, "heads": 2, "parent": None}


def relative(kind: Any = ContentAttention, **fields: Any) -> Any:
    """Attention by content and relative position, as the published code has it."""
    dropout = fields.get("key_dropout", 0.0)
    scores = PositionScores("relative", 2, 8, dropout=dropout, flat=True, parent=None)
    layout = Layout(merge="merge", flat=True, joined=True)
    return kind(encoding=scores, learned_scale=True, layout=layout, **two, **fields)


def post_norm(attention: Any) -> PostNormLayer:
    return PostNormLayer(attention=attention, feedforward_size=12, initialization="glorot")


@pytest.mark.parametrize(
    "layer",
    [
        GatedLayer(relative(GatedPositionAttention), 12, gate_size=5, update="tanh"),
        post_norm(relative(causal=True)),
        post_norm(ContentAttention(**two, causal=True)),
        post_norm(GeometricAttention(**two, normalize=True)),
        GatedLayer(GeometricAttention(**two, causal=True), 12),
    ],
    ids=["gated_absolute_relative", "causal_relative", "causal_absolute", "normalized", "causal_geometric"],
)
def test_layers_equal_the_twin(layer):
    model = Repeated(layer, 2)
    at = jnp.arange(STATES.shape[1])
    params = drawn(model, STATES, MASK, at)
    outputs = np.asarray(briefly(model.apply)({"params": params}, DIRTY, MASK, at))
    for row, n in enumerate(LENGTHS):
        h = np.asarray(STATES[row, :n], np.float64)
        for _ in range(2):
            h = layer_twin(layer, float64(params)["layer"], h)
        np.testing.assert_allclose(outputs[row, :n], h, atol=2e-4)


class Rotor(nn.Module):
    """A layer with states that are easy to follow."""

    dropout: float = 0.0

    @nn.compact
    def __call__(self, states, mask):
        states = jnp.tanh(nn.Dense(states.shape[-1])(states))
        return nn.Dropout(self.dropout, deterministic=not self.dropout)(states)


@pytest.mark.parametrize(("variant", "published"), [("graves", False), ("dehghani", True)])
@pytest.mark.parametrize("steps", [2, 6])
def test_adaptive_steps_equal_the_twin(variant, published, steps):
    model = AdaptiveSteps(Rotor(), steps, variant, threshold=0.9, penalty=0.5, published_penalty=published)
    params = drawn(model, STATES, MASK)
    run = briefly(functools.partial(model.apply, mutable=["traces", "losses"]))
    outputs, mutated = jax.tree.map(np.asarray, run({"params": params}, DIRTY, MASK))
    p, penalty, halted, weights = float64(params), 0.0, set(), np.zeros((steps, 2, 6))
    for row, n in enumerate(LENGTHS):
        for i in range(n):
            h, q = np.asarray(STATES[row, i], np.float64), []
            states = []
            for _ in range(steps):
                q.append(sigmoid(linear(p["halting_unit"], h))[0])
                h = np.tanh(linear(p["layer"]["Dense_0"], h))
                states.append(h)
            reached = [t for t in range(steps) if sum(q[: t + 1]) > 0.9]
            last = reached[0] if reached else steps - 1
            halted.add(bool(reached))
            weight = q[: last + 1]
            if reached or variant == "graves":
                weight[last] = 1 - sum(q[:last])
                penalty += 0.5 * weight[last] / (max(LENGTHS) if published else n) / len(LENGTHS)
            weights[: last + 1, row, i] = weight
            output = np.zeros(8)
            for w, state in zip(weight, states[: last + 1], strict=True):
                output = output + w * state if variant == "graves" else (1 - w) * output + w * state
            np.testing.assert_allclose(outputs[row, i], output, atol=1e-5)
    assert halted == ({True} if steps == 6 else {True, False})
    np.testing.assert_allclose(mutated["losses"]["ponder"][0], penalty, rtol=1e-5)
    np.testing.assert_allclose(mutated["traces"]["halting"][0], weights, atol=1e-6)
    np.testing.assert_array_equal(outputs[~np.asarray(MASK)], 0)


# Fields ---------------------------------------------------------------------------------------------------------------


def test_gate_drop_copies_columns_in_training_only():
    states, mask = np.random.default_rng(0).normal(size=(40, 6, 8)).astype(np.float32), np.ones((40, 6), bool)
    layers = [GatedLayer(ContentAttention(**two), 12, gate_drop=rate) for rate in (0.0, 0.3)]
    params = drawn(layers[0], states, mask)

    @briefly
    def run(params, key):
        plain, idle, dropped = (
            layer.apply({"params": params}, states, mask, deterministic=still, rngs={"gate": key})
            for layer, still in ((layers[0], False), (layers[1], True), (layers[1], False))
        )
        return plain, idle, dropped

    plain, idle, dropped = map(np.asarray, run(params, jax.random.key(1)))
    np.testing.assert_array_equal(idle, plain)
    copied = np.all(dropped == states, axis=-1)
    assert np.mean(copied) == pytest.approx(0.3, abs=0.08)
    np.testing.assert_allclose(dropped[~copied], plain[~copied], atol=1e-6)


class Scaled(nn.Module):
    """In the place of attention."""

    gain: float

    def __call__(self, states, mask, *, deterministic=True):
        return self.gain * states


@pytest.mark.parametrize(("gain", "changed"), [(1.0, [True, True, True]), (0.0, [False, True, True])])
def test_a_gated_layer_drops_what_attention_gives_and_the_hidden_units_of_both_networks(gain, changed):
    layer = GatedLayer(Scaled(gain, parent=None), 12, dropout=0.5)
    params = drawn(layer, STATES, MASK)
    options: dict[str, Any] = {"rngs": {"dropout": jax.random.key(0)}, "mutable": ["intermediates"]}

    def seen(still):
        found = layer.apply(
            {"params": params}, STATES, MASK, deterministic=still, capture_intermediates=True, **options
        )
        parts = found[1]["intermediates"]
        return [parts[name]["__call__"][0] for name in ("attention_norm", "feedforward_out", "gate_out")]

    assert [bool(np.any(a != b)) for a, b in zip(seen(False), seen(True), strict=True)] == changed


@pytest.mark.parametrize("attention", [GeometricAttention(**two, key_dropout=0.5), relative(key_dropout=0.5)])
def test_keys_are_dropped_afresh_in_every_step(attention):
    arguments = STATES[:1], MASK[:1], jnp.arange(STATES.shape[1])
    model = Repeated(GatedLayer(attention, 12), 2)
    params = drawn(model, *arguments)
    params["layer"]["gate_out"] = {"kernel": jnp.zeros((8, 8)), "bias": jnp.full(8, -1e3)}  # all steps start the same

    @briefly
    def run(params, key):
        return [
            model.apply({"params": params}, *arguments, deterministic=still, mutable=["traces"], rngs={"dropout": key})[
                1
            ]
            for still in (False, True)
        ]

    (first, second), (third, fourth) = (
        found["traces"]["layer"]["attention"]["attention"][0] for found in run(params, jax.random.key(0))
    )
    assert np.max(np.abs(first - second)) > 1e-2
    np.testing.assert_array_equal(third, fourth)


def test_depth_may_differ_outside_training():
    def depth(test_steps, train):
        model = NDR(spec=CTL, hidden_size=8, steps=2, test_steps=test_steps, feedforward_size=8)
        params, rngs = drawn(model, *pair(CTL)), dict.fromkeys(STREAMS, jax.random.key(0))
        _, mutated = jax.eval_shape(
            lambda: model.apply({"params": params}, *pair(CTL), train=train, rngs=rngs, mutable=["traces"])
        )
        return mutated["traces"]["encoder"]["depth"]["layer"]["gate"][0].shape[0]

    assert [depth(3, True), depth(3, False), depth(None, True), depth(None, False)] == [2, 3, 2, 2]


def test_answers_from_either_end():
    arguments = pair(CTL)
    models_ = [NDR(spec=CTL, hidden_size=8, steps=1, feedforward_size=8, column=c) for c in ("last", "first")]
    params = drawn(models_[0], *arguments)
    last, first = briefly(lambda p: [model.apply({"params": p}, *arguments) for model in models_])(params)
    assert np.max(np.abs(last - first)) > 1e-3


def test_causal_tasks_see_nothing_ahead():
    model = NDR(spec=CAUSAL, hidden_size=8, steps=2, heads=2, feedforward_size=8)
    assert models.supports(model, CAUSAL) is None
    assert "causal" in (models.supports(model, dataclasses.replace(CAUSAL, alignment="free")) or "")
    inputs = jnp.array([[1, 2, 3, 4, 5], [1, 2, 3, 0, 1]])
    arguments = (inputs, jnp.ones((2, 5), bool), jnp.ones((2, 5), bool))
    params = drawn(model, *arguments)
    free = model.clone(spec=dataclasses.replace(CAUSAL, causal=False))
    causal, free = briefly(lambda p: [m.apply({"params": p}, *arguments) for m in (model, free)])(params)
    np.testing.assert_allclose(causal[0, :3], causal[1, :3], atol=1e-6)
    assert np.max(np.abs(causal[0, 3:] - causal[1, 3:])) > 1e-3
    assert np.max(np.abs(free[0, :3] - free[1, :3])) > 1e-4


def test_a_recomputed_step_gives_the_same_gradient():
    kept, recomputed = (Repeated(Rotor(0.3), 3, remat=remat) for remat in (False, True))
    params = drawn(kept, STATES, MASK)

    def gradient(model, params):
        rngs = {"dropout": jax.random.key(1)}
        return jax.grad(lambda p: jnp.sum(model.apply({"params": p}, STATES, MASK, rngs=rngs) ** 2))(params)

    first, second = briefly(lambda p: [gradient(model, p) for model in (kept, recomputed)])(params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), first, second)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "sideways"}, "'sideways'.*geometric, absolute_relative, absolute, sinusoidal"),
        ({"halting": "never"}, "'never'.*none, graves, dehghani"),
        ({"update": "relu"}, "'relu'.*norm, tanh"),
        ({"heads": 3}, "3 heads do not divide a width of 256"),
        ({"steps": 0}, "steps is 0"),
        ({"normalize": True, "tolerance": 1e-3}, "not normalized"),
        ({"normalize": True, "tolerance": 0.0}, "not normalized"),
        ({"attention": "rotary", "block_size": 2}, "for geometric attention; attention is 'rotary'"),
    ],
)
def test_impossible_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: NDR(spec=CTL, **fields).init(jax.random.key(0), *pair(CTL)))


# LSTM baselines -------------------------------------------------------------------------------------------------------


def direction(params, h):
    """States of an LSTM with zero initial state."""
    size = params["kernel"].shape[1] // 4
    c, s, states = np.zeros(size), np.zeros(size), []
    for x in h:
        c, s = lstm_step(params, x, c, s)
        states.append(s)
    return np.stack(states)


@pytest.mark.parametrize("published", [False, True])
def test_lstm_reads_both_directions(published):
    model = LSTMEncoder(6, layers=2, bidirectional=True, summary=True, published_readout=published)
    params = drawn(model, STATES, MASK)
    outputs = np.asarray(briefly(model.apply)({"params": params}, DIRTY, MASK))
    p = float64(params)
    for row, n in enumerate(LENGTHS):
        h, backward_ends = np.asarray(STATES[row, :n], np.float64), []
        forward = backward = h
        for number in range(2):
            layer = p[f"layer_{number}"]
            forward, backward = direction(layer["cell"], h), direction(layer["backward"], h[::-1])
            h = np.concatenate([forward, backward[::-1]], -1)
            backward_ends.append(backward[-1])
        wanted = np.concatenate(backward_ends if published else [forward[-1], backward[-1]])
        np.testing.assert_allclose(outputs[row, :n], np.tile(wanted, (n, 1)), atol=1e-5)
    np.testing.assert_array_equal(outputs[~np.asarray(MASK)], 0)


def test_lstm_and_causal_tasks():
    assert models.supports(models.make("lstm_classifier"), CAUSAL) is None
    assert "from its end" in (models.supports(models.make("bilstm_classifier"), CAUSAL) or "")
    with pytest.raises(ValueError, match="hidden_size of 5"):
        LSTMEncoder(5, bidirectional=True).init(jax.random.key(0), STATES, MASK)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_traces_and_pictures(tmp_path):
    arguments = pair(CTL, (5, 3))
    batch = Batch(arguments[0], arguments[1], jnp.zeros((2, 1), int), arguments[2], arguments[2])
    model = NDR(spec=CTL, hidden_size=8, heads=2, steps=4, feedforward_size=8)
    found = traces.collect(model, drawn(model, *arguments), batch)
    assert found["attention"].shape == (2, 4, 2, 7, 7)
    assert found["gate"].shape == (2, 4, 7)
    flow = data_flow_of(found, 1)
    np.testing.assert_array_equal(flow.attention, found["attention"][1, :, :, :5, :5])
    assert flow.gates is not None
    np.testing.assert_array_equal(flow.gates, found["gate"][1, :, :5])
    assert flow.halting is None
    np.testing.assert_array_equal(flow.steps_used, [4] * 5)

    names = traces.column_names(CTL, batch, 1, lambda i: f"${i}")
    assert names == ["begin", *(f"${i}" for i in arguments[0][1, :3]), "end"]
    figure = plots.plot_ndr_attention(found, 1, tmp_path / "attention.png", names=names, title="$ 2")
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    for step, ax in enumerate(figure.axes[:4]):
        np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), flow.attention[step].max(axis=0))
        assert ax.get_title() == f"step {step + 1}"
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == [name.replace("$", r"\$") for name in names]
    figure = plots.plot_ndr_attention(found, 1, head=1)
    np.testing.assert_allclose(np.asarray(figure.axes[2].images[0].get_array()), flow.attention[2, 1])
    figure = plots.plot_ndr_gates(found, 1, tmp_path / "gates.png", names=names)
    np.testing.assert_allclose(np.asarray(figure.axes[0].images[0].get_array()), flow.gates)

    with pytest.raises(ValueError, match="head must lie between 0 and 1, got 2"):
        plots.plot_ndr_attention(found, 0, head=2)
    with pytest.raises(ValueError, match="columns must name 7, got 5 names"):
        plots.plot_ndr_gates(found, 0, names=names)
    with pytest.raises(ValueError, match="example must lie between 0 and 1, got 2"):
        data_flow_of(found, 2)
    with pytest.raises(ValueError, match="this model has gate"):
        data_flow_of({"gate": found["gate"]}, 0)
    with pytest.raises(ValueError, match="neither"):
        plots.plot_ndr_gates({name: found[name] for name in ("attention", "column")}, 0)
    halting = np.array([[0.5, 0.5], [0.5, 0.3], [0, 0.2]])[None]
    found = {"attention": np.zeros((1, 3, 1, 2, 2)), "column": np.ones((1, 2), bool), "halting": halting}
    np.testing.assert_array_equal(data_flow_of(found, 0).steps_used, [2, 3])
    np.testing.assert_allclose(np.asarray(plots.plot_ndr_gates(found, 0).axes[0].images[0].get_array()), halting[0])


def test_names_of_columns():
    batch = Batch(jnp.array([[3, 1]]), jnp.array([[True, True]]), *[jnp.ones((1, 2), bool)] * 3)
    assert traces.column_names(Spec(4, 4), batch, 0) == ["3", "1", "?", "?"]
    assert traces.column_names(CAUSAL, batch, 0, "abcd".__getitem__) == ["d", "b"]
    floats = batch._replace(inputs=jnp.array([[[0.0, 1.0, 5.0], [1.0, 0.0, 5.0]]]))
    assert traces.column_names(Spec(2, 4, channels=1), floats, 0)[:2] == ["1", "0"]
    assert traces.column_names(Spec(0, 4, channels=3), floats, 0)[:2] == ["0", "1"]
