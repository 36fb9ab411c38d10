"""The Transformer encoder and additive attention against float64 NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.transformer import Transformer
from lenmem.nn.attention import AdditiveAttention, MultiHeadAttention
from lenmem.nn.positions import PositionScores
from lenmem.nn.transformer import TransformerEncoder
from lenmem.placement import on_platform
from lenmem.types import Spec
from tests.drawing import drawn

WIDTH, HEADS = 8, 2
LENGTHS = (4, 2)
MASK = np.arange(4) < np.array(LENGTHS)[:, None]
STATES = np.random.default_rng(0).normal(size=(2, 4, WIDTH)).astype(np.float32)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def norm(x, params):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * params["scale"] + params["bias"]


def layer_twin(x, params, causal):
    """One row without padding, from the equations."""
    projections = params["attention"]["projections"]
    query, key, value = (
        np.einsum("nd,dhk->hnk", x, projections[name]["kernel"]) + projections[name]["bias"][:, None]
        for name in ("query", "key", "value")
    )
    scores = np.einsum("hqk,hnk->hqn", query, key) / np.sqrt(WIDTH // HEADS)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    mixed = np.einsum("hqn,hnk->qhk", softmax(scores), value)
    attended = np.einsum("qhk,hkd->qd", mixed, projections["out"]["kernel"]) + projections["out"]["bias"]
    x = norm(x + attended, params["attention_norm"])
    hidden = np.maximum(x @ params["feedforward_in"]["kernel"] + params["feedforward_in"]["bias"], 0)
    change = hidden @ params["feedforward_out"]["kernel"] + params["feedforward_out"]["bias"]
    return norm(x + change, params["feedforward_norm"])


@pytest.mark.parametrize(("shared", "causal"), [(False, False), (True, True)])
def test_against_numpy(shared, causal):
    model = TransformerEncoder(2, HEADS, 16, shared_weights=shared, causal=causal, dropout=0.3)
    states = np.where(MASK[..., None], STATES, np.float32(np.nan))
    params = drawn(model.init, states, MASK)
    outputs = np.asarray(jax.jit(model.apply)({"params": params}, states, MASK))
    assert set(params) == ({"layer"} if shared else {"layer_0", "layer_1"})
    layers = [params["layer"]] * 2 if shared else [params["layer_0"], params["layer_1"]]
    for row, n in enumerate(LENGTHS):
        frequencies = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
        angles = np.arange(n)[:, None] * frequencies
        x = np.asarray(STATES[row, :n], np.float64)
        x[:, 0::2] += np.sin(angles)
        x[:, 1::2] += np.cos(angles)
        for layer in layers:
            x = layer_twin(x, float64(layer), causal)
        np.testing.assert_allclose(outputs[row, :n], x, atol=2e-5)
    np.testing.assert_array_equal(outputs[1, 2:], 0)


def test_dropout_acts_in_training_only():
    model = TransformerEncoder(1, HEADS, 16, dropout=0.5)
    params, stream = drawn(model.init, STATES, MASK), {"rngs": {"dropout": jax.random.key(2)}}
    forms = {}, stream, {"deterministic": False, **stream}
    quiet, again, noisy = jax.jit(lambda p: [model.apply({"params": p}, STATES, MASK, **form) for form in forms])(
        params
    )
    np.testing.assert_array_equal(quiet, again)
    assert not np.allclose(quiet, noisy)


def test_attention_can_be_looked_at():
    model = TransformerEncoder(2, HEADS, 16)
    params = drawn(model.init, STATES, MASK)
    _, traces = jax.jit(lambda p: model.apply({"params": p}, STATES, MASK, mutable=["traces"]))(params)
    for layer in ("layer_0", "layer_1"):
        (weights,) = traces["traces"][layer]["attention"]["attention"]
        weights = np.asarray(weights)
        assert weights.shape == (2, HEADS, 4, 4)
        np.testing.assert_allclose(np.sum(weights, -1), 1, atol=1e-6)
        np.testing.assert_array_equal(weights[1, :, :, 2:], 0)


def test_softmax_stays_in_float32():
    """In bfloat16, weights of many equal keys would not sum to 1; half-precision states stay half precision."""
    model = MultiHeadAttention(WIDTH, HEADS, dtype=jnp.bfloat16)
    states, mask = np.ones((1, 300, WIDTH), jnp.bfloat16), np.ones((1, 1, 300), bool)
    jaxpr, outputs = jax.make_jaxpr(lambda p: model.apply({"params": p}, states, mask), return_shape=True)(
        drawn(model.init, states, mask)
    )
    jaxpr = str(jaxpr)
    exponentials = [line for line in jaxpr.splitlines() if "= exp " in line]
    assert exponentials
    assert all(":f32[" in line for line in exponentials)
    assert outputs.dtype == jnp.bfloat16


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="3 heads do not divide a width of 8"):
        TransformerEncoder(1, 3).init(jax.random.key(0), STATES, MASK)


def test_additive_attention_against_numpy():
    model, query = AdditiveAttention(5), np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)

    def weigh(module, query, memory, mask):
        return module(query, module.keys(memory), mask)

    mask = MASK & [[True], [False]]
    params = drawn(model.init, query, STATES, mask, method=weigh)
    weights = jax.jit(lambda p: model.apply({"params": p}, query, STATES, mask, method=weigh))(params)
    weights, params = np.asarray(weights), float64(params)
    of_query = query @ params["of_query"]["kernel"] + params["of_query"]["bias"]
    of_memory = STATES @ params["of_memory"]["kernel"] + params["of_memory"]["bias"]
    scores = np.tanh(of_query[:, None] + of_memory) @ params["score"]["kernel"] + params["score"]["bias"]
    np.testing.assert_allclose(weights[0], softmax(scores[0, :, 0]), atol=1e-6)
    np.testing.assert_array_equal(weights[1], 0)  # Nothing to attend to.


def test_stick_breaking_attention_looks_to_the_left():
    """No state depends on itself through attention, or on what is to its right; the rows of weights are sticks."""
    attention = MultiHeadAttention(features=8, heads=2, weighting="stick_breaking")
    states, mask = normal(2, 6, 8), np.arange(6) < np.array([[6], [4]])
    params = drawn(attention.init, states, mask)

    @jax.jit
    def of(states):
        outputs, traces = attention.apply({"params": params}, states, mask, mutable=["traces"])
        return outputs, traces["traces"]["attention"][0]

    outputs, weights = map(np.asarray, of(states))
    assert np.all(weights[..., ~np.tri(6, k=-1, dtype=bool)] == 0)
    assert np.all(weights[1, ..., 4:] == 0) and np.all(weights.sum(-1) <= 1)
    changed = np.asarray(of(states + (np.arange(6) >= 3)[:, None].astype(np.float32))[0])
    np.testing.assert_allclose(changed[:, :3], outputs[:, :3], atol=1e-6)
    assert np.abs(changed[:, 4:] - outputs[:, 4:]).max() > 0.01


@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_sticks_that_nobody_looks_at_have_no_weights(positions):
    """Results and gradients are those of the traced weights, whose N^2 numbers a program for a TPU then lacks."""
    shared = {"features": 8, "heads": 2}
    encoding = PositionScores(positions, **shared, parent=None)
    attention = MultiHeadAttention(**shared, weighting="stick_breaking", encoding=encoding)
    states, count = normal(2, 150, 8), 150
    mask, at = np.arange(count) < np.array([[150], [70]]), np.arange(count)
    params = {"params": drawn(attention.init, states, mask, at)}

    def loss(params, states, traced):
        outputs = attention.apply(params, states, mask, at, mutable=["traces"] if traced else [])[0]
        return jnp.sum(jnp.sin(outputs) * mask[..., None]), outputs

    def with_gradients(traced):
        return jax.jit(jax.grad(lambda *x: loss(*x, traced), argnums=(0, 1), has_aux=True))(params, states)

    for a, b in zip(*(jax.tree.leaves(with_gradients(traced)) for traced in (True, False)), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-6 * np.abs(np.asarray(a)).max())
    with on_platform("tpu"):
        programs = [str(jax.make_jaxpr(loss, static_argnums=2)(params, states, traced)) for traced in (True, False)]
    of_weights = [f"[2,2,{count},{count}]" in program for program in programs]
    assert of_weights == [True, positions == "alibi"]
    assert ["pallas_call" in program for program in programs] == [False, positions != "alibi"]


def test_forgetting_attention_multiplies_weights_by_the_gates_since():
    """Against float64 products of gates, written out."""
    attention = MultiHeadAttention(features=8, heads=2, weighting="forgetting")
    plain = MultiHeadAttention(features=8, heads=2, causal=True)
    states, mask = normal(2, 6, 8), np.arange(6) < np.array([[6], [4]])
    params = drawn(attention.init, states, mask)

    @functools.partial(jax.jit, static_argnums=0)
    def weights(module, params):
        return module.apply({"params": params}, states, mask, mutable=["traces"])[1]["traces"]["attention"][0]

    rest = {name: value for name, value in params.items() if name != "forget"}
    usual = np.asarray(weights(plain, rest), np.float64)
    forget = jax.tree.map(np.asarray, params["forget"])
    gates = 1 / (1 + np.exp(-(np.asarray(states, np.float64) @ forget["kernel"] + forget["bias"])))
    got = np.asarray(weights(attention, params))
    for row, head, i in np.ndindex(2, 2, 6):
        faded = [usual[row, head, i, j] * np.prod(gates[row, j + 1 : i + 1, head]) for j in range(6)]
        expected = np.array(faded) / np.sum(faded)
        np.testing.assert_allclose(got[row, head, i], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["stick_breaking", "forgetting"])
def test_a_transformer_takes_any_weighting(kind):
    """The choice of the model reaches every layer."""
    size = {"hidden_size": 8, "layers": 2, "heads": 2, "feedforward_size": 8}
    model = Transformer(**size, attention=kind, spec=Spec(vocabulary=5, output_size=5))
    inputs, mask = np.zeros((1, 3), np.int32), np.ones((1, 3), bool)
    params = drawn(model.init, inputs, mask, mask)
    run = jax.jit(functools.partial(model.apply, mutable=["traces"]))
    _, traces = run({"params": params}, inputs, mask, mask)
    found = [leaf for leaf in jax.tree.leaves(traces) if leaf.ndim == 4]
    assert len(found) == 2 and all(np.all(np.triu(np.asarray(weights), k=1) == 0) for weights in found)
    with pytest.raises(ValueError, match=f"{kind} attention looks only to the left, so column must be 'last'"):
        model.clone(column="first").init(jax.random.key(0), inputs, mask, mask)
