"""Encodings of positions in Transformers: twins of a layer, shifts, random numbers, and the models' contract."""

from __future__ import annotations

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.models.nam import NAMTransformer
from lenmem.models.nam_baselines import BERT, UniversalTransformer
from lenmem.models.ndr import NDR
from lenmem.models.transformer import Transformer
from lenmem.models.transformer_seq2seq import TransformerSeq2Seq
from lenmem.nn.positions import PositionEncoding, PositionScores, PositionVectors
from lenmem.nn.transformer import TransformerEncoder
from lenmem.types import Spec
from tests.drawing import drawn as drawn_by
from tests.learning import briefly

WIDTH, HEADS, SIZE = 12, 3, 4
LENGTHS = (7, 4)
MASK = np.arange(7) < np.array(LENGTHS)[:, None]
STATES = np.random.default_rng(0).normal(size=(2, 7, WIDTH)).astype(np.float32)
ENCODINGS = get_args(PositionEncoding)
SPEC = Spec(vocabulary=5, output_size=6)


def encoder(positions, **fields) -> Any:
    return TransformerEncoder(1, HEADS, 10, positions=positions, max_positions=40, **fields)


def drawn(module, *arguments, scale=0.8):
    """Parameters U(-scale, scale): nothing is 0 or 1."""
    return drawn_by(module.init, *arguments, scale=scale, seed=1)


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


# Twins: one row, pair by pair -----------------------------------------------------------------------------------------


def sinusoid(position):
    angles = position * 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1)


def turned(vector, position):
    pairs = vector[0::2] + 1j * vector[1::2]
    pairs = pairs * np.exp(1j * position * 10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE))
    return np.stack([pairs.real, pairs.imag], -1).reshape(-1)


def bucket(distance, causal):
    """T5's, of the published formula: 32 buckets, the last ones up to 128."""
    side = 32 if causal else 16
    start = side if distance < 0 and not causal else 0
    distance = max(distance, 0) if causal else abs(distance)
    near = side // 2
    if distance < near:
        return start + distance
    return start + min(near + int(np.log(distance / near) / np.log(128 / near) * (side - near)), side - 1)


def fire(params, i, j):
    scale, threshold = abs(params["scale"]) + 1e-6, 512 * abs(params["threshold"])
    distance = np.sign(i - j) * np.log(scale * abs(i - j) + 1) / np.log(scale * max(i, j, threshold) + 1)
    hidden = np.maximum(distance * params["fire_in"]["kernel"][0] + params["fire_in"]["bias"], 0)
    return hidden @ params["fire_out"]["kernel"] + params["fire_out"]["bias"]


def logit(kind, params, head, query, key, i, j, causal):
    """Of a query at position i and a key at position j."""
    slope = (2**-4, 2**-8, 2**-2)[head]
    if kind == "relative":
        place = sinusoid(j - i) @ params["position"]["kernel"][:, head]
        pair = (query + params["content_bias"][head]) @ key + (query + params["position_bias"][head]) @ place
        return pair / np.sqrt(SIZE)
    if kind == "rotary":
        return turned(query, i) @ turned(key, j) / np.sqrt(SIZE)
    extra = {
        "alibi": lambda: -slope * abs(i - j),
        "t5": lambda: params["buckets"][bucket(i - j, causal), head],
        "fire": lambda: fire(params, i, j)[head],
    }
    return query @ key / np.sqrt(SIZE) + extra.get(kind, lambda: 0)()


def norm(params, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * params["scale"] + params["bias"]


def twin(kind, params, x, numbers, causal):
    if kind == "sinusoidal":
        x = x + np.array([sinusoid(i) for i in numbers])
    if kind == "learned":
        x = x + params["positions"]["embedding"][numbers]
    layer = params["layer_0"]
    maps = layer["attention"]["projections"]
    query, key, value = (
        np.einsum("nd,dhk->hnk", x, maps[name]["kernel"]) + maps[name]["bias"][:, None]
        for name in ("query", "key", "value")
    )
    mixed = np.zeros((len(x), HEADS, SIZE))
    for head in range(HEADS):
        for t, i in enumerate(numbers):
            seen = range(t + 1 if causal else len(x))
            of_pair = functools.partial(logit, kind, layer.get("encoding"), head, query[head, t], causal=causal)
            weights = np.exp([of_pair(key[head, s], i, numbers[s]) for s in seen])
            mixed[t, head] = weights / weights.sum() @ value[head, list(seen)]
    attended = np.einsum("qhk,hkd->qd", mixed, maps["out"]["kernel"]) + maps["out"]["bias"]
    x = norm(layer["attention_norm"], x + attended)
    hidden = np.maximum(x @ layer["feedforward_in"]["kernel"] + layer["feedforward_in"]["bias"], 0)
    change = hidden @ layer["feedforward_out"]["kernel"] + layer["feedforward_out"]["bias"]
    return norm(layer["feedforward_norm"], x + change)


random_positions = functools.partial(jax.jit, static_argnums=(2, 3))(ops.random_positions)


@pytest.mark.parametrize(("random", "causal"), [(False, False), (True, True)])
@pytest.mark.parametrize("kind", ENCODINGS)
def test_a_layer_against_the_twin(kind, random, causal):
    """Positions 0, 1, .., and random ones; without the stream `address` these come from a constant key."""
    module = encoder(kind, random_positions=random, causal=causal)
    params = drawn(module, STATES, MASK)
    dirty = np.where(MASK[..., None], STATES, np.float32(np.nan))
    outputs = np.asarray(briefly(lambda p, *given: module.apply({"params": p}, *given))(params, dirty, MASK))
    for row, n in enumerate(LENGTHS):
        numbers = np.arange(n)
        if random:
            numbers = np.asarray(random_positions(jax.random.key(0), n, n, 40))
            assert numbers.max() > n
        expected = twin(kind, float64(params), np.asarray(STATES[row, :n], np.float64), numbers, causal)
        np.testing.assert_allclose(outputs[row, :n], expected, atol=3e-5)


# Shifts ---------------------------------------------------------------------------------------------------------------


PAIRS = ("relative", "rotary", "alibi", "t5", "fire")


def logits(kind, params, at):
    """Of random queries and keys, [B, heads, Q, K]."""
    query, key = jax.random.normal(jax.random.key(2), (2, 2, 7, HEADS, SIZE))
    query, key, scores = PositionScores(kind, HEADS, WIDTH).apply({"params": params}, query, key, at, at)
    return jnp.einsum("bqhk,bnhk->bhqn", query, key) + (0 if scores is None else scores)


def test_shifts_of_a_whole_row_change_nothing():
    """Except for FIRE, which uses the distance from 0. Consecutive positions have their own code path."""
    state = jax.random.normal(jax.random.key(0), (2, 7, HEADS, SIZE))
    at = jnp.arange(7)
    params = {kind: drawn(PositionScores(kind, HEADS, WIDTH), state, state, at, at) for kind in PAIRS}
    params["fire"]["threshold"] = jnp.float32(1e-3)

    @briefly
    def run(params):
        return {
            kind: (logits(kind, p, at), logits(kind, p, at + jnp.array([[0], [900]]))) for kind, p in params.items()
        }

    for kind, (here, there) in run(params).items():
        np.testing.assert_allclose(there[0], here[0], atol=1e-4)
        assert np.allclose(there[1], here[1], atol=3e-3) == (kind != "fire"), kind  # Angles of 900 in float32.


# Random positions -----------------------------------------------------------------------------------------------------


def test_random_positions_are_drawn_afresh_in_training_only():
    module = encoder("learned", random_positions=True)
    params = drawn(module, STATES, MASK)
    rows = jax.device_put(np.stack([STATES[0], STATES[0]]))
    full = jax.device_put(np.ones((2, 7), bool))

    @briefly
    def run(key):
        quiet = [module.apply({"params": params}, rows, full) for _ in range(2)]
        return quiet, module.apply({"params": params}, rows, full, deterministic=False, rngs={"address": key})

    (quiet, again), noisy = jax.tree.map(np.asarray, run(jax.random.key(1)))
    np.testing.assert_allclose(quiet, again, atol=1e-6)
    np.testing.assert_allclose(quiet[0], quiet[1], atol=1e-6)
    assert not np.allclose(noisy[0], noisy[1], atol=1e-3)
    np.testing.assert_array_equal(noisy, run(jax.random.key(1))[1])
    assert not np.allclose(noisy, run(jax.random.key(2))[1], atol=1e-3)


# Parameters and errors ------------------------------------------------------------------------------------------------

PARAMETERS = {
    "sinusoidal": {},
    "learned": {"embedding": (40, WIDTH)},
    "relative": {"kernel": (WIDTH, HEADS, SIZE), "content_bias": (HEADS, SIZE), "position_bias": (HEADS, SIZE)},
    "rotary": {},
    "alibi": {},
    "t5": {"buckets": (32, HEADS)},
    "fire": {
        "fire_in": {"kernel": (1, 32), "bias": (32,)},
        "fire_out": {"kernel": (32, HEADS), "bias": (HEADS,)},
        "scale": (),
        "threshold": (),
    },
    "none": {},
}


@pytest.mark.parametrize("kind", ENCODINGS)
def test_parameters(kind):
    """An encoding has these parameters, and training changes all of them, whatever padding contains."""
    module, full = encoder(kind), jnp.ones_like(MASK)

    def of_encoding(tree):
        found = tree.get("positions", {}) | tree["layer_0"].get("encoding", {})
        return found | found.pop("position", {})

    params = drawn(module, STATES, full)
    assert jax.tree.map(jnp.shape, of_encoding(params)) == PARAMETERS[kind]
    if not PARAMETERS[kind]:
        return
    dirty = np.where(MASK[..., None], STATES, np.float32(np.nan))
    run = briefly(jax.grad(lambda p, *given: jnp.sum(module.apply({"params": p}, *given)[..., 0])))
    for path, leaf in jax.tree_util.tree_leaves_with_path(of_encoding(run(params, dirty, MASK))):
        assert np.all(np.isfinite(leaf)), path
        # FIRE's last bias is the same for all keys of a query, so it has no effect.
        assert np.any(np.abs(leaf) > 1e-9) or "fire_out" in jax.tree_util.keystr(path)


def test_first_parameters():
    key, at, states = jax.random.key(0), jnp.arange(2), jnp.ones((1, 2, 20, 16))

    @briefly
    def start():
        table = PositionVectors("learned", 500).init(key, at, 60)
        return jax.tree.leaves((table, PositionScores("t5", 20, 320).init(key, states, states, at, at)))

    vectors, buckets = start()
    assert np.std(vectors) == pytest.approx(0.02, rel=0.02)
    assert np.std(buckets) == pytest.approx(320**-0.5, rel=0.1)


def test_learned_positions_distinguish_answer_slots_like_sinusoids():
    """Slots of a blank answer differ in nothing else, and tokens N(0, 1) hide positions that are much smaller."""
    inputs, real = jax.random.randint(jax.random.key(1), (8, 6), 0, 5), jnp.ones((8, 6), bool)

    def spread(**fields):
        model = Transformer(64, 2, 4, 128, dropout=0.0, max_positions=12, spec=SPEC, **fields)
        outputs, _ = briefly(lambda key: model.init_with_output(key, inputs, real, real))(jax.random.key(0))
        return np.std(outputs, axis=1).mean()

    sinusoids = spread(positions="sinusoidal")
    assert spread(positions="learned") > sinusoids / 2
    assert spread(positions="learned", position_std=0.02) < sinusoids / 5


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Transformer, {"positions": "cosine"}, "positions is 'cosine'; allowed are sinusoidal, learned, relative"),
        (Transformer, {"positions": "learned", "max_positions": 6}, "max_positions is 6; the padded rows have 7 posi"),
        (Transformer, {"random_positions": True, "max_positions": 6}, "max_positions is 6; the padded rows have 7"),
        (Transformer, {"positions": "rotary"}, "rotate pairs of columns; the width is 3"),
        (BERT, {"positions": "rotary"}, "rotate pairs of columns; the width is 3"),
        (BERT, {"random_positions": True, "max_positions": 6}, "max_positions is 6; the padded rows have 7"),
        (NAMTransformer, {"positions": "alibi"}, "positions is 'alibi', .* allows sinusoidal, learned, none"),
        (NDR, {"attention": "cosine"}, "attention is 'cosine'; allowed are geometric"),
        (NDR, {"random_positions": True}, "random_positions needs attention by content; attention is 'geometric'"),
    ],
)
def test_errors(kind, fields, message):
    def init(key):
        mask = jnp.ones((1, 4), bool)
        return kind(12, **fields, spec=SPEC).init(key, jnp.zeros((1, 4), int), mask, mask[:, :3])

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(init, jax.random.key(0))


# Models ---------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"hidden_size": 12, "heads": 2, "feedforward_size": 16, "max_positions": 64}
MODELS = {
    "bert": BERT(**SMALL, layers=1, positions="rotary", random_positions=True),
    "universal": UniversalTransformer(**SMALL, steps=2, positions="relative", random_positions=True),
    "nam": NAMTransformer(**SMALL, layers=1, attention="softmax", positions="t5"),
    "act": NDR(**SMALL, steps=2, gated=False, halting="graves", attention="alibi", random_positions=True),
    "gated": NDR(**SMALL, steps=2, update="tanh", attention="learned", random_positions=True),
    "seq2seq": TransformerSeq2Seq(
        **SMALL, encoder_layers=1, decoder_layers=1, positions="relative", random_positions=True
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_models_take_them(name):
    """Padding and other rows have no effect, and a row as long as `max_positions` allows is answered."""
    model = MODELS[name].clone(spec=SPEC)
    inputs = np.random.default_rng(3).integers(0, 5, (2, 5))
    input_mask, target_mask = (np.arange(n) < np.array([[n], [2]]) for n in (5, 4))
    arguments = inputs, input_mask, target_mask
    params = drawn(model, *arguments)
    run = briefly(lambda *arguments: model.apply({"params": params}, *arguments))
    outputs = np.asarray(run(*arguments))
    assert np.all(np.isfinite(outputs[target_mask]))
    soiled = np.where(input_mask, inputs, -(10**6))
    turned = np.asarray(run(soiled[::-1], input_mask[::-1], target_mask[::-1]))[::-1]
    np.testing.assert_allclose(turned[target_mask], outputs[target_mask], atol=2e-5)
    long = jax.eval_shape(run, jnp.zeros((1, 30), int), jnp.ones((1, 30), bool), jnp.ones((1, 20), bool))
    assert long.shape == (1, 20, 6)


def test_one_draw_for_all_steps_over_depth():
    """If all steps share the layer, they share its random positions."""
    fields = {**SMALL, "gated": False, "dropout": 0.0, "key_dropout": 0.0, "attention": "alibi", "spec": SPEC}
    model = NDR(**fields, steps=3, random_positions=True)
    mask = jnp.ones((1, 4), bool)
    params = drawn(model, jnp.zeros((1, 4), int), mask, mask[:, :1])

    @briefly
    def seen(key):
        """Without content: the attention weights at each step."""
        silent = jax.tree.map(jnp.zeros_like, params)
        call, rngs = (jnp.zeros((1, 4), int), mask, mask[:, :1]), {"address": key}
        _, sown = model.apply({"params": silent}, *call, train=True, rngs=rngs, mutable=["traces"])
        return next(x for p, x in jax.tree_util.tree_leaves_with_path(sown) if "attention" in jax.tree_util.keystr(p))

    first, other = np.asarray(seen(jax.random.key(0))), np.asarray(seen(jax.random.key(1)))
    assert first.shape[0] == 3
    np.testing.assert_allclose(first[1:], first[:-1], atol=1e-6)
    assert not np.allclose(first, other, atol=1e-3)
