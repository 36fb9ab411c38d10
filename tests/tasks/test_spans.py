"""Windows, the likeliest span, F1 and exact match, against hand-made cases and slow twins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.tasks import spans


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 20))
def test_windows_cover_a_text(count, room, stride):
    found = list(spans.windows(count, room, stride))
    assert {at for first, last in found for at in range(first, last)} == set(range(count))
    assert [first for first, _ in found] == [min(room, stride) * i for i in range(len(found))]
    assert found[-1][1] == count and all(last - first == room for first, last in found[:-1])
    assert found[-1][1] - found[-1][0] <= room and (len(found) == 1 or found[-2][1] < count)


def test_windows_of_the_published_size():
    """A text of 500 pieces beside a question of 17, as in BERT's code: windows of 364 that begin every 128."""
    assert list(spans.windows(500, 384 - 17 - 3, 128)) == [(0, 364), (128, 492), (256, 500)]


@pytest.mark.parametrize(
    "start, end, wanted", [(0, 3, (0, 0)), (1, 5, (0, 1)), (4, 12, (1, 2)), (3, 4, (-1, -1)), (12, 20, (-1, -1))]
)
def test_the_pieces_of_some_characters(start, end, wanted):
    """Also of some that begin or end inside of a piece, and of a blank."""
    assert spans.span_of([(0, 3), (4, 8), (8, 12)], start, end) == wanted


def test_the_second_segment():
    """After the first separator and before the last real column; padding may hold separators."""
    inputs = jnp.array([[1, 5, 9, 6, 9, 7, 9, 9], [1, 9, 6, 6, 6, 9, 9, 9], [1, 9, 9, 9, 6, 9, 9, 9]])
    mask = jnp.arange(8) < jnp.array([7, 6, 3])[:, None]
    found = spans.second_segment(inputs, mask, 9)
    assert [np.flatnonzero(row).tolist() for row in found] == [[3, 4, 5], [2, 3, 4], []]


best_spans = jax.jit(spans.best_spans, static_argnums=3)


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_the_best_span_is_that_of_all_pairs(count, longest, seed):
    """Spans are short and texts many, so that the best one often is as long as it may be."""
    rng = np.random.default_rng(seed)
    start, end = rng.normal(size=(2, 8, count)).astype(np.float32)
    allowed = rng.random((8, count)) < 0.7
    firsts, lasts, totals = (np.asarray(x) for x in best_spans(start, end, allowed, longest))
    for row, (i, j, total) in enumerate(zip(firsts, lasts, totals, strict=True)):
        pairs = [
            start[row, i] + end[row, j]
            for i in np.flatnonzero(allowed[row])
            for j in np.flatnonzero(allowed[row])
            if i <= j < i + longest
        ]
        assert total == max(pairs, default=-np.inf)
        if pairs:
            assert start[row, i] + end[row, j] == total and allowed[row, i] and allowed[row, j]
            assert i <= j < i + longest


@pytest.mark.parametrize(
    "given, right, f1, exact",
    [
        ("the mill", ["The Mill"], 1, 1),
        ("mill", ["the mill"], 1, 1),  # articles
        ("a mill", ["an  mill."], 1, 1),
        ("theatre", ["atre"], 0, 0),  # an article is a whole word
        ("U.S.", ["US"], 1, 1),  # marks vanish, blanks do not come in their place
        ("well-known man", ["well known man"], 2 / 5, 0),
        ("“old” mill", ["old mill"], 1 / 2, 0),  # marks that are not ASCII are letters of their words
        ("old stone mill", ["stone mill"], 0.8, 0),  # P = 2/3, R = 1
        ("mill mill", ["mill"], 2 / 3, 0),  # a word counts once
        ("red mill", ["mill", "the red mill by the river", "red mills"], 2 / 3, 0),  # 2/3, 4/6, 1/2
        ("by the river", ["a mill", "the river", "by river"], 1, 1),  # the best of several
        ("", ["mill"], 0, 0),
        ("the", ["a"], 0, 1),  # nothing is left: no common word, and the same words
        ("forge", ["mill", "pond"], 0, 0),
        ("1,000 men", ["1000 men"], 1, 1),
    ],
)
def test_f1_and_exact_match_by_hand(given, right, f1, exact):
    assert spans.f1(given, right) == pytest.approx(f1) and spans.exact(given, right) == exact


def test_the_highest_row_of_each_group():
    scores, groups = np.array([1.0, 3.0, 2.0, -np.inf, -np.inf, 0.0]), np.array([0, 0, 0, 2, 5, 5])
    assert spans.chosen(scores, groups).tolist() == [1, 3, 5]


def test_a_span_in_half_precision_is_compared_in_single():
    start = jnp.array([[1.0, 256.0]], jnp.bfloat16)
    end = jnp.array([[0.0, 1.0]], jnp.bfloat16)
    *_, total = best_spans(start, end, jnp.ones((1, 2), bool), 2)
    assert total.dtype == jnp.float32 and total[0] == 257
