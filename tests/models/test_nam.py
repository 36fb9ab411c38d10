"""NAM's networks against float64 twins written from the paper's equations, and NAM-TM as a Turing machine."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models, serialize
from lenmem.evaluation import plots, traces
from lenmem.evaluation.plots.nam import tape_of
from lenmem.models.nam import LSAM, LSAMCell, NAMTransformer
from lenmem.models.nam_baselines import (
    BERT,
    LSTMAttention,
    LSTMAttentionEncoder,
    UniversalEncoder,
    UniversalTransformer,
)
from lenmem.models.namtm import NAMTM, NAMTuringEncoder, NAMTuringLayer
from lenmem.models.tapes import (
    JUMP,
    LEFT,
    NO_OP,
    RIGHT,
    Controls,
    Shift,
    Tapes,
    Transition,
    run_heads,
    write_and_read,
)
from lenmem.nn.recurrence import recomputed_scan, scan_cell
from lenmem.nn.transformer import PreNormEncoder
from lenmem.types import Batch, Spec, Step
from tests.drawing import drawn as drawn_by
from tests.learning import briefly
from tests.models.twin import lstm_step, sigmoid, softmax

LENGTHS = (5, 2)
MASK = np.arange(6) < np.array(LENGTHS)[:, None]
STATES = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
DIRTY = np.where(MASK[..., None], STATES, np.float32(1e6))


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def drawn(module, *arguments, scale=0.7):
    """Outside of the nearly linear range."""
    return drawn_by(module.init, *arguments, scale=scale)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def linear(params, x):
    return x @ params["kernel"] + params["bias"]


def layer_norm(params, x, epsilon=1e-5):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * params["scale"] + params["bias"]


# NAM-Transformer and its fellows --------------------------------------------------------------------------------------


def positions(length, width):
    angles = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width)


def attended(kind, query, key, value, causal):
    """One head of one row: sums over keys, written as loops."""
    out = np.zeros_like(value)
    for i, q in enumerate(query):
        seen = range(i + 1 if causal else len(key))
        if kind == "outer_product":
            out[i] = sum(value[s] * (unit(key[s]) @ unit(q)) for s in seen)
        elif kind == "linear":
            weights = [
                np.where(q > 0, q + 1, np.exp(q)) @ np.where(key[s] > 0, key[s] + 1, np.exp(key[s])) for s in seen
            ]
            out[i] = sum(w * value[s] for w, s in zip(weights, seen, strict=True)) / (sum(weights) + 1e-6)
        else:
            weights = softmax(np.array([q @ key[s] for s in seen]) / np.sqrt(len(q)))
            out[i] = sum(w * value[s] for w, s in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize(("kind", "causal"), [("outer_product", False), ("linear", True), ("softmax", False)])
def test_pre_norm_encoder_equals_the_twin(kind, causal):
    model = PreNormEncoder(1, 2, 12, attention=kind, causal=causal, dropout=0.3)
    params = drawn(model, STATES, MASK)
    outputs = briefly(model.apply)({"params": params}, np.where(MASK[..., None], STATES, np.float32(np.nan)), MASK)
    p = float64(params)
    layer = p["layer_0"]
    for row, n in enumerate(LENGTHS):
        x = np.asarray(STATES[row, :n], np.float64) + positions(n, 8)
        normed = layer_norm(layer["attention_norm"], x, 1e-6)
        query, key, value = (
            np.einsum("nd,dhk->hnk", normed, layer["attention"][name]["kernel"]) for name in ("query", "key", "value")
        )
        mixed = [attended(kind, *head, causal) for head in zip(query, key, value, strict=True)]
        x = x + np.einsum("hnk,hkd->nd", mixed, layer["attention"]["out"]["kernel"])
        hidden = linear(layer["feedforward_in"], layer_norm(layer["feedforward_norm"], x, 1e-6))
        hidden = np.asarray(jax.nn.gelu(hidden))
        x = layer_norm(p["norm"], x + linear(layer["feedforward_out"], hidden), 1e-6)
        np.testing.assert_allclose(outputs[row, :n], x, atol=1e-4)
    np.testing.assert_array_equal(outputs[1, 2:], 0)


def test_unmasked_padding_writes_as_published():
    masked, unmasked = (PreNormEncoder(1, 2, 12, mask_padding=m) for m in (True, False))
    params = drawn(masked, STATES, MASK)
    first, second = (np.asarray(briefly(m.apply)({"params": params}, STATES, MASK)) for m in (masked, unmasked))
    assert np.max(np.abs(first - second)[1, :2]) > 1e-2


def test_universal_encoder_repeats_one_layer():
    model = UniversalEncoder(2, 2, 12, kernel_size=3)
    params = drawn(model, STATES, MASK, scale=0.4)
    assert set(params) == {"layer"}
    outputs = np.asarray(briefly(model.apply)({"params": params}, DIRTY, MASK))
    layer = float64(params)["layer"]

    def convolved(params, x):
        x = np.pad(x, [(1, 1), (0, 0)])
        return (
            np.stack([np.einsum("kd,kdf->f", x[i : i + 3], params["kernel"]) for i in range(len(x) - 2)])
            + params["bias"]
        )

    for row, n in enumerate(LENGTHS):
        x = np.asarray(STATES[row, :n], np.float64)
        for step in range(2):
            x = x + positions(n, 8) + positions(2, 8)[step]
            normed = layer_norm(layer["attention_norm"], x, 1e-6)
            heads = [
                np.einsum("nd,dhk->hnk", normed, layer["attention"][name]["kernel"])
                for name in ("query", "key", "value")
            ]
            mixed = [attended("softmax", *head, False) for head in zip(*heads, strict=True)]
            x = x + np.einsum("hnk,hkd->nd", mixed, layer["attention"]["out"]["kernel"])
            hidden = np.maximum(convolved(layer["feedforward_in"], layer_norm(layer["feedforward_norm"], x, 1e-6)), 0)
            x = x + convolved(layer["feedforward_out"], hidden)
        np.testing.assert_allclose(outputs[row, :n], x, atol=1e-4)


# LSAM -----------------------------------------------------------------------------------------------------------------


def lsam_twin(params, x, heads, memory=None):
    """Section 5.1 for one row: h_1 .. h_n and the last memory [H, d_h, d_h]."""
    features = params["kernel"].shape[1]
    d = (features - 2 * heads) // 3
    h, out = np.zeros(d), []
    memory = np.zeros((heads, d // heads, d // heads)) if memory is None else memory.copy()
    for x_t in x:
        commands = linear(params, np.concatenate([x_t, h]))
        q, k, v = commands[: 3 * d].reshape(3, heads, -1)
        p_r, p_w = sigmoid(commands[3 * d :]).reshape(2, heads)
        h = []
        for i in range(heads):
            key, query = unit(k[i]), unit(q[i])
            memory[i] += p_w[i] * np.outer(v[i], key) - p_w[i] * np.outer(memory[i] @ key, key)
            h.append(p_r[i] * memory[i] @ query)
        h = np.concatenate(h)
        out.append(h)
    return np.array(out), memory


def test_lsam_cell_equals_the_twin():
    cell = LSAMCell(6, 3)
    start = np.random.default_rng(5).normal(size=(2, 3, 2, 2)).astype(np.float32)
    params = drawn(cell, cell.start((2,)), Step(STATES[:, 0], MASK[:, 0], MASK[:, 0]))
    run = briefly(functools.partial(cell.apply, method="run"))
    outputs, memory = map(np.asarray, run({"params": params}, DIRTY, MASK, start))
    for row, n in enumerate(LENGTHS):
        expected, last = lsam_twin(float64(params), np.asarray(STATES[row, :n]), 3, np.asarray(start[row], np.float64))
        np.testing.assert_allclose(outputs[row, :n], expected, atol=2e-5)
        np.testing.assert_allclose(memory[row], last, atol=2e-5)  # padding has not written

    # Step by step, as a cell under an interface, it does the same.
    steps = Step(np.swapaxes(STATES, 0, 1), np.zeros_like(MASK.T), MASK.T)

    @briefly
    def step_by_step(params, steps):
        bound = cell.bind({"params": params})
        return scan_cell(bound, bound.start((2,), 6), steps)[1]

    hidden, (whole, _) = step_by_step(params, steps), run({"params": params}, STATES, MASK)
    np.testing.assert_allclose(np.swapaxes(hidden, 0, 1)[MASK], np.asarray(whole)[MASK], atol=1e-5)


def test_two_layer_lsam_equals_the_twin():
    spec = Spec(vocabulary=5, output_size=5)
    model = LSAM(hidden_size=8, heads=4, feedforward_size=12, spec=spec)
    tokens = np.random.default_rng(2).integers(0, 5, (2, 4))
    inputs, answers = np.arange(4) < np.array([4, 2])[:, None], np.arange(3) < np.array([3, 1])[:, None]
    params = drawn(model, tokens, inputs, answers)
    outputs = briefly(model.apply)({"params": params}, tokens, inputs, answers)
    p = float64(params)
    e = p["encoder"]
    interface = p["Completion_0"]
    table = interface["embedding"]["Embed_0"]["embedding"]
    for row, (n, m) in enumerate([(4, 3), (2, 1)]):
        x = table[[*np.asarray(tokens[row, :n]), *[5 + 2] * m]]
        ahead, memory_ahead = lsam_twin(e["layer_1_ahead"], x, 2)
        back, memory_back = lsam_twin(e["layer_1_back"], x[::-1], 2)
        x = x + np.maximum(linear(e["layer_1_out"], np.concatenate([ahead, back[::-1]], -1)), 0)
        x = x + linear(e["feedforward_out"], np.maximum(linear(e["feedforward_in"], x), 0))
        x = layer_norm(e["feedforward_norm"], x)
        read, _ = lsam_twin(e["layer_2"], x, 4, np.concatenate([memory_ahead, memory_back]))
        x = layer_norm(e["norm"], np.maximum(linear(e["layer_2_out"], read), 0))
        np.testing.assert_allclose(outputs[row, :m], linear(interface["head"], x)[n:], atol=1e-4)


# NAM-TM as a Turing machine: hand-set actions -------------------------------------------------------------------------

ACTIONS = (LEFT, NO_OP, RIGHT, JUMP)


def controls(write, read, values, p_w, *, keys=None, queries=None, p_r=None, actions=len(ACTIONS)):
    """Controls of one row and one tape: actions by number, values [T, d]."""
    steps = len(write)
    keys = jnp.zeros_like(values) if keys is None else keys
    queries = jnp.zeros_like(values) if queries is None else queries
    fields = (values, keys, queries, np.ones(steps) if p_r is None else p_r, p_w)
    fields = (*fields, *(np.eye(actions)[np.asarray(a)] for a in (read, write)))
    return Controls(*(jnp.asarray(x, jnp.float32)[None, :, None] for x in fields))


@functools.partial(jax.jit, static_argnums=(2, 3))
def run_machine(commands, start, transitions, normalize):
    tape = jnp.zeros((1, 1, commands.value.shape[-1], len(start)))
    mask = jnp.ones(commands.value.shape[:2], bool)
    read, write, _ = run_heads(commands, mask, transitions, start, tape, normalize=normalize)
    reads, tape = write_and_read(commands, mask, read, write, tape)
    return reads[0, :, 0], write[0, 0], read[0, 0], tape[0, 0]


def machine(commands, start, transitions=ACTIONS, normalize=False):
    """(reads [T, d], write heads [T, L], read heads [T, L], tape [d, L]) of heads that begin at `start` [L]."""
    results = run_machine(commands, jnp.asarray(start, jnp.float32), transitions, normalize)
    return tuple(np.asarray(x) for x in results)


def test_hand_set_actions_are_a_turing_machine():
    generator = np.random.default_rng(0)
    steps, width = 20, 3
    write, read = generator.integers(0, 3, (2, steps))  # LEFT, NO-OP, RIGHT
    values, gates = generator.normal(size=(steps, width)), generator.integers(0, 2, steps)
    reads, write_heads, read_heads, tape = machine(controls(write, read, values, gates), np.eye(41)[20])
    cells: dict[int, Any] = {}
    at_write = at_read = 0
    for t in range(steps):
        if gates[t]:
            cells[at_write] = values[t]
        np.testing.assert_array_equal(write_heads[t], np.eye(2 * steps + 1)[steps + at_write])
        np.testing.assert_array_equal(read_heads[t], np.eye(2 * steps + 1)[steps + at_read])
        np.testing.assert_allclose(reads[t], cells.get(at_read, np.zeros(width)), atol=1e-5)
        at_write, at_read = at_write + write[t] - 1, at_read + read[t] - 1
    for cell in range(-steps, steps + 1):
        np.testing.assert_allclose(tape[:, steps + cell], cells.get(cell, np.zeros(width)), atol=1e-5)


def test_write_then_move_then_read():
    values = np.random.default_rng(1).normal(size=(5, 5))
    left, no_op, right = range(3)
    # Write 3 values going right; meanwhile the read head waits, then goes right, and back left.
    commands = controls([right] * 3 + [no_op] * 2, [no_op, no_op, right, right, left], values, [1, 1, 1, 0, 0])
    reads, *_ = machine(commands, np.eye(11)[5])
    np.testing.assert_allclose(reads, values[[0, 0, 0, 1, 2]], atol=1e-6)


def test_a_jump_returns_to_where_its_key_was_written():
    jump, right, no_op = 3, 2, 1
    keys, values = np.eye(5), np.random.default_rng(2).normal(size=(5, 5))
    queries = np.eye(5)[[0, 0, 0, 1, 0]]  # step 3 asks for key 1
    write = [right, right, right, no_op, no_op]
    read = [no_op, no_op, no_op, jump, no_op]
    commands = controls(write, read, values, [1, 1, 1, 0, 0], keys=keys, queries=queries)
    reads, _, heads, _ = machine(commands, np.eye(11)[5])
    np.testing.assert_allclose(heads[4], np.eye(11)[6], atol=1e-6)  # key 1 was written one cell to the right
    np.testing.assert_allclose(reads[4], values[1], atol=1e-5)


def test_normalized_heads_keep_theorem_1():
    start = np.array([0.5, 1.0, 0.25, *[0] * 8])  # neither a unit vector nor in one place
    values = np.random.default_rng(3).normal(size=(5, 5))
    commands = controls([1] * 5, [1] * 5, values, [1] * 5)
    reads, heads, _, _ = machine(commands, start, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(heads, axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(reads, values, atol=1e-5)
    plain, heads, _, _ = machine(commands, start)
    np.testing.assert_array_equal(heads, np.broadcast_to(start, heads.shape))
    assert np.max(np.abs(plain - values)) > 0.1


@dataclasses.dataclass(frozen=True)
class Home(Transition):
    """A new rule: return to the cells that hold something, weighted by how much they hold."""

    looks_at: ClassVar = ("values",)

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        assert tapes.values is not None and tapes.keys is None
        return jnp.sum(jnp.abs(tapes.values), axis=-2)


def test_new_transitions():
    double = Shift(2)
    values = np.array([[1.0], [0], [0]])
    commands = controls([1, 1, 1], [0, 1, 1], values, [1, 0, 0], actions=2)
    reads, _, heads, _ = machine(commands, np.eye(13)[6], (double, Home()))
    np.testing.assert_allclose(heads[:, 6:], np.eye(13)[[6, 8, 6], 6:], atol=1e-6)
    np.testing.assert_allclose(reads, [[1], [0], [1]], atol=1e-6)

    # In the whole model: a double step needs twice the room, and a configuration with rules can be saved.
    model = NAMTM(hidden_size=8, tapes=2, layers=1, rules=(double, Home()))
    assert serialize.from_plain(serialize.to_plain(model), [Home]) == model
    layer = NAMTuringLayer(2, (LEFT, double, Home()))
    assert layer.positions(10) == (41, 20)
    outputs, tape = jax.eval_shape(lambda: layer.init_with_output(jax.random.key(0), STATES, MASK)[0])
    assert outputs.shape == STATES.shape and tape.shape == (2, 2, 4, 25)


# NAM-TM against its twin ----------------------------------------------------------------------------------------------


def gru(params, x):
    """Torch's GRU over one row."""
    h = np.zeros(params["hidden"]["kernel"].shape[0])
    out = []
    for x_t in x:
        r_x, z_x, n_x = np.split(linear(params["input"], x_t), 3)
        r_h, z_h, n_h = np.split(linear(params["hidden"], h), 3)
        z = sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        out.append(h)
    return np.array(out)


def turing_twin(params, x, tapes, length, start, *, jump=True, normalize=False, published=False, tape=None):
    """Section 5.2 for one row, in the order of its equations; heads as lists over tapes. (reads, T)."""
    actions, width = 4 if jump else 3, x.shape[1] // tapes
    ahead, back = (gru(params["controller"][name], y) for name, y in (("cell", x), ("backward", x[::-1])))
    hidden = np.concatenate([ahead, back[::-1]], -1)
    values = [np.zeros((width, length)) for _ in range(tapes)] if tape is None else list(np.asarray(tape, np.float64))
    keys = [np.zeros((width, length)) for _ in range(tapes)]
    heads = [[np.eye(length)[start]] * 2 for _ in range(tapes)]
    reads = np.zeros_like(x)
    for t, (x_t, h_t) in enumerate(zip(x, hidden, strict=True)):
        commands = linear(params["actions"], h_t).reshape(tapes, -1)
        v = linear(params["value"], x_t).reshape(tapes, -1)
        for i in range(tapes):
            p_read, p_write = softmax(commands[i, :actions]), softmax(commands[i, actions : 2 * actions])
            p_r, p_w = sigmoid(commands[i, 2 * actions :])
            used_r, used_w = (unit(h) if normalize else h for h in heads[i])
            values[i] = values[i] + p_w * np.outer(v[i], used_w) - p_w * np.outer(values[i] @ used_w, used_w)
            reads[t, i * width : (i + 1) * width] = p_r * values[i] @ used_r
            moves = [lambda h: np.roll(h, -1), lambda h: h, lambda h: np.roll(h, 1)]
            if jump:
                k = unit(linear(params["key"], x_t).reshape(tapes, -1)[i])
                q = unit(linear(params["query"], h_t).reshape(tapes, -1)[i])
                keys[i] = keys[i] + p_w * np.outer(k, used_w) - p_w * np.outer(keys[i] @ used_w, used_w)
                moves.append(lambda h, table=keys[i], q=q: table.T @ q)
            heads[i] = [
                sum(p * move(h) for p, move in zip(probabilities, moves, strict=True))
                for h, probabilities in zip(heads[i][:1] * 2 if published else heads[i], (p_read, p_write), strict=True)
            ]
    return linear(params["out"], reads), np.array(values)


@pytest.mark.parametrize(
    ("fields", "length", "start"),
    [
        ({}, 13, 6),
        ({"tape_length": 3, "normalize_heads": True}, 3, 0),
        ({"transitions": (LEFT, NO_OP, RIGHT), "tape_length": 32}, 32, 0),
        ({"tape_length": 8, "published_heads": True}, 8, 0),
    ],
    ids=["endless", "circular_normalized", "no_jump_published", "published_heads"],
)
def test_turing_layer_equals_the_twin(fields, length, start):
    layer = NAMTuringLayer(2, **fields)
    first = np.random.default_rng(7).normal(size=(2, 2, 4, length)).astype(np.float32)
    params = drawn(layer, STATES, MASK)
    outputs, last = briefly(layer.apply)({"params": params}, np.where(MASK[..., None], STATES, 0), MASK, first)
    options = {"jump": "transitions" not in fields, "normalize": "normalize_heads" in fields}
    options["published"] = "published_heads" in fields
    for row, n in enumerate(LENGTHS):
        x = np.asarray(STATES[row, :n], np.float64)
        expected, tape = turing_twin(float64(params), x, 2, length, start, tape=first[row], **options)
        np.testing.assert_allclose(outputs[row, :n], expected, atol=1e-4)
        np.testing.assert_allclose(last[row], tape, atol=1e-4)


def test_turing_encoder_equals_the_twin():
    """Both layers read the source; the second begins on the tape that the first has left, and its reads are normed."""
    layers = tuple(NAMTuringLayer(2, tape_length=5, parent=None) for _ in range(2))
    model = NAMTuringEncoder(layers)
    params = drawn(model, STATES, MASK)
    outputs = np.asarray(briefly(model.apply)({"params": params}, DIRTY, MASK))
    p = float64(params)
    for row, n in enumerate(LENGTHS):
        source = layer_norm(p["source_norm"], linear(p["source"], np.asarray(STATES[row, :n], np.float64)))
        _, tape = turing_twin(p["layers_0"], source, 2, 5, 0)
        reads, _ = turing_twin(p["layers_1"], source, 2, 5, 0, tape=tape)
        np.testing.assert_allclose(outputs[row, :n], np.maximum(layer_norm(p["norm"], reads), 0), atol=5e-4)
    np.testing.assert_array_equal(outputs[~MASK], 0)


class Through(NAMTuringLayer):
    """In the place of a layer: reads its source."""

    def __call__(self, states, mask, tape=None):
        return states, tape


def test_turing_encoder_drops_its_source_and_its_reads_in_training_only():
    """A source that is dropped is normed again; a read is 0 or twice what it was."""
    whole, at_source, at_reads = (
        NAMTuringEncoder((Through(parent=None),), input_dropout=source, dropout=reads)
        for source, reads in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5))
    )
    params = drawn(whole, STATES, MASK)

    @briefly
    def run(key):
        arguments: Any = {"params": params}, STATES, MASK
        training = [m.apply(*arguments, deterministic=False, rngs={"dropout": key}) for m in (at_source, at_reads)]
        return [whole.apply(*arguments), at_source.apply(*arguments), at_reads.apply(*arguments), *training]

    plain, *still, without_source, without_reads = (np.asarray(x)[MASK] for x in run(jax.random.key(0)))
    for idle in still:
        np.testing.assert_array_equal(idle, plain)
    kept = without_reads != 0
    np.testing.assert_allclose(without_reads[kept], 2 * plain[kept], rtol=1e-5)
    assert 0 < np.sum(kept) < np.sum(plain != 0)
    assert np.all(np.any(without_source != plain, axis=-1)) and not np.any(kept & (plain == 0))


def test_the_default_tape_is_endless():
    spec = Spec(vocabulary=5, output_size=5)
    tokens, mask = np.random.default_rng(2).integers(0, 5, (2, 4)), np.ones((2, 4), bool)
    call = (tokens, mask, mask)
    # 8 positions: heads stay within 8 cells to both sides. 40 circular cells are room enough, 5 are not.
    sized = [NAMTM(hidden_size=8, tapes=2, tape_length=length, spec=spec) for length in (None, 40, 5)]
    params = drawn(sized[0], *call)
    endless, wide, narrow = (np.asarray(briefly(model.apply)({"params": params}, *call)) for model in sized)
    np.testing.assert_allclose(endless, wide, atol=1e-5)
    assert np.max(np.abs(endless - narrow)) > 1e-3


# What all share -------------------------------------------------------------------------------------------------------


def test_recomputed_scan_is_a_scan():
    xs = np.random.default_rng(0).normal(size=(37, 2, 3)).astype(np.float32)

    def body(carry, inputs):
        x, valid = inputs
        carry = jnp.where(valid[:, None], jnp.tanh(carry * 0.9 + x), carry)
        return carry, 2 * carry

    def gradients(scan):
        def total(start, xs):
            last, outputs = scan(body, start, (xs, jnp.ones((37, 2), bool)))
            return jnp.sum(last**2) + jnp.sum(outputs**2)

        return briefly(jax.value_and_grad(total, (0, 1)))(np.ones((2, 3), np.float32), xs)

    got = gradients(lambda body, start, xs: recomputed_scan(body, start, xs, xs[1]))
    expected = gradients(jax.lax.scan)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)

    # Nothing is computed after the last valid step: the second of three chunks is the last to run.
    valid = np.arange(37)[:, None] < np.array([5, 20])
    run = briefly(lambda valid: recomputed_scan(body, jnp.ones((2, 3)), (xs, valid), valid))
    outputs = np.asarray(run(valid)[1])
    assert np.all(outputs[26:] == 0) and np.all(outputs[:20] != 0)


small: dict[str, Any] = {"hidden_size": 8, "dropout": 0.0}
layers: dict[str, Any] = {**small, "layers": 1, "heads": 2, "feedforward_size": 12}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model",
    [
        NAMTransformer(**layers),
        NAMTransformer(**layers, attention="linear"),
        NAMTransformer(**layers, attention="softmax"),
        LSAM(**small, heads=2, feedforward_size=12),
        NAMTM(**small, tapes=2),
        UniversalTransformer(**small, steps=2, heads=2, feedforward_size=12, kernel_size=3),
        BERT(**layers),
        LSTMAttention(**small),
    ],
    ids=["nam", "linear", "softmax", "lsam", "namtm", "universal", "bert", "lstm_attention"],
)
def test_causal_tasks_are_read_causally(model):
    spec = Spec(vocabulary=5, output_size=5, alignment="aligned", causal=True)
    assert models.supports(model, spec) is None
    model = model.clone(spec=spec)
    mask = np.ones((1, 6), bool)
    tokens = np.random.default_rng(2).integers(0, 5, (1, 6))
    params = drawn(model, tokens, mask, mask)
    run = briefly(lambda tokens, mask: model.apply({"params": params}, tokens, mask, mask))
    others = np.where(np.arange(6) < 4, tokens, (tokens + 1) % 5)
    before, after = (np.asarray(run(x, mask)) for x in (tokens, others))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(np.any(before[:, 4:] != after[:, 4:], axis=-1))


def test_lstm_attention_equals_the_twin():
    model = LSTMAttentionEncoder(causal=True)
    params = drawn(model, STATES, MASK, scale=0.5)
    outputs = np.asarray(briefly(model.apply)({"params": params}, DIRTY, MASK))
    p = float64(params)

    def lstm(params, x):
        c = h = np.zeros(8)
        out = []
        for x_t in x:
            c, h = lstm_step(params, x_t, c, h)
            out.append(h)
        return np.array(out)

    for row, n in enumerate(LENGTHS):
        h = lstm(p["first"]["cell"], np.asarray(STATES[row, :n]))
        mixed = []
        for t in range(n):
            weights = softmax(h[: t + 1] @ (h[t] @ p["query"]["kernel"]))
            mixed.append(np.tanh(np.concatenate([weights @ h[: t + 1], h[t]]) @ p["mix"]["kernel"]))
        np.testing.assert_allclose(outputs[row, :n], lstm(p["second"]["cell"], mixed), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        (LSAM(hidden_size=1024, heads=8, feedforward_size=2048), 17.4),
        (NAMTM(hidden_size=1024, tapes=8, tape_length=32), 19.1),
        (NAMTM(hidden_size=1024, tapes=8, tape_length=32, jump=False, controller="lstm"), 18.0),
        (LSTMAttention(hidden_size=1448), 31.5),
        # The paper's code counts an unused layer (3.15 M) and another map (1536^2): 28.7 and 26.0.
        (BERT(hidden_size=512, layers=8, heads=8, feedforward_size=2048), round(28.65 - 3.15, 1)),
        (
            UniversalTransformer(hidden_size=1536, steps=8, heads=24, feedforward_size=1536, kernel_size=3),
            round(26.01 - 1536**2 / 1e6, 1),
        ),
    ],
    ids=["lsam", "namtm", "no_jump", "lstm_attention", "bert", "universal"],
)
def test_published_sizes(model, millions):
    model = model.clone(spec=Spec(vocabulary=16, output_size=16))
    mask = jnp.ones((1, 2), bool)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), int), mask, mask)["params"]
    assert round(sum(x.size for x in jax.tree.leaves(shapes)) / 1e6, 1) == millions


STREAM = Spec(vocabulary=5, output_size=5, alignment="aligned", causal=True)


@pytest.mark.parametrize("fields", [{}, {"attention": "linear", "positions": "none"}], ids=["nam", "linear"])
def test_a_stream_is_the_whole_sequence_in_pieces(fields):
    """Rows of different lengths, in pieces of several tokens and of one; padding leaves no trace in the memory."""
    model = NAMTransformer(**layers | {"layers": 2}, **fields, spec=STREAM)
    lengths, pieces = np.array([[9], [5]]), (3, 1, 1, 4)
    mask = np.arange(9) < lengths
    tokens = np.random.default_rng(2).integers(0, 5, (2, 9))
    params = drawn(model, tokens, mask, mask)
    whole = np.asarray(briefly(model.apply)({"params": params}, tokens, mask, mask))
    step = briefly(model.step)
    memory = start = model.empty_memory(2)
    read, at = [], 0
    for piece in pieces:
        part = slice(at, at + piece)
        memory, outputs = step(params, memory, tokens[:, part], mask[:, part])
        read.append(outputs)
        at += piece
    got = np.concatenate(read, axis=1)
    np.testing.assert_allclose(got[mask], whole[mask], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(memory["encoder"]["read"], lengths[:, 0])
    assert jax.tree.map(jnp.shape, memory) == jax.tree.map(jnp.shape, start)
    all_at_once, _ = step(params, start, tokens, mask)
    dirty, _ = step(params, start, np.where(mask, tokens, 4 - tokens), mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), memory, all_at_once)
    jax.tree.map(np.testing.assert_array_equal, dirty, all_at_once)


def test_a_stream_far_from_its_beginning():
    """The memory says where the stream is: token 1000 of one stream is that of the whole, after a jump there too."""
    model = NAMTransformer(**layers, spec=STREAM)
    tokens, mask = np.arange(1000)[None] % 5, np.ones((1, 1000), bool)
    params = drawn(model, tokens[:, :2], mask[:, :2], mask[:, :2], scale=0.3)
    step = briefly(model.step)
    memory, _ = step(params, model.empty_memory(1), tokens[:, :999])
    _, last = step(params, memory, tokens[:, 999:])
    whole = briefly(model.apply)({"params": params}, tokens, mask, mask)
    np.testing.assert_allclose(last[:, 0], whole[:, -1], rtol=1e-3, atol=1e-4)
    elsewhere, _ = step(params, model.empty_memory(1), tokens[:, 999:])
    assert (
        np.abs(
            elsewhere["encoder"]["layer_0"]["attention"]["sums"] - memory["encoder"]["layer_0"]["attention"]["sums"]
        ).max()
        > 1
    )


def test_the_step_of_a_stream_costs_the_same_everywhere():
    """One program whatever was read, with less memory than the states of a thousand tokens."""
    model = NAMTransformer(**layers | {"layers": 2}, spec=STREAM)
    memory, token = model.empty_memory(1), jnp.zeros((1, 1), int)
    params = drawn(model, token, token > -1, token > -1)
    used = jax.jit(model.step).lower(params, memory, token).compile().memory_analysis()
    assert used.temp_size_in_bytes + used.output_size_in_bytes < 4 * 1000 * 8
    assert sum(x.nbytes for x in jax.tree.leaves(memory)) == 4 * (1 + 2 * 2 * 4 * 4)


@pytest.mark.parametrize(
    ("fields", "spec", "message"),
    [
        ({}, Spec(vocabulary=5, output_size=5), "the task must be aligned and causal"),
        ({"attention": "softmax"}, STREAM, "softmax attention needs all earlier keys"),
        ({"positions": "learned"}, STREAM, "no longest length; allowed are the positions sinusoidal and none"),
        ({"random_positions": True}, STREAM, "no longest length"),
    ],
)
def test_networks_that_cannot_stream_say_why(fields, spec, message):
    with pytest.raises(ValueError, match=f"^this NAMTransformer cannot read a sequence step by step: .*{message}"):
        NAMTransformer(**layers, **fields, spec=spec).empty_memory(1)
    with pytest.raises(ValueError, match=message):
        NAMTransformer(**layers, **fields, spec=spec).step({}, None, jnp.zeros((1, 3), int))


def test_a_stream_has_as_many_rows_as_its_memory():
    model = NAMTransformer(**layers, spec=STREAM)
    with pytest.raises(ValueError, match="the memory is that of 2 rows, and there are tokens for 3"):
        model.step({}, model.empty_memory(2), jnp.zeros((3, 1), int))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NAMTransformer(hidden_size=8, heads=3), "3 heads do not divide a width of 8"),
        (lambda: NAMTransformer(hidden_size=8, attention="cubic"), "attention is 'cubic'; allowed are outer_product"),  # pyright: ignore
        (lambda: LSAM(hidden_size=8, heads=3), "got a width of 8, 3 heads"),
        (lambda: NAMTM(hidden_size=8, tapes=3), "3 tapes, or two directions, do not divide a width of 8"),
        (lambda: NAMTM(hidden_size=8, layers=0), "layers is 0"),
        (lambda: NAMTM(hidden_size=8, tape_length=0), "tape_length is 0"),
        (lambda: NAMTM(hidden_size=8, controller="rnn"), "controller is 'rnn'"),  # pyright: ignore
        (lambda: BERT(hidden_size=8, max_positions=4), "max_positions is 4; the padded rows have 6 positions"),
        (lambda: LSTMAttention(hidden_size=9), "got a width of 9"),
    ],
)
def test_errors(make, message):
    mask = jnp.ones((1, 3), bool)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            make().clone(spec=Spec(vocabulary=4, output_size=4)).init,
            jax.random.key(0),
            jnp.zeros((1, 3), int),
            mask,
            mask,
        )


def test_traces_and_their_picture(tmp_path):
    spec = Spec(vocabulary=5, output_size=5)
    model = NAMTM(hidden_size=8, tapes=2, spec=spec)
    mask = jnp.ones((2, 3), bool)
    tokens = jnp.array([[0, 1, 2], [3, 4, 0]])
    params = drawn(model, tokens, mask, mask)
    found = traces.collect(model, params, Batch(tokens, mask, tokens, mask, mask))
    names = {name.rpartition("/")[2] for name in found}
    gates = {"read_probability", "write_probability", "read_actions", "write_actions"}
    assert names == {"read_position", "write_position", "jump_target", *gates}
    layer = {name.rpartition("/")[2]: value for name, value in found.items() if "layers_1" in name}
    assert layer["read_position"].shape == layer["jump_target"].shape == (2, 6, 2, 13)
    np.testing.assert_array_equal(layer["write_position"][:, 0], np.broadcast_to(np.eye(13)[6], (2, 2, 13)))
    np.testing.assert_allclose(layer["read_actions"].sum(-1), 1, atol=1e-5)
    tape = tape_of(found, 1, layer=1, tape=1)
    assert tape.cells[0] <= 0 <= tape.cells[-1] and tape.read[0, list(tape.cells).index(0)] == 1
    figure = plots.plot_tape(found, 1, tmp_path / "tape.png", layer=1, rows=list("abcdef"))
    assert [ax.get_title(loc="left") for ax in figure.axes[:3]] == ["write head", "read head", "jump table"]
    assert (tmp_path / "tape.png").stat().st_size > 1000
    for ax, name in zip(figure.axes, ("write_position", "read_position", "jump_target"), strict=False):
        np.testing.assert_allclose(
            ax.images[0].get_array(), layer[name][1, :, 0][:, tape_of(found, 1, layer=1).cells + 6]
        )
    with pytest.raises(ValueError, match="layer must lie between 0 and 1, got 2"):
        plots.plot_tape(found, 0, layer=2)
    with pytest.raises(ValueError, match="needs the trace 'read_position'; this model has x"):
        plots.plot_tape({"x": np.zeros(3)}, 0)
