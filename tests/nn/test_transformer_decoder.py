"""Transformer encoder and decoder against float64 twins; cached decoding; decoders in `EncoderDecoder`."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.interfaces import EncoderDecoder
from lenmem.nn.interfaces.decoding import start_decoder
from lenmem.nn.transformer import TransformerEncoder, glorot_attention
from lenmem.nn.transformer_decoder import TransformerDecoder
from lenmem.types import Spec, Step
from tests.drawing import drawn as drawn_by
from tests.learning import briefly

WIDTH, HEADS, SLOTS = 8, 2, 5
LENGTHS = (4, 2)
NORMAL = np.random.default_rng(0)
MASK = np.arange(4) < np.array(LENGTHS)[:, None]
STATES = NORMAL.normal(size=(2, 4, 6)).astype(np.float32)
READS = NORMAL.normal(size=(2, SLOTS, WIDTH)).astype(np.float32)
VALID = np.arange(SLOTS) < np.array([[5], [3]])
KINDS = [(kind, shared) for kind in ("absolute", "relative", "none") for shared in (False, True)]
SPEC = Spec(vocabulary=4, output_size=5)


def decoder(positions="absolute", shared=False, **fields):
    scales = {"input_scale": 1.5, "position_scale": 0.7}
    return TransformerDecoder(WIDTH, 2, HEADS, 12, positions, shared, **scales, **fields)


def encoder(layers, positions, shared=False, **fields):
    glorot = {"initialization": "glorot", "positions": positions, "shared_weights": shared}
    return TransformerEncoder(layers, HEADS, 12, **glorot, **fields)


def drawn(module, *arguments, method=None, scale=0.8):
    """Parameters U(-scale, scale): nothing is 0 or 1."""
    return drawn_by(module.init, *arguments, method=method, scale=scale)


def stepwise(module, params, states, mask, reads, valid=None):
    """All slots by single steps."""
    ones = np.ones(reads.shape[:1], bool)
    valid = np.ones(reads.shape[:2], bool) if valid is None else valid

    @briefly
    def run(states, mask, reads):
        carry, memory = module.apply({"params": params}, states, mask, valid, method="start")

        def step(carry, read):
            return module.apply({"params": params}, carry, Step(read, ones, ones), memory)

        return jax.lax.scan(step, carry, jnp.swapaxes(reads, 0, 1))[1]

    return np.swapaxes(run(states, mask, reads), 0, 1)


def at_once(module, params, states, mask, reads, valid=VALID, **options):
    """All slots in one pass."""
    return module.apply({"params": params}, states, mask, reads, valid, method="decode_all", **options)


# Twins ----------------------------------------------------------------------------------------------------------------


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def norm(p, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["bias"]


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def sinusoid(position, width):
    angles = position * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1)


def looked(p, queries, entries, causal):
    """Attention of one row by loops; relative if there are parameters for it."""
    mixed = np.zeros((len(queries), HEADS, WIDTH // HEADS))
    for head in range(HEADS):
        query, key, value = (p[name]["kernel"][:, head] for name in ("query", "key", "value"))
        for i, x in enumerate(queries):
            seen = entries[: i + 1] if causal else entries
            logits = []
            for j, y in enumerate(seen):
                q, k = x @ query, y @ key
                logit = q @ k
                if "position" in p:
                    place = sinusoid(j - i, WIDTH) @ p["position"]["kernel"][:, head]
                    logit += p["content_bias"][head] @ k + (q + p["position_bias"][head]) @ place
                logits.append(logit / np.sqrt(WIDTH // HEADS))
            mixed[i, head] = softmax(np.array(logits)) @ (seen @ value)
    return np.einsum("qhk,hkd->qd", mixed, p["merge"]["kernel"])


def rest(p, h, change):
    """The feed-forward half of a layer, after attention has added `change`."""
    a = norm(p["attention_norm"], h + change)
    hidden = np.maximum(linear(p["feedforward_in"], a), 0)
    return norm(p["feedforward_norm"], a + linear(p["feedforward_out"], hidden))


def placed(module, x):
    x = module.input_scale * x
    if module.positions == "absolute":
        x = x + module.position_scale * np.array([sinusoid(i, WIDTH) for i in range(len(x))])
    return x


def decoder_twin(module, p, memory, reads):
    h = placed(module, reads)
    for number in range(module.layers):
        layer = p[f"stack_{0 if module.shared_layers else number}"]
        h = norm(layer["attention_norm"], h + looked(layer["attention"], h, h, causal=True))
        h = rest(layer["rest"], h, looked(layer["memory_attention"], h, memory, causal=False))
    return h


def encoder_twin(module, p, x):
    h = placed(module, x)
    for number in range(module.layers):
        index = 0 if module.shared_weights else number
        h = rest(p[f"layer_{index}"], h, looked(p[f"attention_{index}"], h, h, causal=False))
    return h


@pytest.mark.parametrize(("positions", "shared"), KINDS)
def test_decoder_against_the_twin_and_from_its_cache(positions, shared):
    """At once and step by step, rows of different lengths, with garbage in the padding."""
    module = decoder(positions, shared, dropout=0.3)
    params = drawn(module, STATES, MASK, READS, VALID, method="decode_all")
    dirty = np.where(MASK[..., None], STATES, np.float32(np.nan))
    outputs = np.asarray(briefly(functools.partial(at_once, module, params))(dirty, MASK, READS))
    cached = stepwise(module, params, dirty, MASK, READS)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, (n, m) in enumerate(zip(LENGTHS, (5, 3), strict=True)):
        expected = decoder_twin(module, p, np.asarray(STATES[row, :n], float), np.asarray(READS[row, :m], float))
        np.testing.assert_allclose(outputs[row, :m], expected, atol=2e-5)
        np.testing.assert_allclose(cached[row, :m], expected, atol=2e-5)
    assert set(params) == ({"stack_0"} if shared else {"stack_0", "stack_1"})


@pytest.mark.parametrize(
    ("positions", "random"),
    [("learned", True), ("relative", True), ("rotary", True), ("t5", False)],
)
def test_cached_decoding_equals_one_pass(positions, random):
    """With room for more slots. Random positions are those of a row's own slots."""
    module = decoder(positions, max_positions=9, random_positions=random)
    params = drawn(module, STATES, MASK, READS, VALID, method="decode_all")
    outputs = np.asarray(briefly(functools.partial(at_once, module, params))(STATES, MASK, READS))
    wide = [np.pad(x, [(0, 0), (0, 3)] + [(0, 0)] * (x.ndim - 2)) for x in (READS, VALID)]
    cached = stepwise(module, params, STATES, MASK, wide[0], wide[1])
    np.testing.assert_allclose(cached[:, :SLOTS][VALID], outputs[VALID], atol=2e-5)


@pytest.mark.parametrize(("positions", "shared"), [("absolute", True), ("relative", False), ("none", False)])
def test_encoder_against_the_twin(positions, shared):
    module = encoder(2, positions, shared, input_scale=1.5, position_scale=0.7, dropout=0.3)
    states = READS[:, :4]
    params = drawn(module, states, MASK)
    dirty = np.where(MASK[..., None], states, np.float32(np.nan))
    outputs = np.asarray(briefly(lambda x: module.apply({"params": params}, x, MASK))(dirty))
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(outputs[row, :n], encoder_twin(module, p, np.asarray(states[row, :n])), atol=2e-5)
    np.testing.assert_array_equal(outputs[~np.asarray(MASK)], 0)


# Cost -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary"])
def test_a_cached_step_computes_one_slot(positions):
    """Its cost hardly depends on the room for answers; a pass over all slots would cost 32 times as much."""
    module = TransformerDecoder(64, 2, HEADS, 128, positions)

    def flops(slots):
        reads, valid = np.zeros((2, slots, 64), np.float32), np.ones((2, slots), bool)
        shapes = jax.eval_shape(
            functools.partial(module.init, method="decode_all"), jax.random.key(0), STATES, MASK, reads, valid
        )

        def start(variables):
            return module.apply(variables, STATES, MASK, valid, method="start")

        carry, memory = jax.eval_shape(start, shapes)
        step = Step(reads[:, 0], valid[:, 0], valid[:, 0])
        return jax.jit(module.apply).lower(shapes, carry, step, memory).cost_analysis()["flops"]

    assert flops(128) < 2.5 * flops(4)


# Properties -----------------------------------------------------------------------------------------------------------


def test_slots_see_earlier_reads_only():
    module = decoder("relative")
    params = drawn(module, STATES, MASK, READS, VALID, method="decode_all")
    run = briefly(functools.partial(at_once, module, params, STATES, MASK))
    moved = READS + (np.arange(SLOTS) == 3)[:, None].astype(np.float32)
    before, after = np.asarray(run(READS)), np.asarray(run(moved))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert np.all(np.any(np.abs(before[:, 3:] - after[:, 3:]) > 1e-4, axis=-1))


def test_without_positions_the_order_of_the_input_is_lost():
    """And with relative ones a shift of the whole row changes nothing."""
    everything = np.ones((2, 4), bool)
    order = np.array([2, 0, 3, 1])
    module = encoder(1, "none")
    params = drawn(module, READS[:, :4], everything)
    run = jax.jit(functools.partial(module.apply, {"params": params}))
    outputs, shuffled = (np.asarray(run(x, everything)) for x in (READS[:, :4], READS[:, order]))
    np.testing.assert_allclose(outputs[:, order], shuffled, atol=1e-5)

    attention = glorot_attention(WIDTH, HEADS, "relative")
    at = np.arange(SLOTS)
    params = drawn(attention, READS, VALID, at)
    run = jax.jit(functools.partial(attention.apply, {"params": params}))
    moved = np.asarray(run(np.roll(READS, 1, axis=1), np.arange(SLOTS)[None] > 0, at))
    still = np.asarray(run(READS, np.arange(SLOTS)[None] < SLOTS - 1, at))
    np.testing.assert_allclose(moved[:, 1:], still[:, :-1], atol=1e-5)


def test_initial_weights():
    """Xavier's, and Torch's for relative attention and for biases of the feed-forward network."""
    states, mask = np.zeros((1, 3, 64), np.float32), np.ones((1, 3), bool)
    for relative, bound in ((False, (6 / 128) ** 0.5), (True, 64**-0.5)):
        module = TransformerDecoder(64, 1, 4, 128, "relative" if relative else "none")
        params = briefly(functools.partial(module.init, method="decode_all"))(
            jax.random.key(0), states, mask, states, mask
        )["params"]["stack_0"]
        params = jax.tree.map(np.asarray, params)
        for name in ("query", "key", "value", "merge") + ("position",) * relative:
            assert np.abs(params["attention"][name]["kernel"]).max() == pytest.approx(bound, rel=0.02)
        assert np.abs(params["memory_attention"]["key"]["kernel"]).max() == pytest.approx((6 / 128) ** 0.5, rel=0.02)
        hidden = params["rest"]["feedforward_in"]
        assert np.abs(hidden["kernel"]).max() == pytest.approx((12 / 192) ** 0.5, rel=0.02)
        assert np.abs(hidden["bias"]).max() == pytest.approx(64**-0.5, rel=0.05)
        change = params["rest"]["feedforward_out"]
        assert np.abs(change["kernel"]).max() == pytest.approx((6 / 192) ** 0.5, rel=0.02)
        assert np.abs(change["bias"]).max() == pytest.approx(128**-0.5, rel=0.05)
        biases = [value for name, value in params["attention"].items() if name.endswith("bias")]
        assert len(biases) == 2 * relative and not np.any(biases)


def test_a_row_without_input_is_finite():
    module = decoder()
    params = drawn(module, STATES, MASK, READS, VALID, method="decode_all")
    run = briefly(functools.partial(at_once, module, params, STATES, np.zeros_like(MASK)))
    assert np.all(np.isfinite(run(READS)))


def test_softmax_stays_in_float32():
    module = decoder("relative", dtype=jnp.bfloat16)
    params = drawn(module, STATES, MASK, READS, VALID, method="decode_all")
    half = [x.astype(jnp.bfloat16) for x in (STATES, READS)]

    def step(params, states, reads):
        def run(module):
            carry, memory = module.start(states, MASK, VALID)
            return module(carry, Step(reads[:, 0], VALID[:, 0], VALID[:, 0]), memory)

        return module.apply({"params": params}, method=run)

    program = str(jax.make_jaxpr(step)(params, *half))
    exponentials = [line for line in program.splitlines() if "= exp " in line]
    assert exponentials and all(":f32[" in line for line in exponentials)
    cache, output = jax.eval_shape(step, params, *half)
    assert {x.dtype for x in (output, *cache.keys, *cache.values)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("width", "fields", "message"),
    [
        (WIDTH, {"heads": 3}, "3 heads do not divide a width of 8"),
        (16, {}, "hidden_size 16 cannot read vectors of 8"),
        (WIDTH, {"positions": "cosine"}, "positions is 'cosine'; allowed are absolute, sinusoidal, learned, relative"),
        (WIDTH, {"positions": "learned", "max_positions": 4}, "max_positions is 4; .* 5 positions"),
    ],
)
def test_errors(width, fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerDecoder(width, **fields).init(jax.random.key(0), STATES, MASK, READS, VALID, method="decode_all")


# In `EncoderDecoder` --------------------------------------------------------------------------------------------------

INPUTS = np.random.default_rng(2).integers(0, 4, (2, 4))
ARGUMENTS = tuple(map(jax.device_put, (INPUTS, MASK, VALID)))


class OnTop(nn.Module):
    """A decoder over another one, step by step: as a pointer network over a Transformer."""

    below: nn.Module

    @property
    def needs_slots(self):
        return getattr(self.below, "needs_slots", False)

    def start(self, states, mask, valid):
        carry, memory = start_decoder(self.below, states, mask, valid)
        return (carry, jnp.zeros(mask.shape[:1])), memory

    def __call__(self, carry, step, memory):
        carry, count = carry
        carry, output = self.below(carry, step, memory)
        return (carry, count + 1), jnp.concatenate([output, count[:, None]], -1)


def test_as_the_inner_decoder_of_another():
    """A wrapper that only steps works in training and testing, and gives the Transformer's own results."""
    head = nn.Dense(5, use_bias=False, parent=None)
    fields = {"spec": SPEC, "embedding_size": WIDTH, "feedback": "teacher_forced", "head": head}
    below = nn.Sequential([lambda states, mask: states], parent=None)
    alone = EncoderDecoder(below, decoder(parent=None), **fields)
    stepping = EncoderDecoder(below, OnTop(decoder(parent=None), parent=None), **fields)
    params = dict(drawn(stepping, *ARGUMENTS))
    kernel = np.array(params["head"]["kernel"])
    kernel[-1] = 0
    params["head"] = {"kernel": kernel}
    flat = params | {"decoder": params["decoder"]["below"], "head": {"kernel": kernel[:-1]}}
    for options in ({}, {"train": True, "targets": np.ones((2, SLOTS), int)}):
        expected = briefly(lambda p, options=options: alone.apply({"params": p}, *ARGUMENTS, **options))(flat)
        got = briefly(lambda p, options=options: stepping.apply({"params": p}, *ARGUMENTS, **options))(params)
        got, expected = np.asarray(got), np.asarray(expected)
        np.testing.assert_allclose(got[VALID], expected[VALID], atol=2e-5)


def test_dropout_acts_in_training_only():
    """Where all slots are filled at once."""
    below = nn.Sequential([lambda states, mask: states], parent=None)
    model = EncoderDecoder(below, decoder(dropout=0.5, parent=None), SPEC, WIDTH)
    params = drawn(model, *ARGUMENTS)

    @briefly
    def run(params):
        stream = {"rngs": {"dropout": jax.random.key(1)}}
        options = ({}, stream, {"train": True, **stream})
        return [model.apply({"params": params}, *ARGUMENTS, **each) for each in options]

    quiet, still, loud = run(params)
    np.testing.assert_allclose(quiet, still, atol=1e-6)
    assert not np.allclose(loud, quiet, atol=1e-2)


class Kept(nn.Module):
    """An encoder that returns its inputs."""

    @nn.compact
    def __call__(self, states, mask):
        self.sow("traces", "read", states)
        return states


class Shown(nn.Module):
    """A decoder whose answers are the memory."""

    def start(self, states, mask):
        return (), jnp.where(mask[..., None], states, 0)

    def __call__(self, carry, step, memory):
        return carry, memory.reshape(memory.shape[0], -1)


def test_delimiters_enclose_the_input():
    """The encoder's traces are kept beside those of the scanned decoder."""
    head = nn.Sequential([lambda x: x], parent=None)
    model = EncoderDecoder(Kept(parent=None), Shown(parent=None), SPEC, None, head=head, delimiters=True)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *ARGUMENTS)["params"]
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    outputs, mutated = jax.jit(lambda p: model.apply({"params": p}, *ARGUMENTS, mutable=["traces"]))(params)
    memory = np.asarray(outputs)[:, 0].reshape(2, 6, 7)
    for row, n in enumerate(LENGTHS):
        symbols = [4, *INPUTS[row, :n].tolist(), 5]
        np.testing.assert_array_equal(memory[row, : n + 2], np.eye(7)[symbols])
        np.testing.assert_array_equal(memory[row, n + 2 :], 0)
    assert mutated["traces"]["encoder"]["read"][0].shape == (2, 6, 7)


def test_traces_of_encoder_and_decoder():
    below = TransformerEncoder(1, HEADS, 12, parent=None)
    model = EncoderDecoder(below, decoder(parent=None), SPEC, WIDTH, "teacher_forced", delimiters=True)
    params = drawn(model, *ARGUMENTS)
    _, mutated = briefly(lambda p: model.apply({"params": p}, *ARGUMENTS, mutable=["traces"]))(params)
    inner = mutated["traces"]["decoder"]["stack_1"]["memory_attention"]["attention"][0]
    assert inner.shape == (SLOTS, 2, HEADS, 1, 6)
    np.testing.assert_allclose(np.sum(inner, -1), 1, atol=1e-6)
    assert mutated["traces"]["encoder"]["layer_0"]["attention"]["attention"][0].shape == (2, HEADS, 6, 6)
