"""Statistics over seeds, against definitions written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem.evaluation.statistics import bootstrap_interval, mann_whitney, summarise

groups = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def test_known_values():
    summary = summarise([0.0, 1.0, 0.5, 0.99, 0.98])
    assert (summary.median, summary.low, summary.high, summary.best) == (0.98, 0, 1, 1)
    assert (summary.lower_quartile, summary.upper_quartile) == (0.5, 0.99)
    assert (summary.solve_rate, summary.alive) == (0.4, 5)
    assert summarise([0.0, 1.0, 0.5], threshold=0.5).solve_rate == pytest.approx(2 / 3)


@given(st.lists(st.lists(st.floats(0, 1) | st.just(float("nan")), min_size=2, max_size=2), min_size=1, max_size=6))
def test_dead_seeds_are_left_out(rows):
    summary = summarise(rows)
    for column in range(2):
        living = [row[column] for row in rows if not np.isnan(row[column])]
        assert summary.alive[column] == len(living)
        got = [
            summary.low[column],
            summary.lower_quartile[column],
            summary.median[column],
            summary.upper_quartile[column],
            summary.high[column],
        ]
        expected = np.quantile(living, [0, 0.25, 0.5, 0.75, 1]) if living else [np.nan] * 5
        np.testing.assert_allclose(got, expected, rtol=1e-12)
        solved = sum(value >= 0.99 for value in living) / len(rows) if living else np.nan
        np.testing.assert_allclose(summary.solve_rate[column], solved)


def test_a_dead_seed_is_not_a_solved_one():
    assert summarise([1.0, np.nan]).solve_rate == 0.5


@pytest.mark.parametrize("values", [0.5, np.zeros((0, 3))])
def test_no_seed_axis(values):
    with pytest.raises(ValueError, match="at least one seed, got shape"):
        summarise(values)


@settings(deadline=None)  # the first call imports scipy.stats
@given(groups, groups)
def test_effect_size_is_the_share_of_pairs(a, b):
    result = mann_whitney(a, b)
    pairs = [(x > y) + (x == y) / 2 for x, y in itertools.product(a, b)]
    assert result.effect_size == pytest.approx(np.mean(pairs))
    assert 0 <= result.p_value <= 1
    mirrored = mann_whitney(b, a)
    assert mirrored.p_value == pytest.approx(result.p_value)
    assert mirrored.effect_size == pytest.approx(1 - result.effect_size)


def test_exact_p_value_of_separated_groups():
    # 20 equally likely ways to choose 3 of 6 ranks; two of them are as extreme.
    assert mann_whitney([4, 5, 6], [1, 2, 3]).p_value == pytest.approx(2 / 20)
    assert mann_whitney([4, 5, np.nan, 6], [1, 2, 3], alternative="greater").p_value == pytest.approx(1 / 20)


def test_equal_groups():
    assert mann_whitney([1, 1, 1], [1, 1]) == (1.0, 0.5)


def test_bootstrap_interval():
    values = np.random.default_rng(0).normal(size=40)
    low, high = bootstrap_interval(values)
    assert low < np.median(values) < high
    wider = bootstrap_interval(values, confidence=0.99)
    assert wider[0] < low
    assert high < wider[1]
    assert bootstrap_interval([2.0, 2.0, np.nan]) == (2.0, 2.0)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)


def test_wrong_groups():
    with pytest.raises(ValueError, match="b has no seed that is not NaN"):
        mann_whitney([1.0], [np.nan])
    with pytest.raises(ValueError, match="one value per seed, got shape"):
        bootstrap_interval(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        bootstrap_interval([1.0], confidence=95)
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        bootstrap_interval([1.0], resamples=0)
