"""Dyck words checked with a stack and by counting."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem.data.brackets import draw_word, inside_weights, nested_words
from lenmem.tasks.base import draw
from lenmem.tasks.dyck import TESTS, Dyck, innermost, uniform_walk

TINY = Dyck(examples=200)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path))


def answers(word, kinds):
    """The brackets that may follow each bracket, by a stack; None for a word that is not balanced."""
    stack, rows = [], []
    for bracket in word:
        if bracket < kinds:
            stack.append(bracket)
        elif not stack or stack.pop() != bracket - kinds:
            return None
        rows.append([1] * kinds + [int(bool(stack) and stack[-1] == kind) for kind in range(kinds)])
    return None if stack else rows


def check(example, kinds, row=None):
    fields = [np.asarray(x) if row is None else np.asarray(x)[row] for x in example]
    word, mask, targets, target_mask, score_mask = fields
    length = int(mask.sum())
    assert (mask[:length]).all()
    np.testing.assert_array_equal(mask, target_mask)
    np.testing.assert_array_equal(mask, score_mask)
    wanted = answers(word[:length].tolist(), kinds)
    assert wanted is not None, word[:length]
    np.testing.assert_array_equal(targets[:length], wanted)
    return tuple(word[:length].tolist())


@functools.cache
def sampler(kinds):
    """The sampling of a task, compiled once for all examples."""
    return jax.jit(Dyck(kinds=kinds).sample, static_argnums=2)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(2, 40), st.integers(0, 2**31 - 1))
def test_every_sample_is_a_word_and_its_answers_are_a_stacks(kinds, length, seed):
    example = sampler(kinds)(jax.random.key(seed), length, 40)
    assert len(check(example, kinds)) == max(2, length // 2 * 2)


def test_more_capacity_changes_the_padding_only():
    task = Dyck(kinds=3)
    small, large = (jax.jit(task.sample, static_argnums=2)(jax.random.key(3), 8, size) for size in (8, 30))
    for a, b in zip(small, large, strict=True):
        np.testing.assert_array_equal(a, b[:8])
    assert not large.input_mask[8:].any()


def all_words(pairs, kinds):
    """All words of D_n, by enumeration."""
    words = set()
    for word in itertools.product(range(2 * kinds), repeat=2 * pairs):
        if answers(word, kinds) is not None:
            words.add(word)
    return words


def test_samples_are_uniform_over_all_words():
    words = all_words(3, 2)
    assert len(words) == 5 * 2**3  # Catalan(3) structures, two kinds for each pair
    batch = draw(Dyck(), jax.random.key(0), jnp.full((8000,), 6), 6)
    counts = Counter(map(tuple, np.asarray(batch.inputs).tolist()))
    assert set(counts) == words
    assert max(abs(count - 200) for count in counts.values()) < 5 * math.sqrt(200)


def test_long_walks_return_as_often_as_counting_says():
    """A uniform word of k pairs has 3 k / (k + 2) factors on average, and never goes below zero."""
    pairs, walks = 80, 4000
    draws = jax.random.uniform(jax.random.key(1), (walks, 2 * pairs))
    opening = np.asarray(jax.vmap(uniform_walk, in_axes=(0, None))(draws, 2 * pairs))
    heights = np.cumsum(np.where(opening, 1, -1), axis=1)
    assert heights.min() == 0
    assert (heights[:, -1] == 0).all()
    factors = (heights == 0).sum(axis=1)
    assert abs(factors.mean() - 3 * pairs / (pairs + 2)) < 5 * factors.std() / math.sqrt(walks)


def test_partners_match():
    opening = jnp.array([True, True, False, True, True, False, False, False])  # (()(()))
    partner, inside = innermost(opening)
    assert [int(partner[i]) for i in (2, 5, 6, 7)] == [1, 4, 3, 0]
    assert inside.tolist() == [0, 1, 0, 3, 4, 3, 0, -1]


def grammar_weights(pairs, p, q):
    """The weight of every word of one kind, by recursion over words: w = (u), or w = u v with possibly empty
    phrases."""
    empty = (1 - math.sqrt(1 - 4 * q * (1 - p - q))) / (2 * q)
    weights = {"": empty}
    for count in range(1, pairs + 1):
        for word in map("".join, itertools.product("()", repeat=2 * count)):
            heights = np.cumsum([1 if c == "(" else -1 for c in word])
            if heights.min() < 0 or heights[-1]:
                continue
            whole = 0.0
            if (heights[:-1] > 0).all():
                whole += p * weights[word[1:-1]]
            whole += q * sum(
                weights[word[:cut]] * weights[word[cut:]] for cut in range(2, 2 * count, 2) if heights[cut - 1] == 0
            )
            weights[word] = whole / (1 - 2 * q * empty)
    return weights


def test_the_grammar_gives_every_word_its_weight():
    task = Dyck(kinds=1, longest=8, examples=5_000, p=0.4, q=0.3)
    weights = grammar_weights(4, 0.4, 0.3)
    of_length, factors = inside_weights(4, 0.4, 0.3)
    for pairs in range(1, 5):
        words = {word: weight for word, weight in weights.items() if len(word) == 2 * pairs}
        assert of_length[pairs] == pytest.approx(sum(words.values()))
        tops = {word: np.sum(np.cumsum([1 if c == "(" else -1 for c in word]) == 0) for word in words}
        mean = sum(weight * tops[word] for word, weight in words.items()) / sum(words.values())
        assert factors[pairs] == pytest.approx(mean)
    rows = task.tables()["train"]
    counts = Counter(
        "".join("()"[b] for b in word[:length]) for word, length in zip(rows.inputs, rows.input_lengths, strict=True)
    )
    del weights[""]
    total = sum(weights.values())
    for word, weight in weights.items():
        expected = 5_000 * weight / total
        assert abs(counts[word] - expected) < 5 * math.sqrt(expected) + 1


def test_weights_are_the_probabilities_of_the_grammar():
    """Words generated from the grammar have the lengths that the weights predict."""
    rng, p, q = np.random.default_rng(0), 0.5, 0.25

    def pairs(depth=0):
        if depth > 60:
            raise RecursionError
        choice = rng.random()
        if choice < p:
            return 1 + pairs(depth + 1)
        return pairs(depth + 1) + pairs(depth + 1) if choice < p + q else 0

    drawn = Counter()
    for _ in range(20_000):
        try:
            drawn[pairs()] += 1
        except RecursionError:
            drawn["deep"] += 1
    of_length, _ = inside_weights(6, p, q)
    for count in range(7):
        expected = 20_000 * of_length[count]
        assert abs(drawn[count] - expected) < 5 * math.sqrt(expected)


def test_distinct_words_are_in_a_set_once():
    """As many as asked for, or all words if there are fewer."""
    task = Dyck(kinds=2, longest=6, examples=60, distinct=True)
    tables = task.tables()
    for split, there in (("train", 50), ("validation", 50), ("plus_2", 60), ("octuple", 60)):
        rows = tables[split]
        first, last = task.splits[split]
        words = [tuple(w[:n].tolist()) for w, n in zip(rows.inputs, rows.input_lengths, strict=True)]
        assert len(words) == len(set(words)) == there
        assert all(answers(word, 2) is not None and first <= len(word) <= last for word in words)
        assert not (rows.inputs[np.arange(rows.inputs.shape[1]) >= rows.input_lengths[:, None]]).any()
    trained = {tuple(w[:n].tolist()) for w, n in zip(*tables["train"].arrays[:2], strict=True)}
    assert trained == all_words(1, 2) | all_words(2, 2) | all_words(3, 2)
    empty = np.mean([np.mean([not any(row[2:]) for row in answers(word, 2)]) for word in trained])
    assert task.chance == pytest.approx(max(empty, (1 - empty) / 2))
    assert Dyck(kinds=2, longest=6, examples=60).tables()["train"].inputs.shape[0] == 60  # Words repeat by default.


def test_more_kinds_than_a_byte_counts():
    task = Dyck(kinds=129, longest=4, examples=400)
    rows = task.tables()["train"]
    for word, length in zip(rows.inputs, rows.input_lengths, strict=True):
        opened = []
        for bracket in word[:length].tolist():
            if bracket < task.kinds:
                opened.append(bracket)
            else:
                assert opened.pop() == bracket - task.kinds
        assert not opened
    assert rows.inputs.max() > 255


@pytest.mark.parametrize("examples", [100, 12])
def test_without_phrases_of_two_phrases_all_words_are_nested(examples):
    """14 words of up to 6 of one or the other bracket, of which a set has all, or some."""
    task = Dyck(kinds=2, longest=6, p=0.5, q=0, examples=examples, distinct=True)
    words, lengths = task._drawn("train")
    found = {tuple(word[:length].tolist()) for word, length in zip(words, lengths, strict=True)}
    assert len(found) == len(words) == min(examples, 14)
    assert all(word[len(word) // 2 :] == tuple(2 + kind for kind in word[len(word) // 2 - 1 :: -1]) for word in found)
    rng = np.random.default_rng(0)
    drawn = {tuple(draw_word(2, 2, 0.5, 0, rng)) for _ in range(200)}
    assert drawn == set(nested_words(2, 2)) < set(all_words(2, 2))


def test_fresh_words_do_not_repeat_and_sets_do():
    fresh = Dyck(examples=7, sampling="uniform")
    assert {fresh.examples_of(split) for split in fresh.splits} == {None}
    fixed = Dyck(examples=7)
    assert [fixed.examples_of(split) for split in ("train", "test")] == [7, 28]


def test_distinct_words_are_those_that_repeat_without_their_repetitions():
    """The first words of a set are drawn in the same way: short ones are as likely, until none are left."""
    task = Dyck(kinds=3, longest=8, examples=400, distinct=True)
    lengths = task.tables()["train"].input_lengths
    counts = Counter(lengths.tolist())
    assert counts[2] == 3  # All there are.
    assert counts[4] >= 15  # Of 18: they are likely.
    assert counts[8] > counts[6] > counts[4]
    assert 0.8 < lengths[:100].mean() / lengths.mean() < 1.2, "the first words are not the likely ones"


def test_nearly_all_words_cannot_be_drawn():
    with pytest.raises(ValueError, match="195 of the 196 words of 2 to 12 brackets are too many to be drawn; got 1"):
        Dyck(kinds=1, longest=12, examples=195, distinct=True)._drawn("train")


@pytest.mark.parametrize("windows", [True, False])
def test_fresh_words_of_the_test_are_those_of_the_four_tests(windows):
    task = Dyck(longest=10, sampling="uniform", windows=windows)
    lengths = np.asarray(task.draw_lengths(jax.random.key(0), "test", (4000,)))
    spans = [task.splits[name] for name in TESTS]
    assert not (lengths % 2).any()
    for first, last in spans:
        assert abs(np.mean((first <= lengths) & (lengths <= last)) - 0.25) < 0.05


@pytest.mark.parametrize("windows", [True, False])
def test_the_sets(windows):
    task = dataclasses.replace(TINY, windows=windows)
    tables = task.tables()
    assert set(tables) == set(task.splits)
    spans = {"plus_2": (12, 12), "double": (14, 20), "quadruple": (22, 40), "octuple": (42, 80)}
    for split, (first, last) in task.splits.items():
        lengths = tables[split].input_lengths
        assert ((first <= lengths) & (lengths <= last)).all()
        if split in spans:
            assert (first, last) == (spans[split] if windows else (spans[split][1],) * 2)
            assert len(lengths) == 200
        batch = jax.jit(task.source(split, 32).batch)(jax.random.key(0), 1)
        for row in range(32):
            check(batch, 2, row)
    assert len(tables["test"]) == 800
    shown = tables["test"].input_lengths[:100]  # all tests are mixed
    assert all(((first <= shown) & (shown <= last)).any() for first, last in map(task.splits.get, spans))
    assert not np.array_equal(tables["train"].inputs, tables["validation"].inputs)
    again = dataclasses.replace(TINY, windows=windows, squared=False).tables()
    np.testing.assert_array_equal(again["train"].inputs, tables["train"].inputs)
    other = dataclasses.replace(task, data_seed=1).tables()
    assert not np.array_equal(other["train"].input_lengths, tables["train"].input_lengths)


@pytest.mark.parametrize("sampling", ["grammar", "uniform"])
def test_chance_is_what_constant_answers_get(sampling):
    task = Dyck(kinds=2, examples=2000, sampling=sampling)
    batch = jax.jit(task.source("train", 2000).batch)(jax.random.key(0), 0)
    best, metrics = 0.0, jax.jit(task.metrics)
    for bits in ([1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]):
        outputs = np.broadcast_to(np.array(bits) * np.float32(2) - 1, batch.targets.shape)
        best = max(best, float(metrics(outputs, batch)["token_accuracy"].mean()))
    assert task.spec.chance == pytest.approx(best, abs=0.02)


def test_a_word_counts_only_if_every_bit_is_right():
    task = Dyck()
    batch = jax.jit(lambda: draw(task, jax.random.key(0), jnp.array([4, 10]), 10))()
    outputs, metrics = jnp.where(batch.targets > 0.5, 0.2, -0.2), jax.jit(task.metrics)
    right = metrics(outputs, batch)
    assert right["exact_match"].tolist() == right["token_accuracy"].tolist() == [1, 1]
    wrong = metrics(outputs.at[0, 2, 3].multiply(-1).at[0, 7].set(9.0), batch)
    assert wrong["exact_match"].tolist() == [0, 1]
    np.testing.assert_allclose(wrong["token_accuracy"], [0.75, 1])
    assert task.loss(jnp.where(batch.targets > 0.5, 50.0, -50.0), batch) == pytest.approx(0, abs=1e-6)
    assert task.loss(0 * outputs, batch) == pytest.approx(0.25)
    assert dataclasses.replace(task, squared=False).loss(0 * outputs, batch) == pytest.approx(math.log(2), rel=1e-5)
    poisoned = batch._replace(targets=jnp.where(batch.score_mask[..., None], batch.targets, jnp.nan))
    noisy = jnp.where(batch.score_mask[..., None], outputs, jnp.nan)
    assert task.loss(noisy, poisoned) == task.loss(outputs, batch)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kinds": 0}, "kinds is 0"),
        ({"longest": 7}, "longest is 7"),
        ({"sampling": "all"}, "sampling is 'all'"),
        ({"p": 0.6, "q": 0.3}, r"p is 0.6 and q is 0.3; allowed"),
        ({"examples": 0}, "examples is 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Dyck(**fields)


def test_brackets_have_names():
    assert Dyck().input_names == ("(", "[", ")", "]")
    assert Dyck(kinds=5).input_names[4:6] == ("(4", "0)")
    assert Dyck().curve_lengths[:3] == (2, 4, 6)
    assert Dyck().curve_lengths[-1] == 80
