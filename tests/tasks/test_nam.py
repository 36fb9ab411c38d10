"""Fibonacci, Palindrome and Reduce: decoded from their tokens and solved with Python integers."""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import draw
from lenmem.tasks.nam import END, MASK, PAD, NamTask, bounded_number
from lenmem.types import Batch
from tests.learning import briefly

NAMES = ("fibonacci", "palindrome", "reduce")
FREE = [
    *((name, {}) for name in NAMES),
    ("fibonacci", {"end_symbol": True, "random_offset": False}),
    ("palindrome", {"end_symbol": True}),
    ("reduce", {"random_offset": False}),
]
WHOLE = [(name, {"whole_sequence": True}) for name in NAMES]
SPLITS = {"train": (1, 10), "validation": (5, 10), "od_easy": (11, 13), "test": (14, 16)}
DIGITS, LINE = "0123456789", "0123456789_.EM"


def make(name, **fields) -> NamTask:
    task = tasks.make(name, **fields)
    assert isinstance(task, NamTask)
    return task


@functools.cache
def drawn(name: str, fields: tuple[tuple[str, Any], ...]) -> tuple[NamTask, np.ndarray, Batch]:
    """Examples of all lengths up to 20, many of them in the training range, from one program of capacity 32."""
    task = make(name, **dict(fields))
    lengths = np.concatenate([np.repeat(np.arange(1, 11), 300), np.repeat(np.arange(11, 21), 10), [31, 32]])
    program = briefly(lambda key: draw(task, key, lengths, 32))
    return task, lengths, jax.tree.map(np.asarray, program(jax.random.key(0)))


def examples(name, fields):
    task, lengths, batch = drawn(name, tuple(fields.items()))
    return task, [(int(n), type(batch)(*(leaf[i] for leaf in batch))) for i, n in enumerate(lengths)]


def answer_to(name: str, problem: str, length: int) -> str:
    """The answer to a problem, as text; checks that the problem is well formed."""
    if name == "reduce":
        assert problem[-1] == "_" and len(problem) == length + 1 and set(problem[:-1]) <= set(DIGITS)
        return problem[:-1].replace("0", "")
    start, *numbers, end = problem.split("_")
    assert (start, end) == ("", "")
    if name == "palindrome":
        (digits,) = numbers
        assert len(digits) == length
        return digits[::-1]
    a, b = (int(number[::-1]) for number in numbers)
    assert [str(a)[::-1], str(b)[::-1]] == numbers, "leading zeros"
    assert 10 ** (length - 1) <= b < 10**length
    assert 1 <= a <= 10**length - 2
    return str(a + b)[::-1]


def frame(name: str, length: int) -> int:
    """Positions of a frame, as in the published code, for the longest length of a split."""
    longest = next((d for d in (10, 13, 16) if length <= d), length)
    return {"fibonacci": 3 * (longest + 1) + 2, "palindrome": 2 * (longest + 1) + 1, "reduce": 2 * longest + 1}[name]


@pytest.mark.parametrize(("name", "fields"), FREE)
def test_free_form_against_python_integers(name, fields):
    task, rows = examples(name, fields)
    spec, offsets = task.spec, collections.Counter()
    assert (spec.vocabulary, spec.delimited, spec.alignment) == (12, True, "free")
    stops = spec.end_id is not None
    assert (spec.length_rule, spec.end_id) == (("end", END) if stops else ("given", None))
    for length, row in rows:
        text = "".join(LINE[token] for token in row.inputs[row.input_mask])
        problem = text.lstrip(".")
        offsets[length, len(text) - len(problem)] += 1
        wanted = answer_to(name, problem, length)
        targets = "".join(LINE[token] if token < END else "$" for token in row.targets[row.score_mask])
        assert targets == wanted + "$" * stops
        bound = {"fibonacci": length + 1, "palindrome": length, "reduce": length}[name]
        assert row.target_mask.sum() == (bound + 1 if stops else len(wanted))
        for mask in (row.input_mask, row.target_mask, row.score_mask):
            assert (np.diff(mask.astype(int)) <= 0).all()
        assert not row.inputs[~row.input_mask].any() and not row.targets[~row.score_mask].any()
        if task.random_offset:
            room = frame(name, length) - (len(problem) + (bound if name == "reduce" else len(wanted) + 1))
            assert 0 <= len(text) - len(problem) <= room
        else:
            assert text == problem
    if task.random_offset:
        assert len([offset for n, offset in offsets if n == 5]) > (8 if name == "palindrome" else 10), "offsets vary"
        if name != "fibonacci":  # a may be short
            assert {offset for n, offset in offsets if n > 16} == {0}


def test_every_offset_occurs():
    """Also the last one, at which nothing comes after the row."""
    _, rows = examples("palindrome", {})
    room = frame("palindrome", 5) - (5 + 2) - (5 + 1)
    assert {int(np.sum(row.inputs[row.input_mask] == PAD)) for n, row in rows if n == 5} == set(range(room + 1))


@pytest.mark.parametrize(("name", "fields"), WHOLE)
def test_whole_sequence_as_published(name, fields):
    task, rows = examples(name, fields)
    assert (task.spec.alignment, task.spec.causal) == ("aligned", False)
    for length, row in rows:
        size = frame(name, length)
        assert row.input_mask.sum() == size and row.input_mask[:size].all()
        np.testing.assert_array_equal(row.input_mask, row.target_mask)
        np.testing.assert_array_equal(row.input_mask, row.score_mask)
        assert not row.inputs[size:].any() and not row.targets[size:].any()
        inputs, targets = ("".join(LINE[token] for token in tokens[:size]) for tokens in (row.inputs, row.targets))
        inner = inputs.strip(".")
        before = len(inputs) - len(inputs.lstrip("."))
        if name == "reduce":
            wanted = answer_to(name, inner, length)
            assert targets == ("." * (before + len(inner)) + wanted).ljust(size, ".")
            assert before <= size - 2 * length - 1, "room for the longest answer"
        else:
            masks = inner.count("M")
            assert inner.endswith("M" * masks + "E")
            wanted = answer_to(name, inner[: -masks - 1], length)
            assert targets == inputs.replace("M" * masks, wanted)
            assert len(wanted) == masks


@pytest.mark.parametrize(("name", "fields"), FREE + WHOLE)
def test_chance_is_the_best_constant_answer(name, fields):
    task, lengths, batch = drawn(name, tuple(fields.items()))
    trained = lengths <= 10
    targets, mask = batch.targets[trained], batch.score_mask[trained]
    shares = [(((targets == answer) & mask).sum(1) / mask.sum(1)).mean() for answer in range(task.spec.output_size)]
    assert task.spec.chance == pytest.approx(max(shares), abs=0.015)


def test_answers_alone_in_the_whole_sequence():
    """Copying everything except the answer scores nearly 1 by the published measure, and 0 by `answer_*`."""
    for name in NAMES:
        task, _, batch = drawn(name, (("whole_sequence", True),))
        measure, one_hot = briefly(task.metrics), np.eye(MASK + 1, dtype=np.float32)
        metrics = {key: np.asarray(value) for key, value in measure(one_hot[batch.inputs], batch).items()}
        assert set(metrics) == {"token_accuracy", "exact_match", "answer_token_accuracy", "answer_exact_match"}
        right = measure(one_hot[batch.targets], batch)
        assert all((np.asarray(value) == 1).all() for value in right.values())
        mask = np.asarray(task.answer_mask(batch))
        if name == "reduce":
            empty = ~((batch.targets < 10) & batch.score_mask).any(-1)
            np.testing.assert_array_equal(metrics["answer_exact_match"], empty)
            ends = mask & (batch.targets == PAD)
            digits = mask & (batch.targets < 10)
            np.testing.assert_array_equal(digits, (batch.targets < 10) & batch.score_mask)
            room = (digits.sum(-1) + ends.sum(-1) == mask.sum(-1)) & (ends.sum(-1) <= 1)
            assert room.all() and ends.sum() > 0.8 * len(mask)
        else:
            assert (metrics["token_accuracy"] > 0.4).all()
            assert not metrics["answer_token_accuracy"].any() and not metrics["answer_exact_match"].any()
            np.testing.assert_array_equal(mask, batch.inputs == MASK)


@pytest.mark.parametrize(("name", "fields"), FREE[:3] + WHOLE)
def test_padding_reaches_neither_loss_nor_metrics(name, fields):
    task, _, batch = drawn(name, tuple(fields.items()))
    batch = jax.tree.map(lambda leaf: leaf[::97], batch)
    outputs = np.random.default_rng(0).normal(size=(*batch.targets.shape, task.spec.output_size)).astype(np.float32)
    dirty = batch._replace(
        inputs=np.where(batch.input_mask, batch.inputs, np.where(batch.inputs % 2, -1, MASK)),
        targets=np.where(batch.score_mask, batch.targets, 3),
    )
    noise = np.where(batch.score_mask[..., None], outputs, np.nan)
    judge = briefly(lambda *given: (task.loss(*given), task.metrics(*given)))
    loss, expected = judge(outputs, batch)
    assert float(judge(noise, dirty)[0]) == float(loss)
    for key, value in judge(np.nan_to_num(noise, nan=7.0), dirty)[1].items():
        np.testing.assert_array_equal(value, expected[key])


@pytest.mark.parametrize(("name", "fields"), [*FREE[:4], WHOLE[0], WHOLE[2]])
def test_capacity_changes_padding_only(name, fields):
    task, lengths, batch = drawn(name, tuple(fields.items()))
    at = int(np.flatnonzero(lengths == 12)[0])
    wide = [leaf[at] for leaf in batch]
    program = briefly(lambda key: task.sample(jax.random.split(key, len(lengths))[at], 12, 13))  # the key of that row
    tight = jax.tree.map(np.asarray, program(jax.random.key(0)))
    size, slots = task.shapes(13)
    for left, right, cut in zip(tight, wide, (size, size, slots, slots, slots), strict=True):
        assert left.shape == (cut,)
        np.testing.assert_array_equal(left, right[:cut])
        assert not right[cut:].any()


@pytest.mark.parametrize("name", NAMES)
def test_curves_reach_128_digits(name):
    task = make(name)
    row = jax.tree.map(np.asarray, briefly(task.sample, static_argnums=2)(jax.random.key(1), 128, 128))
    text = "".join(LINE[token] for token in row.inputs[row.input_mask])
    targets = "".join(LINE[token] for token in row.targets[row.score_mask]).rstrip("E")
    assert targets == answer_to(name, text.lstrip("."), 128)
    assert task.curve_lengths == tuple(range(1, 17))


def test_splits_of_the_paper():
    for name in NAMES:
        task = make(name)
        assert task.splits == SPLITS
        ranges = [set(range(low, high + 1)) for low, high in (SPLITS["train"], SPLITS["od_easy"], SPLITS["test"])]
        assert not set.intersection(ranges[0], ranges[1]) | set.intersection(*ranges[1:]) | (ranges[0] & ranges[2])
        with pytest.raises(
            ValueError, match="'od_hard' is not a split of .* Allowed: train, validation, od_easy, test"
        ):
            task.source("od_hard", 4)


def rows_of(batch) -> list[bytes]:
    return [row.tobytes() for row in np.asarray(batch.inputs)]


def digits_of(batch) -> list[int]:
    """Lengths of palindrome rows: everything except the two delimiters and the pads."""
    return (np.asarray(batch.input_mask) & (np.asarray(batch.inputs) < 10)).sum(-1).tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_equal_share_of_each_length(split):
    task = make("palindrome")
    source = briefly(functools.partial(task.source(split, 8).batch, jax.random.key(0)))
    low, high = SPLITS[split]
    count = high - low + 1
    batches = [source(step) for step in range(count)]  # as many rows of each
    lengths = [n for batch in batches for n in digits_of(batch)]
    assert collections.Counter(lengths) == dict.fromkeys(range(low, high + 1), 8)
    assert max(collections.Counter(digits_of(batches[0])).values()) <= -(-8 // count)
    assert rows_of(source(0)) == rows_of(batches[0])
    later = 2**31 - 2
    assert digits_of(source(later)) == [low + (later * 8 + i) % count for i in range(8)]


def test_fixed_sets_repeat_and_do_not_meet():
    task = make("palindrome", fixed_set=True, train_size=48, test_size=24, validation_lengths=(10, 10))
    sets = {}
    for split, size in {"train": 48, "od_easy": 24, "test": 24}.items():
        steps = jnp.arange(2 * size // 8)
        batches = jax.tree.map(
            np.asarray, briefly(jax.vmap(functools.partial(task.source(split, 8).batch, jax.random.key(3))))(steps)
        )
        rows = [[row.tobytes() for row in inputs] for inputs in batches.inputs]
        passes = [rows[: size // 8], rows[size // 8 :]]
        assert {tuple(rows) for rows in passes[0]} == {tuple(rows) for rows in passes[1]}
        assert (passes[0] == passes[1]) == (split != "train"), "training batches come in a new order"
        sets[split] = {row for rows in passes[0] for row in rows}
    assert not sets["train"] & (sets["od_easy"] | sets["test"]) and not sets["od_easy"] & sets["test"]
    fresh = briefly(jax.vmap(functools.partial(make("palindrome").source("train", 8).batch, jax.random.key(3))))(
        jnp.arange(12)
    )
    assert len({row.tobytes() for inputs in np.asarray(fresh.inputs) for row in inputs if (row < 10).sum() > 7}) > 20


def test_a_fixed_set_has_a_size():
    task = make("palindrome", fixed_set=True, train_size=40, test_size=24)
    assert {split: task.examples_of(split) for split in task.splits} == {
        "train": 40,
        **dict.fromkeys(("validation", "od_easy", "test"), 24),
    }
    assert make("palindrome").examples_of("test") is None
    with pytest.raises(ValueError, match="'od' is not a split"):
        task.examples_of("od")


def test_bounded_numbers_are_uniform():
    numbers = briefly(jax.vmap(lambda key, size: bounded_number(key, size, 3)))
    for size, low, high in ((1, 1, 8), (2, 1, 98)):
        digits = np.asarray(numbers(jax.random.split(jax.random.key(size), 20_000), jnp.full(20_000, size)))
        counts = np.bincount(digits @ [1, 10, 100], minlength=high + 2)
        assert counts[:low].sum() == counts[high + 1 :].sum() == 0
        expected = 20_000 / (high - low + 1)
        assert (np.abs(counts[low : high + 1] - expected) < 5 * expected**0.5).all()


def test_impossible_fields():
    for name in ("train_lengths", "validation_lengths", "od_easy_lengths", "test_lengths"):
        with pytest.raises(ValueError, match=rf"{name} is \(5, 2\)"):
            make("reduce", **{name: (5, 2)})
