"""PANM's decoder and cell against a float64 twin written from equations 1 to 7, and their combinations."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn import AttentionDecoder, EncoderDecoder, GRUCell, LSTMCell, Recurrent, scan_cell
from lenmem.nn.panm import PointerCell, PointerDecoder, PointerLayer
from lenmem.nn.pointers import Similar
from lenmem.nn.transformer_decoder import TransformerDecoder
from lenmem.types import Spec, Step
from tests.drawing import drawn as drawn_by
from tests.learning import briefly
from tests.models.twin import sigmoid, softmax, softplus

LENGTHS, N, D, H, STEPS = (5, 2), 6, 4, 8, 2
NORMAL = np.random.default_rng(0)
MASK = np.arange(N) < np.array(LENGTHS)[:, None]
STATES = NORMAL.normal(size=(2, N, D)).astype(np.float32)
READ = NORMAL.normal(size=(2, STEPS, 3)).astype(np.float32)
SIZES: dict[str, Any] = {"hidden_size": H, "mlp_size": 6, "bits": 4}


def run(decoder, states, mask, read, deterministic=True):
    """All steps of a decoder: (outputs [B, T, ...], first pointers)."""
    carry, memory = decoder.start(states, mask, deterministic=deterministic)
    first, outputs = carry.pointers, []
    for t in range(read.shape[1]):
        carry, output = decoder(carry, Step(read[:, t], mask[:, 0], mask[:, 0], deterministic), memory)
        outputs.append(output)
    return jnp.stack(outputs, 1), first


def drawn(module, *arguments, method=run, scale=0.7):
    """Parameters U(-scale, scale), away from where everything is nearly linear."""
    return drawn_by(module.init, *arguments, scale=scale, seed=1, method=method)


def decoded(decoder, params, states=STATES, mask=MASK, read=READ, key=None):
    """(outputs, first pointers, traces by step)."""

    def call(params, states):
        rngs = {} if key is None else {"address": key, "dropout": key}
        arguments = states, mask, read, key is None
        return decoder.apply({"params": params}, *arguments, rngs=rngs, mutable=["traces"], method=run)

    (outputs, first), mutated = jax.tree.map(np.asarray, briefly(call)(params, states))
    return outputs, first, {name: np.stack(steps) for name, steps in mutated["traces"].items()}  # [T, B, ...]


def started(decoder, params, states=STATES, mask=MASK):
    """The first pointers alone."""

    def call(params, states):
        options = {"deterministic": True, "method": "start"}
        return decoder.apply({"params": params}, states, mask, **options)[0].pointers

    return [np.asarray(pointer) for pointer in briefly(call)(params, states)]


# The twin: one row, Python lists --------------------------------------------------------------------------------------


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def mlp(p, x):
    return linear(p["output"], np.maximum(linear(p["hidden"], x), 0))


def gru(p, x, h):
    rx, zx, nx = np.split(linear(p["input"], x), 3)
    rh, zh, nh = np.split(linear(p["hidden"], h), 3)
    z = sigmoid(zx + zh)
    return (1 - z) * np.tanh(nx + sigmoid(rx + rh) * nh) + z * h


def binary(address, bits=4):
    return np.array([float(bit) for bit in format(address % 2**bits, f"0{bits}b")])


def attend(p, query, keys, kind):
    if kind == "dot":
        query, keys = linear(p["of_query"], query), [linear(p["of_key"], key) for key in keys]
        return softmax(np.array([query @ key / np.sqrt(len(query)) for key in keys]))
    cosines = np.array([query @ key / np.linalg.norm(query) / np.linalg.norm(key) for key in keys])
    return softmax(cosines * (softplus(p["temperature"]) if kind == "cosine_temperature" else 1))


def read_out(p, values, weights, kind):
    value = sum(w * v for w, v in zip(weights, values, strict=True))
    return linear(p["of_value"], value) if kind == "dot" else value


def step_twin(decoder, p, memory, bank, z, pointers, hidden, controller):
    """(output, weights of each address head, controller) of a step; moves the pointers and the units' states."""
    kind, heads = decoder.attention, range(decoder.address_heads)
    reads, seen, here = [], [], []
    for i in heads:
        hidden[i] = gru(p[f"units_{i}"], pointers[i], hidden[i])
        attention = p.get(f"address_attention_{i}")
        weights = attend(attention, hidden[i], [mlp(p[f"address_maps_{i}"], a) for a in bank], kind)
        pointers[i] = sum(w * a for w, a in zip(weights, bank, strict=True))
        reads.append(read_out(attention, memory, weights, kind))
        here.append(weights)
    for i in range(decoder.content_heads):
        query, attention = mlp(p[f"content_maps_{i}"], np.concatenate(reads)), p.get(f"content_attention_{i}")
        seen.append(read_out(attention, memory, attend(attention, query, memory, kind), kind))
    z, context = [z] if decoder.reads else [], []
    if decoder.controller == "gru":
        controller = gru(p["recurrence"], np.concatenate([*reads, *seen, *z]), controller)
    elif decoder.controller == "attentive":
        s = p["scorer"]
        scores = [
            linear(s["score"], np.tanh(linear(s["of_query"], controller) + linear(s["of_memory"], m)))[0]
            for m in memory
        ]
        context = [sum(w * m for w, m in zip(softmax(np.array(scores)), memory, strict=True))]
        controller = gru(p["recurrence"], np.concatenate([*z, *reads, *context]), controller)
    return np.concatenate([*reads, *seen, *(z if controller is None else [controller, *context])]), here, controller


def twin(decoder, p, memory, inputs):
    """(outputs of all steps, weights of all steps and address heads)."""
    bank = [binary(j) for j in range(len(memory))]
    starts = [0, len(memory) - 1, (len(memory) - 1) // 2]
    pointers: list[Any] = [bank[slot] for slot in starts[: decoder.address_heads]]
    hidden: list[Any] = [np.zeros(H) for _ in pointers]
    controller = linear(p["bridge"], memory[-1]) if decoder.controller != "none" else None
    outputs, trail = [], []
    for z in inputs:
        output, here, controller = step_twin(decoder, p, memory, bank, z, pointers, hidden, controller)
        outputs.append(output)
        trail.append(here)
    return np.array(outputs), np.array(trail)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "cosine", "reads": False},
        {"attention": "cosine_temperature", "address_heads": 3, "content_heads": 2},
        {"attention": "dot", "controller": "attentive"},
        {"attention": "cosine", "controller": "none", "content_heads": 0, "address_heads": 1},
    ],
    ids=["paper", "temperature", "published", "no_controller"],
)
def test_decoder_equals_the_twin(fields):
    decoder = PointerDecoder(**SIZES, **fields)
    params = drawn(decoder, STATES, MASK, READ)
    outputs, _, traces = decoded(decoder, params, np.where(MASK[..., None], STATES, np.float32(np.nan)))
    weights = np.moveaxis(traces["pointer_weights"], 0, 1)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, n in enumerate(LENGTHS):
        expected, trail = twin(decoder, p, list(np.asarray(STATES[row, :n], np.float64)), np.asarray(READ[row]))
        np.testing.assert_allclose(outputs[row], expected, atol=2e-5)
        np.testing.assert_allclose(weights[row, ..., :n], trail, atol=2e-5)
        assert np.all(weights[row, ..., n:] == 0)
    related = decoder.content_heads
    assert np.shape(traces.get("relation_weights", 0)) == ((STEPS, 2, related, N) if related else ())


def test_pointers_start_at_base_end_and_middle_of_each_row():
    decoder = PointerDecoder(**SIZES, address_heads=3)
    first = started(decoder, drawn(decoder, STATES, MASK, READ))
    for row, n in enumerate(LENGTHS):
        for pointer, slot in zip(first, (0, n - 1, (n - 1) // 2), strict=True):
            np.testing.assert_array_equal(pointer[row], binary(slot))


@pytest.mark.parametrize("code", ["bits", "signs", "phases"])
def test_codes_of_addresses(code):
    decoder = PointerDecoder(**SIZES, address_code=code)
    (first, _) = started(decoder, drawn(decoder, STATES, MASK, READ))
    expected = {"bits": np.zeros(4), "signs": -np.ones(4), "phases": np.repeat([1.0, 0.0], 4)}[code]
    np.testing.assert_allclose(first, [expected, expected])


def test_a_base_for_each_row():
    """The stream changes what the pointers see, for each row separately; padding still has no effect."""
    decoder = PointerDecoder(hidden_size=H, mlp_size=6, bits=10)
    params = drawn(decoder, STATES, MASK, READ)
    zero = decoded(decoder, params)
    outputs, first, traces = decoded(decoder, params, key=jax.random.key(3))
    assert outputs.shape == zero[0].shape
    assert np.max(np.abs(outputs - zero[0])) > 1e-3
    assert np.any(first[0][0] != first[0][1])
    base = np.asarray([int("".join(str(int(bit)) for bit in row), 2) for row in np.asarray(first[0])])
    weights, address = traces["pointer_weights"][0], traces["address"][0]
    expected = (base[:, None] + np.argmax(weights, -1)) % 1024
    np.testing.assert_array_equal(address, np.where(np.max(weights, -1) > 0.5, expected, -1))
    more = [(0, 0), (0, 5), (0, 0)]
    longer = decoded(
        decoder, params, np.pad(STATES, more, constant_values=9.0), np.pad(MASK, more[:2]), key=jax.random.key(3)
    )
    np.testing.assert_allclose(longer[0], outputs, atol=2e-5)


def test_a_base_without_a_stream_depends_on_the_length_alone():
    decoder = PointerDecoder(**SIZES, test_base="random")
    params = drawn(decoder, STATES, MASK, READ)
    one, other = (started(decoder, params, *given)[0] for given in ((STATES, MASK), (STATES[::-1], MASK[::-1])))
    np.testing.assert_array_equal(one, other[::-1])
    assert np.any(one[0] != one[1]) and np.all(np.any(one != 0, axis=-1))


def test_the_first_temperature():
    similar = Similar("cosine_temperature", 4)
    vectors = np.ones((1, 3, 2), np.float32)
    params = similar.init(jax.random.key(0), vectors[:, 0], vectors, np.ones((1, 3), bool))["params"]
    assert softplus(np.asarray(params["temperature"])) == pytest.approx(10)


def test_relations_are_dropped_in_training_only():
    """Half of the weights become 0, and the others twice as large."""
    plain, dropping = (PointerDecoder(**SIZES, dropout=rate) for rate in (0.0, 0.5))
    read = READ[:, :1]
    params = drawn(plain, STATES, MASK, read)
    kept, cut, still = (
        decoded(decoder, params, read=read, key=key)[2]["relation_weights"][0][MASK[:, None]]
        for decoder, key in ((plain, jax.random.key(0)), (dropping, jax.random.key(0)), (dropping, None))
    )
    np.testing.assert_allclose(cut[cut != 0], 2 * kept[cut != 0], rtol=1e-5)
    assert 0 < np.sum(cut == 0) < cut.size and np.all(still != 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields", [{}, {"attention": "cosine"}, {"hard": True, "candidates": "space", "pointer_unit": "feedforward"}]
)
def test_gradients_are_finite_with_address_zero(fields):
    decoder = PointerDecoder(**SIZES, **fields)
    params = jax.tree.map(np.zeros_like, drawn(decoder, STATES, MASK, READ))  # all keys are zero vectors

    def loss(params, states):
        return jnp.sum(jnp.sin(decoder.apply({"params": params}, states, MASK, READ, method=run)[0]))

    value, gradients = briefly(jax.value_and_grad(loss, (0, 1)))(params, np.where(MASK[..., None], STATES, 0))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


STATIONARY: dict[str, Any] = {
    "attention": "cosine_temperature",
    "candidates": "space",
    "pointer_unit": "feedforward",
    "controller": "none",
    "content_heads": 0,
    "address_code": "signs",
    "reads": False,
}


def test_pointers_over_the_whole_space_equal_the_twin():
    """All 2^b addresses compete, with the memory repeated over them. Stateless units see only the last pointer."""
    decoder = PointerDecoder(**SIZES, **STATIONARY)
    params = drawn(decoder, STATES, MASK, READ)
    outputs, first, traces = decoded(decoder, params)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    space = [2 * binary(a) - 1 for a in range(16)]
    for row, n in enumerate(LENGTHS):
        for head, start in enumerate((0, n - 1)):
            pointer = space[start]
            np.testing.assert_array_equal(first[head][row], pointer)
            for t in range(STEPS):
                keys = [mlp(p[f"address_maps_{head}"], a) for a in space]
                attention = p[f"address_attention_{head}"]
                weights = attend(attention, mlp(p[f"units_{head}"], pointer), keys, "cosine_temperature")
                pointer = sum(w * a for w, a in zip(weights, space, strict=True))
                value = sum(weights[a] * np.asarray(STATES[row, a % n], np.float64) for a in range(16))
                np.testing.assert_allclose(outputs[row, t, head * D : (head + 1) * D], value, atol=2e-5)
                held = [weights[j::n].sum() for j in range(n)]
                np.testing.assert_allclose(traces["pointer_weights"][t, row, head, :n], held, atol=2e-5)


@pytest.mark.parametrize("candidates", ["memory", "space"])
def test_hard_pointers_are_at_one_address(candidates):
    """Each step is then a map from addresses to addresses, and reads are slots of M."""
    decoder = PointerDecoder(**SIZES, **{**STATIONARY, "candidates": candidates}, hard=True)
    read = np.zeros((2, 4, 3), np.float32)
    params = drawn(decoder, STATES, MASK, read)
    outputs, _, traces = decoded(decoder, params, read=read)
    for row, n in enumerate(LENGTHS):
        for head in range(2):
            at = traces["address"][:, row, head]
            assert np.all((at >= 0) & (at < (n if candidates == "memory" else 16)))
            np.testing.assert_allclose(traces["pointer_weights"][:, row, head], np.eye(N)[at % n], atol=1e-6)
            np.testing.assert_allclose(outputs[row, :, head * D : (head + 1) * D], STATES[row, at % n], atol=1e-5)
            moves = set(itertools.pairwise(at))
            assert len(dict(moves)) == len(moves)


@pytest.mark.thorough
def test_a_decoder_under_pointers():
    """z_t of another decoder reaches the answer, and both get gradients."""
    spec = Spec(vocabulary=6, output_size=6)
    below = AttentionDecoder(GRUCell(5, parent=None), 5, parent=None)
    encoder = Recurrent(LSTMCell(8, parent=None))
    model = EncoderDecoder(encoder, PointerDecoder(below, **SIZES), spec, 8, "teacher_forced")
    drawings = np.random.default_rng(2).integers(0, 6, (2, N)), MASK, np.ones((2, 2), bool)
    inputs, mask, answers = map(jax.device_put, drawings)
    init = functools.partial(model.init, targets=inputs[:, :2])
    shapes = jax.eval_shape(init, jax.random.key(0), inputs, mask, answers)
    options: dict[str, Any] = {"targets": inputs[:, :2], "train": True, "rngs": {"address": jax.random.key(1)}}
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.uniform(-0.5, 0.5, x.shape).astype(np.float32), shapes["params"])

    def loss(params):
        outputs: Any = model.apply({"params": params}, inputs, mask, answers, **options)
        return jnp.sum(jnp.square(outputs))

    gradients = briefly(jax.grad(loss))(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))
    assert np.any(gradients["decoder"]["decoder"]["cell"]["input"]["kernel"] != 0)
    assert np.any(gradients["decoder"]["units_0"]["input"]["kernel"] != 0)


def test_pointers_over_a_transformer_fill_all_slots_at_once_or_one_by_one():
    below = TransformerDecoder(4, 1, 2, 6, "relative", parent=None)
    layer = PointerLayer(below, **SIZES)
    steps = 3
    reads, valid = np.random.default_rng(3).normal(size=(2, steps, 4)).astype(np.float32), np.ones((2, steps), bool)

    def one_by_one(module, reads):
        carry, memory = module.start(STATES, MASK, valid)
        outputs = []
        for t in range(steps):
            carry, output = module(carry, Step(reads[:, t], valid[:, t], valid[:, t]), memory)
            outputs.append(output)
        return jnp.stack(outputs, 1)

    params = {"params": drawn(layer, reads, method=one_by_one)}
    decode_all = briefly(lambda p, r: layer.apply(p, STATES, MASK, r, valid, method="decode_all"))
    at_once = np.asarray(decode_all(params, reads))
    stepped = briefly(lambda p, r: layer.apply(p, r, method=one_by_one))(params, reads)
    np.testing.assert_allclose(at_once, stepped, atol=1e-5)
    assert at_once.shape == (2, steps, 3 * D + H)  # two pointers, one relation, the controller
    later = reads + (np.arange(steps) == 2)[:, None].astype(np.float32)
    changed = np.any(at_once != decode_all(params, later), axis=(0, 2))
    assert list(changed) == [False, False, True]


# The growing memory ---------------------------------------------------------------------------------------------------


def scanned(cell, inputs, decoding):
    """Outputs [T, B, ...] of the scan that the interfaces run."""
    steps = Step(inputs, decoding, jnp.ones_like(decoding))
    return scan_cell(cell, cell.start(inputs.shape[1:2], inputs.shape[0]), steps)[1]


def looped(cell, inputs, decoding):
    """The same, one plain step after the other."""
    carry, outputs = cell.start(inputs.shape[1:2], inputs.shape[0]), []
    for x, d in zip(inputs, decoding, strict=True):
        carry, output = cell(carry, Step(x, d, jnp.ones_like(d)))
        outputs.append(output)
    return jnp.stack(outputs)


CELLS = {
    "paper": {"attention": "cosine", "address_heads": 3, "test_base": "random"},
    "space": {"candidates": "space", "pointer_unit": "feedforward", "controller": "attentive", "address_heads": 1},
}
T = 3
SEQUENCE = np.random.default_rng(5).normal(size=(T, 2, D)).astype(np.float32)
READING = np.zeros((T, 2), bool)


def grown(cell, params, base, inputs):
    """The twin of a cell with three pointers, on one row [T, d]. The first pointer goes on from where it is; the others
    begin each step at the newest and at the middle slot."""
    p, inputs = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, inputs))
    bank = [binary(base + j) for j in range(T)]
    pointers, hidden, controller, outputs = [bank[0]] * 3, [np.zeros(H)] * 3, np.zeros(H), []
    for t, z in enumerate(inputs):
        pointers[1:] = bank[t], bank[t // 2]
        memory = list(inputs[: t + 1])
        output, _, controller = step_twin(cell, p, memory, bank[: t + 1], z, pointers, hidden, controller)
        outputs.append(output)
    return outputs


@pytest.mark.thorough
@pytest.mark.parametrize("fields", CELLS.values(), ids=CELLS.keys())
def test_growing_memory_is_causal_and_its_scan_right(fields):
    cell = PointerCell(**SIZES, **fields, memory_width=D)
    params = drawn(cell, SEQUENCE, READING, method=looped)

    def outputs(params, inputs, method=scanned) -> Any:
        return cell.apply({"params": params}, inputs, READING, method=method)

    ours, twin = (
        briefly(
            jax.value_and_grad(
                lambda p, x, m=m: (jnp.sum(jnp.sin(y := outputs(p, x, m))), y), argnums=(0, 1), has_aux=True
            )
        )
        for m in (scanned, looped)
    )
    results = ours(params, SEQUENCE)
    if cell.address_heads == 3:
        (_, base), *_ = cell.apply({"params": params}, (2,), T, method="start")  # pyright: ignore
        assert np.all(np.asarray(base) > 0)
        for row, first in enumerate(np.asarray(base, int).tolist()):
            np.testing.assert_allclose(results[0][1][:, row], grown(cell, params, first, SEQUENCE[:, row]), atol=2e-5)
    for got, expected in zip(*map(jax.tree.leaves, (results, twin(params, SEQUENCE))), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)
    moved = SEQUENCE + np.where(np.arange(T) < 2, 0, np.float32(3))[:, None, None]
    plain, later = (np.asarray(found[0][1]) for found in (results, ours(params, moved)))
    np.testing.assert_allclose(later[:2], plain[:2], atol=1e-5)
    assert np.max(np.abs(later[2:] - plain[2:])) > 1e-2


def test_growing_memory_reads_the_present_input_and_nothing_while_decoding():
    cell = PointerCell(**SIZES, memory_width=D)
    decoding = READING | (np.arange(T) >= 2)[:, None]
    params = drawn(cell, SEQUENCE, decoding, method=looped)
    call = briefly(functools.partial(cell.apply, mutable=["traces"], method=scanned))
    outputs, mutated = call({"params": params}, SEQUENCE, decoding)
    (weights,) = mutated["traces"]["pointer_weights"]
    assert weights.shape == (T, 2, 2, T)
    weights, outputs = np.asarray(weights), np.asarray(outputs)
    for t in range(T):
        count = min(t + 1, 2)
        assert np.all(weights[t, ..., count:] == 0)
        np.testing.assert_allclose(np.sum(weights[t], -1), 1, atol=1e-5)
    np.testing.assert_allclose(outputs[0, :, :D], SEQUENCE[0], atol=1e-5)  # one slot: all heads read it
    assert np.all(np.isfinite(outputs))


def test_a_cell_under_pointers():
    cell = PointerCell(LSTMCell(3, parent=None), **SIZES, memory_width=D)
    params = drawn(cell, SEQUENCE, READING, method=looped)
    outputs = briefly(functools.partial(cell.apply, method=scanned))({"params": params}, SEQUENCE, READING)
    assert params["recurrence"]["input"]["kernel"].shape[0] == 3 * D + 3  # two pointers, one relation, z_t
    assert outputs.shape == (T, 2, 3 * D + H)


def test_a_cell_of_flax_under_pointers():
    cell = PointerCell(nn.GRUCell(3, parent=None), **SIZES, memory_width=D)
    params = drawn(cell, SEQUENCE, READING, method=looped)
    assert params["decoder"]["in"]["kernel"].shape == (D, 3)
    outputs = briefly(functools.partial(cell.apply, method=scanned))({"params": params}, SEQUENCE, READING)
    assert outputs.shape == (T, 2, 3 * D + H)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 2}, "its 4 addresses must outnumber the 6 slots"),
        ({"address_heads": 4}, "address_heads is 0 to 3"),
        ({"content_heads": 3}, "content_heads 0 to 2"),
        ({"address_heads": 0}, "needs content_heads=0"),
        ({"controller": "lstm"}, "controller is 'lstm'; allowed are gru, attentive, none"),
        ({"candidates": "none"}, "candidates is 'none'; allowed are memory, space"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    def init():
        return PointerDecoder(**{**SIZES, **fields}).init(jax.random.key(0), STATES, MASK, READ, method=run)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(init)


def test_no_address_heads_leave_a_plain_gru():
    decoder = PointerDecoder(**SIZES, address_heads=0, content_heads=0)
    params = drawn(decoder, STATES, MASK, READ)
    assert set(params) == {"recurrence", "bridge"}
    assert params["recurrence"]["input"]["kernel"].shape[0] == READ.shape[-1]
    outputs, _ = briefly(lambda p: decoder.apply({"params": p}, STATES, MASK, READ, method=run))(params)
    assert outputs.shape == (2, STEPS, H)
