"""The encoder-decoder Transformer: decoding, the recipe's variants and sizes, and what it learns.

The layers' twins are in `tests.nn`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.transformer_seq2seq import TransformerSeq2Seq
from lenmem.nn import pointers
from lenmem.nn.positions import Numbered
from lenmem.tasks.base import masked_loss
from lenmem.types import Batch, Spec
from tests.drawing import drawn
from tests.learning import briefly, fit, trained
from tests.marks import thorough

SPEC = Spec(vocabulary=5, output_size=6)
LENGTHS, ANSWERS = (4, 2), (3, 5)
INPUTS = np.random.default_rng(0).integers(0, 5, (2, 4))
MASK = np.arange(4) < np.array(LENGTHS)[:, None]
SLOTS = np.arange(5) < np.array(ANSWERS)[:, None]
CALL = tuple(map(jax.device_put, (INPUTS, MASK, SLOTS)))
SMALL = {"hidden_size": 8, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "feedforward_size": 12, "dropout": 0.2}


def small(**fields):
    return TransformerSeq2Seq(**(SMALL | {"spec": SPEC} | fields))


def shapes(model, call=CALL):
    return jax.eval_shape(model.init, jax.random.key(0), *call)["params"]


def parameters(model, call=CALL):
    return drawn(model.init, *call, scale=0.8)


# Decoding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "shared", "fields"),
    [
        ("relative", True, {}),
        ("relative", False, {"decoder_positions": "absolute", "pointers": True}),
        *thorough(
            ("absolute", False, {}),
            ("none", False, {}),
            ("alibi", True, {"random_positions": True, "max_positions": 30}),
            ("absolute", True, {"decoder_layers": 1, "pointers": True}),
        ),
    ],
)
def test_cached_greedy_decoding_equals_passes_over_whole_prefixes(positions, shared, fields, monkeypatch):
    """Each answer equals one causal pass without a cache over the greedy answers before it, in training and outside."""
    numbered = Numbered.numbered  # positions in training are the same as outside of it
    monkeypatch.setattr(
        Numbered, "numbered", lambda *arguments, deterministic: numbered(*arguments, deterministic=True)
    )
    monkeypatch.setattr(pointers, "sample_base", lambda key, bits, shape: jnp.zeros(shape, jnp.int32))
    model = small(positions=positions, shared_layers=shared, encoder_layers=1, dropout=0.0, **fields)
    params = parameters(model)
    greedy = np.asarray(briefly(lambda p: model.apply({"params": p}, *CALL))(params))
    rngs = {"address": jax.random.key(1)}
    whole = briefly(lambda p, targets: model.apply({"params": p}, *CALL, targets=targets, train=True, rngs=rngs))
    scored = briefly(lambda p, targets: model.apply({"params": p}, *CALL, targets=targets))
    answers = np.argmax(greedy, -1)
    for told, told_to in ((answers, whole), (np.where(np.arange(5) < 2, answers, 0), whole), (answers, scored)):
        outputs = np.asarray(told_to(params, told))
        until = 5 if told is answers else 3  # Only earlier answers matter.
        for row, m in enumerate(ANSWERS):
            np.testing.assert_allclose(outputs[row, : min(m, until)], greedy[row, : min(m, until)], atol=3e-5)
    assert len({tuple(row) for row in np.round(greedy[1], 4)}) > 1


def test_open_loop_is_told_nothing():
    model = small(feedback="open_loop", dropout=0.0, embedding="noscale")
    params = parameters(model)
    given = {"targets": np.ones((2, 5), int), "train": True}
    run = briefly(lambda p: [model.apply({"params": p}, *CALL, **each) for each in ({}, given)])
    outputs, told = map(np.asarray, run(params))
    np.testing.assert_array_equal(told, outputs)
    assert not np.allclose(outputs[1, 0], outputs[1, 1], rtol=0, atol=1e-4)


# The recipe -----------------------------------------------------------------------------------------------------------


def count(spec, **fields):
    call = np.zeros((1, 3), int), np.ones((1, 3), bool), np.ones((1, 2), bool)
    return sum(x.size for x in jax.tree.leaves(shapes(TransformerSeq2Seq(spec=spec, **fields), call)))


def test_published_sizes():
    """SCAN 0.99 M, mathematics 44.2 M. Ours have one more row in each table: a blank, and a begin symbol."""
    scan, big = Spec(vocabulary=13, output_size=7), Spec(vocabulary=73, output_size=73)
    layer = 4 * 128**2 + 2 * 128 * 256 + 256 + 128 + 4 * 128
    published = 3 * layer + 3 * (layer + 4 * 128**2 + 2 * 128) + (13 + 2) * 128 + 7 * 128 + 7
    ours = count(scan)
    assert ours == published + 2 * 128
    assert round(published / 1e6, 2) == 0.99
    assert count(scan, positions="relative", embedding="xavier") == ours + 6 * (128**2 + 2 * 128)
    assert count(scan, shared_layers=True) == ours - 4 * layer - 2 * (4 * 128**2 + 2 * 128)
    maths = {"hidden_size": 512, "encoder_layers": 6, "decoder_layers": 6, "feedforward_size": 2048}
    assert round(count(big, **maths) / 1e6, 1) == 44.2


@pytest.mark.parametrize(
    ("embedding", "std", "read", "place"),
    [
        ("scaledinit", (2 / 64) ** 0.5, 1, 1 / 8),
        ("opennmt", (2 / (1000 + 64)) ** 0.5, 8, 1),
        ("noscale", 1.0, 1, 1),
        ("xavier", (2 / (1000 + 64)) ** 0.5, 1, 1),
    ],
)
def test_embeddings(embedding, std, read, place):
    """Spread of the tables, and scales of what the layers read."""
    model = TransformerSeq2Seq(64, 1, 1, embedding=embedding, dropout=0.0, spec=Spec(997, 999))

    @briefly
    def start(key):
        variables = model.init(key, *CALL)
        options = {"targets": np.zeros((2, 5), int), "train": True, "capture_intermediates": True}
        _, inside = model.apply({"params": variables["params"]}, *CALL, **options)
        return variables["params"]["TiedEncoderDecoder_0"], inside["intermediates"]["encoder"]["place"]["__call__"][0]

    params, placed = jax.tree.map(np.asarray, start(jax.random.key(0)))
    for table in ("embedding", "answer_embedding"):
        assert np.std(params[table]["embedding"]) == pytest.approx(std, rel=0.03)
    rows = params["embedding"]["embedding"]
    angle = 1 / 10_000 ** (np.arange(0, 64, 2) / 64)
    signal = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(-1)
    np.testing.assert_allclose(placed[1, 1], read * rows[INPUTS[1, 0]] + place * signal, atol=1e-4)
    np.testing.assert_allclose(placed[0, 0], read * rows[997] + place * np.tile([0, 1], 32), atol=1e-4)  # begin
    np.testing.assert_allclose(placed[1, 3, 0], read * rows[998, 0] + place * np.sin(3), atol=1e-4)  # end


@pytest.mark.parametrize(("embedding", "read"), [("scaledinit", 1), ("opennmt", 8), ("noscale", 1), ("xavier", 1)])
def test_the_blank_does_not_hide_the_positions(embedding, read):
    """In an open loop, answer slots differ by their positions only, so these must not be small beside the blank."""
    model = TransformerSeq2Seq(64, 1, 1, embedding=embedding, dropout=0.0, feedback="open_loop", spec=Spec(997, 999))

    @briefly
    def start(key):
        _, variables = model.init_with_output(key, *CALL, capture_intermediates=True)
        placed = variables["intermediates"]["decoder"]["place"]["__call__"][0]
        return read * variables["params"]["TiedEncoderDecoder_0"]["blank"], placed

    blank, placed = map(np.asarray, start(jax.random.key(0)))
    assert np.std(placed - blank) > np.std(blank) / 3


def test_tied_answers_are_read_off_the_table():
    """Logits are linear in the row and the bias of a symbol that is never fed back."""
    model = small(dropout=0.0)
    params = parameters(model)
    reader = params["TiedEncoderDecoder_0"]
    assert set(reader) == {"embedding", "answer_embedding", "bias"} and reader["bias"].shape == (6,)
    targets = np.ones((2, 5), int)
    run = briefly(lambda p: model.apply({"params": p}, *CALL, targets=targets, train=True))
    table = np.array(reader["answer_embedding"]["embedding"])
    table[4] *= 2
    moved = params | {"TiedEncoderDecoder_0": reader | {"answer_embedding": {"embedding": table}}}
    bias = np.asarray(reader["bias"])[4]
    before, after = np.asarray(run(params)), np.asarray(run(moved))
    np.testing.assert_allclose(after[..., 4] - bias, 2 * (before[..., 4] - bias), atol=1e-5)
    np.testing.assert_allclose(np.delete(after, 4, -1), np.delete(before, 4, -1), atol=1e-6)
    assert set(shapes(small(tied=False))["TiedEncoderDecoder_0"]) == {"embedding", "answer_embedding", "readout"}


def test_values_and_channels():
    """[one-hot | channels] in, bits out: linear maps instead of tables."""
    spec = Spec(vocabulary=5, channels=2, output_size=3, outputs="multi_hot")
    inputs = np.where(MASK[..., None], np.random.default_rng(0).normal(size=(2, 4, 7)), np.nan).astype(np.float32)
    model, call = (
        small(spec=spec, positions="relative", embedding="xavier", dropout=0.0),
        (jax.device_put(inputs), *CALL[1:]),
    )
    params = parameters(model, call)
    greedy = np.asarray(briefly(lambda p: model.apply({"params": p}, *call))(params))
    bits = (greedy > 0).astype(np.float32)
    forced = np.asarray(briefly(lambda p: model.apply({"params": p}, *call, targets=bits, train=True))(params))
    np.testing.assert_allclose(greedy[SLOTS], forced[SLOTS], atol=3e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "cosine"}, "positions is 'cosine'; allowed are absolute, sinusoidal, learned, relative"),
        ({"positions": "learned", "max_positions": 5}, "max_positions is 5; the padded rows have 6 positions"),
        ({"embedding": "normal"}, "embedding is 'normal'; allowed are scaledinit, opennmt, noscale, xavier"),
        ({"feedback": "free"}, "feedback is 'free'; allowed are open_loop, teacher_forced"),
        ({"feedback": "open_loop", "positions": "relative"}, "positions is 'relative', and must be 'absolute'"),
        ({"heads": 3}, "3 heads do not divide a width of 8"),
        ({"spec": None}, "TransformerSeq2Seq has no spec"),
    ],
)
def test_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        shapes(small(**fields))


def test_causal_tasks_are_refused():
    causal = dataclasses.replace(SPEC, alignment="aligned", causal=True)
    assert "causal" in small().supports(causal) and small().supports(SPEC) is None


# Learning -------------------------------------------------------------------------------------------------------------


def copies(key, rows=32):
    """1 to 3 tokens below 4, to be copied and ended by 4; always 5 slots, of which those up to the end are scored."""
    tokens, lengths = jax.random.randint(key, (rows, 3), 0, 4), jax.random.randint(key, (rows, 1), 1, 4)
    slot = jnp.arange(5)
    targets = jnp.where(slot < lengths, jnp.pad(tokens, ((0, 0), (0, 2))), 4)
    return Batch(tokens, jnp.arange(3) < lengths, targets, jnp.ones((rows, 5), bool), slot <= lengths)


@pytest.mark.learning
@pytest.mark.thorough
def test_it_learns_to_stop_by_itself(learns):
    """There is always the same room for answers: only the model's end symbol ends an answer."""
    spec = Spec(vocabulary=4, output_size=5, shared_ids=True, length_rule="end", end_id=4)
    model = TransformerSeq2Seq(16, 1, 1, heads=2, feedforward_size=32, dropout=0.0, spec=spec)

    def loss(params, batch, _):
        outputs = model.apply({"params": params}, *batch[:2], batch.target_mask, targets=batch.targets, train=True)
        return masked_loss("tokens", outputs, batch)

    @trained
    def solved(key):
        start, fitting, data, test = jax.random.split(key, 4)
        batches = jax.vmap(copies)(jax.random.split(data, 300))
        params = model.init(start, *CALL)["params"]
        batch = copies(test, 256)
        params = fit(params, loss, batches, fitting)
        answers = jnp.argmax(model.apply({"params": params}, *batch[:2], batch.target_mask), -1)
        return jnp.mean(jnp.all((answers == batch.targets) | ~batch.score_mask, -1))

    learns(solved, bar=0.9, worst=0.99)
