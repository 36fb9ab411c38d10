"""Sums of long numbers: read back as text and added by Python, in each format."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import draw
from lenmem.types import Batch
from tests.learning import briefly

FORMATS = ("plain", "reversed", "reversed_answer", "index_hints")
CASES = list(itertools.product(FORMATS, (False, True)))
LENGTHS = tuple(np.repeat([1, 2, 3, 7], 20).tolist())
MORE = (*LENGTHS, *np.repeat(np.arange(1, 21), 100).tolist())
"""With equally many of each training length."""


@functools.cache
def drawn(task, capacity, lengths) -> Batch:
    """Examples of these lengths, on the host. Example i has key i, whatever else is drawn with it."""

    def one(i, length):
        return task.sample(jax.random.fold_in(jax.random.key(0), i), length, capacity)

    return jax.tree.map(np.asarray, briefly(jax.vmap(one))(np.arange(len(lengths)), np.asarray(lengths)))


def rows(capacity=8, lengths=LENGTHS, **fields):
    """(length, the words of the input, the words of the scored answer) of some examples."""
    task = tasks.make("addition", **fields)
    batch = drawn(task, capacity, lengths)
    assert (batch.inputs.shape[1], batch.targets.shape[1]) == task.shapes(capacity)
    assert not batch.inputs[~batch.input_mask].any() and not batch.targets[~batch.score_mask].any()
    found = []
    for row, length in enumerate(lengths):
        assert batch.target_mask[row].sum() == task.shapes(length)[1]
        assert not (batch.score_mask[row] & ~batch.target_mask[row]).any()
        found.append(
            (
                length,
                [task.input_names[token] for token in batch.inputs[row][batch.input_mask[row]]],
                [task.answer_names[token] for token in batch.targets[row][batch.score_mask[row]]],
            )
        )
    return found


def number(words, lowest_first):
    """(the digits of a number, highest first; its hints, lowest weight first)."""
    digits, hints = [w for w in words if w[0] != "#"], [int(w[1:]) for w in words if w[0] == "#"]
    assert not hints or [w[0] == "#" for w in words] == [True, False] * len(digits)
    return "".join(reversed(digits) if lowest_first else digits), hints


@pytest.mark.parametrize(("form", "padded"), CASES)
def test_sums_are_right(form, padded):
    seen = set()
    for length, inputs, answer in rows(format=form, padded=padded):
        assert inputs[-1] == "=" and inputs.count("+") == inputs.count("=") == 1
        plus = inputs.index("+")
        one, other = (
            number(words, form in ("reversed", "index_hints")) for words in (inputs[:plus], inputs[plus + 1 : -1])
        )
        if not padded:
            *answer, end = answer
            assert end == "end"
        total = number(answer, form != "plain")
        assert int(one[0]) + int(other[0]) == int(total[0])
        sizes = len(one[0]), len(other[0])
        if padded:
            assert sizes == (length, length) and len(total[0]) == length + 1
        else:
            assert max(sizes) == length and all(text == str(int(text)) for text, _ in (one, other, total))
        for text, hints in (one, other, total):
            start = total[1][:1]
            assert hints == ([start[0] + j for j in range(len(text))] if form == "index_hints" else [])
        seen.add((sizes[0] < sizes[1], sizes[0] > sizes[1], int(total[0]) >= 10**length))
    assert len(seen) > (1 if padded else 3)


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "padded"), CASES)
def test_more_capacity_changes_only_the_padding(form, padded):
    few = rows(format=form, padded=padded)
    assert rows(20, MORE, format=form, padded=padded)[: len(few)] == few


def test_long_numbers():
    for _, inputs, answer in rows(400, (399, 399, 400, 400), format="plain"):
        assert eval("".join(inputs[:-1])) == int("".join(answer[:-1]))


def test_hints_start_anywhere():
    """Any start that leaves room for the sum's digits."""
    fields = {"format": "index_hints", "hints": 9, "train_lengths": (1, 3), "test_lengths": (4, 8)}
    starts = {int(inputs[0][1:]) for _, inputs, _ in rows(3, (3,) * 400, **fields)}
    assert starts == set(range(6))


@pytest.mark.parametrize(("form", "padded"), CASES)
def test_chance_is_that_of_the_best_constant_answer(form, padded):
    task = tasks.make("addition", format=form, padded=padded)
    batch = drawn(task, 20, MORE)
    targets, mask = batch.targets[len(LENGTHS) :], batch.score_mask[len(LENGTHS) :]
    shares = [(((targets == answer) & mask).sum(1) / mask.sum(1)).mean() for answer in range(task.spec.output_size)]
    assert max(shares) == pytest.approx(task.spec.chance, abs=0.015)


def test_the_spec():
    task = tasks.make("addition")
    assert (task.spec.vocabulary, task.spec.output_size, task.spec.end_id, task.spec.delimited) == (12, 13, 12, True)
    padded = tasks.make("addition", format="index_hints", padded=True, hints=101).spec
    assert (padded.vocabulary, padded.output_size, padded.end_id, padded.length_rule) == (113, 113, None, "given")
    assert {1, 20, 21, 100} <= set(task.curve_lengths)


def test_too_few_hints():
    with pytest.raises(ValueError, match="hints is 100; sums of numbers of 100 digits need 101"):
        tasks.make("addition", format="index_hints", hints=100)
    task = tasks.make("addition", format="index_hints", hints=101)
    with pytest.raises(ValueError, match="sums of numbers of 101 digits need 102"):
        task.sample(jax.random.key(0), 101, 101)
    tasks.make("addition", hints=1)  # it has none


GIVEN = [("abacus", "reversed", False), ("abacus", "reversed", True), *(("coupled", f, True) for f in FORMATS[:3])]
GIVEN += [("coupled", "reversed", False), ("coupled", "reversed_answer", False)]


@pytest.mark.parametrize(("kind", "form", "padded"), GIVEN)
def test_given_positions(kind, form, padded):
    """Read off the text of each example, number by number."""
    task = tasks.make("addition", format=form, padded=padded, positions=kind)
    lengths = np.repeat([1, 2, 5], 8)
    rule = task.spec.position_rule
    assert rule is not None

    @briefly
    def both(key):
        batch = draw(task, key, lengths, 7)
        return batch, rule.ids(batch.inputs, batch.input_mask, batch.target_mask)

    batch, (read, asked) = jax.tree.map(np.asarray, both(jax.random.key(0)))
    for row in range(len(lengths)):
        words = [task.input_names[token] for token in batch.inputs[row][batch.input_mask[row]]]
        wanted = []
        for text in "".join(words).replace("=", "+=").split("+")[:2]:
            weights = range(len(text)) if form == "reversed" else range(len(text) - 1, -1, -1)
            wanted += [weight + (1 if kind == "abacus" else 2) for weight in weights] + [0 if kind == "abacus" else 1]
        assert read[row, : len(words)].tolist() == wanted and not read[row, len(words) :].any()
        slots = int(batch.target_mask[row].sum())
        first = 1 if kind == "abacus" else 2
        ascending = list(range(first, first + slots))
        assert asked[row, :slots].tolist() == (ascending[::-1] if form == "plain" else ascending)
        assert max(wanted) <= max(ascending) <= rule.largest(len(words), slots)


def test_a_number_that_is_too_long_for_its_slots():
    """Typed by hand: no position is beyond those that were promised."""
    rule = tasks.make("addition", positions="abacus").spec.position_rule
    assert rule is not None
    ids, _ = rule.ids(jnp.ones((1, 9), jnp.int32), jnp.ones((1, 9), bool), jnp.ones((1, 3), bool))
    assert ids.tolist() == [[1, 2, 3, 4, 4, 4, 4, 4, 4]] and rule.largest(9, 3) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "abacus", "format": "plain"}, "positions='abacus' needs all numbers lowest digit first"),
        ({"positions": "coupled", "format": "plain"}, "sums whose lowest digit has a known slot, and no hints"),
        ({"positions": "coupled", "format": "index_hints"}, "and no hints; format is 'index_hints'"),
    ],
)
def test_formats_without_given_positions(fields, message):
    with pytest.raises(ValueError, match=message):
        tasks.make("addition", **fields)
