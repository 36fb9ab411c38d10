"""Interfaces: padding never matters, symbols stand right after each row's input, and refusals give a reason."""

from __future__ import annotations

import re
import types

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.attention_decoder import AttentionDecoder
from lenmem.nn.cells import GRUCell, Stacked
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import (
    Aligned,
    Completion,
    EncoderDecoder,
    Readout,
    Transducer,
    pack,
    place,
    recurrent,
    sequential,
)
from lenmem.nn.transformer import TransformerEncoder
from lenmem.types import Batch, Spec
from tests.drawing import drawn

SIZE, CLASSES = 8, 5
TOKENS = Spec(vocabulary=4, output_size=CLASSES, shapes=lambda n: (n, n + 1))
FLOATS = Spec(vocabulary=4, channels=2, output_size=CLASSES, outputs="multi_hot", delimited=True)
ALIGNED = Spec(vocabulary=4, channels=2, output_size=CLASSES, alignment="aligned")
ONE_ANSWER = Spec(vocabulary=4, output_size=CLASSES, shapes=lambda n: (n, 1))


def gru():
    return GRUCell(SIZE, parent=None)


def transformer(causal=False, dropout=0.0):
    return TransformerEncoder(1, 2, 16, causal=causal, dropout=dropout, parent=None)


def encoder_decoder(feedback):
    return EncoderDecoder(
        Recurrent(gru(), parent=None),
        AttentionDecoder(gru(), SIZE, parent=None),
        embedding_size=SIZE,
        feedback=feedback,
    )


READERS = {
    "transducer": (lambda: Transducer(gru(), embedding_size=SIZE, begin=True), TOKENS),
    "transducer_floats": (lambda: Transducer(gru(), embedding_size=None, blank="own", delay=1), FLOATS),
    "completion": (lambda: Completion(transformer(), embedding_size=SIZE), TOKENS),
    "completion_floats": (lambda: Completion(Recurrent(gru(), True, parent=None), embedding_size=None), FLOATS),
    "readout_last": (lambda: Readout(transformer(), embedding_size=SIZE), ONE_ANSWER),
    "readout_first": (lambda: Readout(transformer(), embedding_size=SIZE, column="first"), ONE_ANSWER),
    "readout_bare": (lambda: Readout(transformer(), embedding_size=SIZE, begin=False, end=False), ONE_ANSWER),
    "open_loop": (lambda: encoder_decoder("open_loop"), TOKENS),
    "greedy": (lambda: encoder_decoder("teacher_forced"), TOKENS),
    "forced": (lambda: encoder_decoder("teacher_forced"), FLOATS),
    "aligned_cell": (lambda: Aligned(gru(), embedding_size=SIZE), ALIGNED),
    "aligned_encoder": (lambda: Aligned(transformer(), embedding_size=SIZE), ALIGNED),
}


def a_batch(spec, input_lengths, answer_lengths, inputs_capacity, answers_capacity, poison):
    """The same real values at any capacity; padding is legal zeros, or as illegal as possible."""
    rows = len(input_lengths)
    values = np.random.default_rng(0)
    inputs = np.zeros((rows, inputs_capacity, 6), np.float32)
    targets = np.zeros((rows, answers_capacity, CLASSES), np.float32)
    tokens, answers = np.zeros(inputs.shape[:2], np.int32), np.zeros(targets.shape[:2], np.int32)
    if poison:
        inputs[:], targets[:] = np.nan, np.inf
        tokens[:], answers[:] = -7, 10**6
        inputs[:, -1], targets[:, -1] = np.inf, np.nan
    for row, (n, m) in enumerate(zip(input_lengths, answer_lengths, strict=True)):
        tokens[row, :n], answers[row, :m] = values.integers(0, 4, n), values.integers(0, CLASSES, m)
        inputs[row, :n], targets[row, :m] = values.normal(size=(n, 6)), values.integers(0, 2, (m, CLASSES))
    input_mask = np.arange(inputs_capacity) < np.array(input_lengths)[:, None]
    target_mask = np.arange(answers_capacity) < np.array(answer_lengths)[:, None]
    parts = (tokens if spec.takes_tokens else inputs), input_mask, (answers if spec.outputs == "tokens" else targets)
    return Batch(*map(jax.device_put, (*parts, target_mask, target_mask)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_nothing_depends_on_padding(name):
    """Illegal padding and more capacity: the same outputs at real slots, and the same gradients."""
    build, spec = READERS[name]
    model, train = build().clone(spec=spec), name == "forced"
    lengths, answers = (5, 2, 3), (4, 1, 2)
    if spec is ONE_ANSWER:
        answers = (1, 1, 1)
    if spec is ALIGNED:
        answers = lengths
    tight = a_batch(spec, lengths, answers, 5, max(answers), poison=False)
    room = 0 if spec is ONE_ANSWER else 3
    loose = a_batch(spec, lengths, answers, 9, max(answers) + room, poison=True)
    params = drawn(model.init, *tight[:2], tight.target_mask)

    @jax.jit
    def outputs_and_gradient(params, batch):
        def loss(params):
            outputs = model.apply({"params": params}, *batch[:2], batch.target_mask, targets=batch.targets, train=train)
            return jnp.sum(jnp.where(batch.target_mask[..., None], jnp.sin(outputs), 0)), outputs

        (_, outputs), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return outputs, gradient

    outputs, gradient = outputs_and_gradient(params, tight)
    assert outputs.shape == (*tight.target_mask.shape, CLASSES)
    padded, padded_gradient = outputs_and_gradient(params, loose)
    for row, m in enumerate(answers):
        np.testing.assert_allclose(np.asarray(padded)[row, :m], np.asarray(outputs)[row, :m], atol=2e-6)
    chex.assert_trees_all_close(padded_gradient, gradient, atol=1e-5)


class Rolled(nn.Module):
    """An encoder that shows each position its left neighbour."""

    @nn.compact
    def __call__(self, states, mask):
        return jnp.roll(states, 1, axis=1)


class Same(nn.Module):
    """An encoder that shows each position itself."""

    def __call__(self, states, mask):
        return states


class Knowing(nn.Module):
    """A cell that shows the length that it was told at the start."""

    def start(self, batch_shape, steps, *, lengths):
        return lengths

    def __call__(self, carry, step):
        return carry, carry[:, None]


def identity():
    return nn.Sequential([lambda x: x], parent=None)


def test_completion_puts_masks_right_after_the_input():
    model = Completion(Rolled(parent=None), spec=TOKENS, embedding_size=None, head=identity())
    inputs, lengths = np.array([[1, 2, 3], [3, 0, 0]]), np.array([3, 1])
    input_mask, target_mask = np.arange(3) < lengths[:, None], np.ones((2, 2), bool)
    seen = np.argmax(jax.jit(model.apply)({}, inputs, input_mask, target_mask), -1)
    np.testing.assert_array_equal(seen, [[3, 6], [3, 6]])  # The last input, then the mask token (vocabulary + 2).


def test_readout_reads_begin_and_end():
    inputs, mask = np.array([[1, 2, 3], [3, 0, 0]]), np.arange(3) < np.array([[3], [1]])
    for column, expected in (("last", [[3], [3]]), ("first", [[5], [5]])):
        model = Readout(Rolled(parent=None), spec=ONE_ANSWER, embedding_size=None, column=column, head=identity())
        seen = np.argmax(jax.jit(model.apply)({}, inputs, mask, np.ones((2, 1), bool)), -1)
        # Left of the end token is the last input; left of the begin token wraps to the last column: an end token.
        np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize(
    ("begin", "end", "first", "last"),
    [
        (True, True, [4, 4], [5, 5]),
        (False, True, [1, 3], [5, 5]),
        (True, False, [4, 4], [3, 3]),
        (False, False, [1, 3], [3, 3]),
    ],
)
def test_readout_reads_its_columns(begin, end, first, last):
    """The begin token is symbol 4, the end token 5."""
    inputs, mask = np.array([[1, 2, 3], [3, 0, 0]]), np.arange(3) < np.array([[3], [1]])
    for column, expected in (("first", first), ("last", last)):
        fields = {"begin": begin, "end": end, "column": column, "head": identity()}
        model = Readout(Same(parent=None), spec=ONE_ANSWER, embedding_size=None, **fields)
        seen = np.argmax(jax.jit(model.apply)({}, inputs, mask, np.ones((2, 1), bool)), -1)
        np.testing.assert_array_equal(seen[:, 0], expected)


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("delimited", [False, True])
def test_packing_against_a_python_list(begin, delay, delimited):
    spec = Spec(vocabulary=4, output_size=5, delimited=delimited)
    inputs, lengths, answers = jnp.array([[1, 2, 3, 0], [3, 99, -1, 7]]), (4, 1), (2, 3)
    packed = pack(
        inputs, jnp.array(lengths), jnp.array(answers), answers=3, spec=spec, begin=begin, delay=delay, own_blank=True
    )
    inputs, packed = np.asarray(inputs), jax.tree.map(np.asarray, packed)
    for row, (n, m) in enumerate(zip(lengths, answers, strict=True)):
        symbols = [4] * begin + inputs[row, :n].tolist() + [5] * (not delimited)
        first = len(symbols) - 1 + delay
        symbols += [6] * (first + m - len(symbols))
        assert packed.symbols[row, : len(symbols)].tolist() == symbols
        assert packed.answer_steps[row, :m].tolist() == list(range(first, first + m))
        assert packed.valid[row].tolist() == [time < first + m for time in range(packed.valid.shape[1])]
        assert packed.decoding[row].tolist() == [time >= first for time in range(packed.valid.shape[1])]
        assert first <= packed.reading_steps


def test_float_rows_have_three_special_columns():
    inputs = np.full((1, 3, 6), np.nan, np.float32)
    inputs[0, 0] = 2.0
    placed = jax.jit(lambda *given: place(*given, FLOATS, start=1))
    symbols = np.asarray(placed(inputs, np.array([1]), np.array([[0, 0, 1, 2]])))
    np.testing.assert_array_equal(symbols[0, :, :6], [[0] * 6, [2] * 6, [0] * 6, [0] * 6])
    np.testing.assert_array_equal(symbols[0, :, 6:], [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])


def test_greedy_answers_are_a_fixed_point_of_teacher_forcing():
    """With its own greedy answers as targets the decoder repeats its answers, in training as when testing."""
    model = encoder_decoder("teacher_forced").clone(spec=TOKENS)
    batch = a_batch(TOKENS, (4, 2), (4, 3), 4, 4, poison=False)
    arguments = (*batch[:2], batch.target_mask)
    params = drawn(model.init, *arguments, scale=1.0)
    run = jax.jit(model.apply, static_argnames="train")
    greedy = np.asarray(run({"params": params}, *arguments))
    forced = np.asarray(run({"params": params}, *arguments, targets=greedy.argmax(-1), train=True))
    other = np.asarray(run({"params": params}, *arguments, targets=batch.targets, train=True))
    for row, m in enumerate((4, 3)):
        np.testing.assert_allclose(forced[row, :m], greedy[row, :m], atol=1e-5)
    assert not np.allclose(other, greedy, atol=1e-3)
    np.testing.assert_array_equal(run({"params": params}, *arguments, targets=batch.targets), other)
    with pytest.raises(ValueError, match="targets=batch.targets"):
        jax.eval_shape(lambda params: model.apply({"params": params}, *arguments, train=True), params)


def test_dropout_acts_in_training_only():
    model = Completion(transformer(dropout=0.5), spec=TOKENS, embedding_size=SIZE)
    batch = a_batch(TOKENS, (4, 2), (2, 1), 4, 2, poison=False)
    arguments = (*batch[:2], batch.target_mask)
    params = drawn(model.init, *arguments)
    apply = jax.jit(model.apply, static_argnames="train")
    quiet = apply({"params": params}, *arguments)
    stream = {"dropout": jax.random.key(1)}
    np.testing.assert_allclose(apply({"params": params}, *arguments, rngs=stream), quiet, atol=1e-6)
    assert not np.allclose(apply({"params": params}, *arguments, train=True, rngs=stream), quiet)


@pytest.mark.parametrize("kind", ["cell", "recurrent", "transformer"])
def test_causal_reading_never_looks_ahead(kind):
    spec = Spec(vocabulary=4, output_size=CLASSES, alignment="aligned", causal=True)
    reader = {"cell": gru, "recurrent": lambda: Recurrent(gru(), parent=None), "transformer": lambda: transformer(True)}
    model = Aligned(reader[kind](), spec=spec, embedding_size=SIZE)
    inputs, other, mask = np.array([[1, 2, 3, 0, 1]]), np.array([[1, 2, 3, 2, 1]]), np.ones((1, 5), bool)
    params = drawn(model.init, inputs, mask, mask)
    apply = jax.jit(model.apply)
    before, after = (np.asarray(apply({"params": params}, x, mask, mask)) for x in (inputs, other))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not np.allclose(before[:, 3:], after[:, 3:])


def test_refusals_say_why():
    causal = Spec(vocabulary=4, output_size=5, alignment="aligned", causal=True)
    bidirectional = Recurrent(gru(), bidirectional=True, parent=None)
    assert "sees the whole input" in Aligned(bidirectional).supports(causal)
    assert "not aligned" in Aligned(gru()).supports(TOKENS)
    assert Aligned(gru()).supports(causal) is None
    assert Aligned(Stacked([gru(), gru()])).supports(causal) is None
    for knowing in Knowing(parent=None), Stacked([gru(), Knowing(parent=None)]):
        assert "depends on the length of the whole input" in Aligned(knowing).supports(causal)
    random = transformer(causal=True).clone(random_positions=True)
    assert "depends on the length of the whole input" in Aligned(random).supports(causal)
    assert Aligned(transformer(causal=True)).supports(causal) is None
    assert "causal" in Transducer(gru()).supports(causal)
    assert "causal" in Completion(transformer()).supports(causal)
    assert "causal" in encoder_decoder("open_loop").supports(causal)
    assert "several answer slots" in Readout(transformer()).supports(TOKENS)
    for reason in (Completion(transformer()).supports(TOKENS), Readout(transformer()).supports(ONE_ANSWER)):
        assert reason is None
    mask = jnp.ones((1, 2), bool)
    with pytest.raises(ValueError, match="Use Completion"):
        Readout(transformer(), spec=TOKENS).init(jax.random.key(0), mask.astype(int), mask, mask)
    with pytest.raises(ValueError, match="sees the whole input"):
        Aligned(bidirectional, spec=causal).init(jax.random.key(0), mask.astype(int), mask, mask)
    with pytest.raises(ValueError, match="Transducer has no spec"):
        Transducer(gru()).init(jax.random.key(0), mask.astype(int), mask, mask)
    with pytest.raises(ValueError, match="feedback is 'free'; allowed are open_loop, teacher_forced"):
        encoder_decoder("free").clone(spec=TOKENS).init(jax.random.key(0), mask.astype(int), mask, mask)


def test_tokens_of_another_kind_are_refused():
    mask = jnp.ones((1, 2), bool)
    for inputs in (jnp.full((1, 2), 0.6), mask):
        with pytest.raises(ValueError, match=f"inputs are {inputs.dtype}; token ids must be integers"):
            Transducer(gru(), spec=TOKENS).init(jax.random.key(0), inputs, mask, mask)


def test_cells_may_ask_for_the_length_of_the_input():
    """Of each row, without padding and without the symbols of the interface."""
    lengths, answers = (5, 2, 3), (4, 1, 2)
    readers = {"embedding_size": None, "head": identity()}
    transducer = Transducer(Knowing(parent=None), TOKENS, begin=True, delay=1, **readers)
    aligned = Aligned(Knowing(parent=None), ALIGNED, **readers)
    for model, slots in ((transducer, answers), (aligned, lengths)):
        batch = a_batch(model.spec, lengths, slots, 9, 7, poison=True)
        outputs = np.asarray(jax.jit(model.apply)({}, *batch[:2], batch.target_mask))
        np.testing.assert_array_equal(outputs[np.asarray(batch.target_mask)][:, 0], np.repeat(lengths, slots))
    mask = np.arange(6) < np.array(lengths)[:, None]
    outputs = np.asarray(jax.jit(Recurrent(Knowing(parent=None)).apply)({}, np.zeros((3, 6, 1), np.float32), mask))
    np.testing.assert_array_equal(outputs[mask][:, 0], np.repeat(lengths, lengths))


def test_flat_models_get_the_interface_of_their_task():
    def model(spec):
        return types.SimpleNamespace(spec=spec, embedding_size=7, dtype=None, param_dtype=jnp.float32)

    assert isinstance(recurrent(gru(), model(TOKENS), begin=True), Transducer)
    assert isinstance(recurrent(gru(), model(ALIGNED), begin=True), Aligned)
    assert isinstance(sequential(transformer(), model(TOKENS), embedding_size=SIZE, column="first"), Completion)
    assert isinstance(sequential(transformer(), model(ALIGNED), embedding_size=SIZE, column="first"), Aligned)
    readout = sequential(transformer(), model(ONE_ANSWER), embedding_size=SIZE, column="first")
    assert isinstance(readout, Readout)
    assert (readout.column, readout.embedding_size) == ("first", SIZE)


# What a cell or an encoder returns ------------------------------------------------------------------------------------


class Returns(nn.Module):
    """A cell or an encoder with a wrong result."""

    what: str

    def start(self, batch_shape, steps=0):
        return jnp.zeros((*batch_shape, 3))

    @nn.compact
    def __call__(self, carry, step):
        h = nn.Dense(4 if self.what == "carry" else 3)(step.inputs)
        return {"one": h, "three": (h, h, h), "carry": (h, h)}[self.what]


class Encodes(nn.Module):
    """An encoder with a wrong result."""

    what: str

    @nn.compact
    def __call__(self, states, mask):
        return {"pair": (states, mask), "pooled": states.mean(1)}[self.what]


class NoMask(nn.Module):
    """An encoder that is not told what is padding."""

    @nn.compact
    def __call__(self, states):
        return states


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Transducer(Returns("one")), "a step of Returns returns an array; a cell returns (carry, output)"),
        (Transducer(Returns("three")), "a step of Returns returns 3 values; a cell returns (carry, output)"),
        (
            Transducer(Returns("carry")),
            "the carry of Returns starts as float32[2, 3] and is float32[2, 4]",
        ),
        (Completion(Encodes("pair")), "Encodes returns a tuple; an encoder returns states, float[B, N, d]"),
        (Completion(Encodes("pooled")), "Encodes maps states [2, 7, 64] to [2, 64]; the first two sizes stay"),
        (EncoderDecoder(Encodes("pooled"), AttentionDecoder(gru(), 8)), "Encodes maps states [2, 4, 64] to [2, 64]"),
        (Completion(nn.GRUCell(64)), "GRUCell is a recurrent cell, not an encoder; lenmem.nn.Transducer makes a model"),
        (Completion(NoMask()), "NoMask takes 1 argument(s); an encoder is called with (states, mask)"),
    ],
)
def test_a_wrong_result_is_one_message(model, message):
    spec = Spec(vocabulary=5, output_size=5)
    ids, mask = jnp.zeros((2, 4), jnp.int32), jnp.ones((2, 4), bool)
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(model.clone(spec=spec).init, jax.random.key(0), ids, mask, mask[:, :3])
