"""Sums of long numbers: read back as text and added by Python, in each format."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import draw

FORMATS = ("plain", "reversed", "reversed_answer", "index_hints")
CASES = list(itertools.product(FORMATS, (False, True)))
LENGTHS = (1, 2, 3, 7)


def rows(capacity=8, lengths=LENGTHS, count=20, **fields):
    """(length, the words of the input, the words of the scored answer) of some examples."""
    task = tasks.make("addition", **fields)
    each = np.repeat(lengths, count)
    batch = jax.jit(lambda key: draw(task, key, jnp.asarray(each), capacity))(jax.random.key(0))
    batch = jax.tree.map(np.asarray, batch)
    assert (batch.inputs.shape[1], batch.targets.shape[1]) == task.shapes(capacity)
    assert not batch.inputs[~batch.input_mask].any() and not batch.targets[~batch.score_mask].any()
    found = []
    for row, length in enumerate(each.tolist()):
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


@pytest.mark.parametrize(("form", "padded"), CASES)
def test_more_capacity_changes_only_the_padding(form, padded):
    assert rows(11, format=form, padded=padded) == rows(format=form, padded=padded)


def test_long_numbers():
    for _, inputs, answer in rows(400, (399, 400), 2, format="plain"):
        assert eval("".join(inputs[:-1])) == int("".join(answer[:-1]))


def test_hints_start_anywhere():
    """Any start that leaves room for the sum's digits."""
    fields = {"format": "index_hints", "hints": 9, "train_lengths": (1, 3), "test_lengths": (4, 8)}
    starts = {int(inputs[0][1:]) for _, inputs, _ in rows(3, (3,), 400, **fields)}
    assert starts == set(range(6))


@pytest.mark.parametrize(("form", "padded"), CASES)
def test_chance_is_that_of_the_best_constant_answer(form, padded):
    task = tasks.make("addition", format=form, padded=padded)
    lengths = jnp.repeat(jnp.arange(1, 21), 100)
    batch = jax.jit(lambda key: draw(task, key, lengths, 20))(jax.random.key(1))
    answers = [
        task.metrics(jax.nn.one_hot(jnp.full(batch.targets.shape, c), task.spec.output_size), batch)["token_accuracy"]
        for c in (*range(10), task.spec.output_size - 1)
    ]
    assert abs(max(float(score.mean()) for score in answers) - task.spec.chance) < 0.015


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
