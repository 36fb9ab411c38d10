"""Statistics over seeds, against definitions written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem import papers
from lenmem.evaluation.statistics import (
    benjamini_hochberg,
    compare_pairs,
    kendall,
    longest_length,
    mann_whitney,
    mean_over_lengths,
    summarise,
)

groups = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def test_known_values():
    summary = summarise([0.0, 1.0, 0.5, 0.99, 0.98])
    assert (summary.median, summary.low, summary.high) == (0.98, 0, 1)


@given(st.lists(st.lists(st.floats(0, 1) | st.just(float("nan")), min_size=2, max_size=2), min_size=1, max_size=6))
def test_dead_seeds_are_left_out(rows):
    summary = summarise(rows)
    for column in range(2):
        living = [row[column] for row in rows if not np.isnan(row[column])]
        got = [summary.low[column], summary.median[column], summary.high[column]]
        expected = np.quantile(living, [0, 0.5, 1]) if living else [np.nan] * 3
        np.testing.assert_allclose(got, expected, rtol=1e-12)


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


def test_wrong_groups():
    with pytest.raises(ValueError, match="b has no seed that is not NaN"):
        mann_whitney([1.0], [np.nan])
    with pytest.raises(ValueError, match="one value per seed, got shape"):
        mann_whitney(np.zeros((2, 2)), [1.0])


# --- the protocol of Ofner & Kern -------------------------------------------------------------------------------------


def test_longest_length():
    lengths = [2, 5, 10, 20, 40]
    accuracies = [[1.0, 1, 0.96, 0.9, 1], [1, 0.9, 0.95, 0.9, 0], [1, 0.9, 0.5, 1, 0]]
    assert longest_length(lengths, accuracies) == 10, "5 fails, 40 holds for one trial of three"
    assert longest_length(lengths, accuracies, threshold=0.97) == 2
    assert longest_length(lengths, accuracies, threshold=1.01) == 0
    assert longest_length(lengths[::-1], np.fliplr(accuracies)) == 10
    dead = [*accuracies, [math.nan] * 5]
    assert longest_length(lengths, dead) == 2, "a dead trial has not solved anything"
    with pytest.raises(
        ValueError, match=r"accuracies must be \[trials, lengths\] for \(5,\) lengths, got shape \(3, 4\)"
    ):
        longest_length(lengths, np.zeros((3, 4)))


def test_mean_over_lengths():
    full = np.arange(2, 101)
    curves = np.stack([1 - full / 200, np.where(full <= 45, 0.5, 0)])
    expected = [np.mean([1 - n / 200 for n in range(2, 46)]), 0.5]
    np.testing.assert_allclose(mean_over_lengths(full, curves), expected)
    sparse = np.isin(full, [2, 3, 10, 40, 50, 100])
    np.testing.assert_allclose(mean_over_lengths(full[sparse], curves[:, sparse])[0], expected[0])
    np.testing.assert_allclose(mean_over_lengths([3, 1], [[0.2, 0.6]], first=1, last=3), [0.4])
    assert np.isnan(mean_over_lengths(full, np.full((1, 99), np.nan))).all()
    with pytest.raises(ValueError, match="needs a curve that reaches from 2 to 45; measured were 5 to 15"):
        mean_over_lengths([5, 15], [[1, 1]])


@pytest.mark.parametrize("table", ["table_2", "table_5"])
def test_printed_factors_are_those_of_the_printed_lengths(table):
    for row in papers.tables("dnc")[f"{table}_factor"]["rows"]:
        constrained = ("COMPR", "REG", "COMPR&REG")
        longest = [papers.find("dnc", table, task=row["task"], model=model)["max_length"] for model in constrained]
        baseline = papers.find("dnc", "table_2", task=row["task"], model="STATEFUL-BASELINE")["max_length"]
        factor = max(longest) / baseline
        # 15 / 16 and 25 / 32 are printed as 0.9 and 0.8; nothing is printed if no length is processed.
        assert abs(factor - row["factor"]) <= 0.05 + 1e-9 if row["factor"] is not None else factor == 0


def test_the_mean_over_lengths_takes_them_in_any_order():
    ascending = mean_over_lengths([2, 4, 8], [[1.0, 0.6, 0.2]], first=2, last=8)
    np.testing.assert_allclose(mean_over_lengths([8, 2, 4], [[0.2, 1.0, 0.6]], first=2, last=8), ascending)


def adjusted_by_hand(p_values: list[float]) -> list[float]:
    """The least p n / r among the ranks at or above one's own; equal values have the largest rank."""
    n = len(p_values)
    return [min(q * n / sum(x <= q for x in p_values) for q in p_values if q >= p) for p in p_values]


def test_benjamini_hochberg_of_a_textbook():
    # Benjamini & Hochberg 1995, section 3.2: the four smallest of these 15 are significant at a rate of 0.05.
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p_values += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    adjusted = benjamini_hochberg(p_values)
    assert (adjusted <= 0.05).sum() == 4
    np.testing.assert_allclose(adjusted[[0, 3, -1]], [0.0015, 0.0095 * 15 / 4, 1])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_benjamini_hochberg_by_hand(p_values):
    np.testing.assert_allclose(benjamini_hochberg(p_values), adjusted_by_hand(p_values))


@pytest.mark.parametrize("p_values", [[], [0.5, 1.5], [math.nan], [[0.1]]])
def test_no_p_values(p_values):
    with pytest.raises(ValueError, match="a vector of at least one number between 0 and 1, got"):
        benjamini_hochberg(p_values)


def test_the_papers_family_is_all_pairs_of_all_tasks():
    """Table VIII: its 70 adjusted values are those of U tests of 10 against 10, whose U are integers."""
    attainable = np.array([mann_whitney(*ranks_with(u)).p_value for u in range(50, 101)])
    printed = np.array([row["p"] for row in papers.tables("dnc")["table_8"]["rows"]])
    implied = [p * sum(printed <= p) / len(printed) for p in printed]
    raw = np.where(printed > 0.001, attainable[[np.abs(attainable - p).argmin() for p in implied]], attainable.min())
    np.testing.assert_allclose(benjamini_hochberg(raw), printed, atol=0.0006)


def ranks_with(u: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten and ten different numbers with U equal to `u`: whole tens of pairs, and the rest by one number."""
    second = np.arange(10.0)
    first = [-1 - i / 100 for i in range(10)]
    first[: u // 10] = [100.0 + i for i in range(u // 10)]
    if u % 10:
        first[u // 10] = u % 10 - 0.5
    return np.array(first), second


@pytest.mark.parametrize("u", [0, 7, 50, 63, 100])
def test_a_known_u(u):
    result = mann_whitney(*ranks_with(u))
    assert result.effect_size * 100 == pytest.approx(u)
    spread = math.sqrt(10 * 10 * 21 / 12)  # without ties; half a step of correction
    expected = math.erfc(max(abs(u - 50) - 0.5, 0) / spread / math.sqrt(2))
    assert result.p_value == pytest.approx(min(expected, 1), abs=1e-9)


def test_compare_pairs():
    groups = {"sort": {"a": [1.0, 2, 3], "b": [4.0, 5, 6], "c": [1.0, 2, 3]}, "copy": {"a": [0.0, 1], "b": [2.0, 3]}}
    found = compare_pairs(groups)
    assert [result[:3] for result in found] == [
        ("sort", "a", "b"),
        ("sort", "a", "c"),
        ("sort", "b", "c"),
        ("copy", "a", "b"),
    ]
    assert [result.effect_size for result in found] == [0, 0.5, 1, 0]
    np.testing.assert_allclose([found[0].p_value, found[3].p_value], [2 / 20, 2 / 6])
    adjusted = adjusted_by_hand([result.p_value for result in found])
    np.testing.assert_allclose([result.adjusted for result in found], adjusted)
    with pytest.raises(ValueError, match="no task has two groups"):
        compare_pairs({"sort": {"a": [1.0]}})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=8))
def test_kendall_counts_pairs(points):
    a, b = np.array(points, float).T
    signs = [(np.sign(x - u), np.sign(y - v)) for (x, y), (u, v) in itertools.combinations(points, 2)]
    result = kendall(a, b)
    untied = math.sqrt(sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs))
    if not untied:
        assert math.isnan(result.tau) and result.p_value == 1
        return
    assert result.tau == pytest.approx(sum(x * y for x, y in signs) / untied)
    assert 0 <= result.p_value <= 1
    assert kendall(a, -b).tau == pytest.approx(-result.tau)


def test_known_kendall():
    result = kendall([1, 2, 3, 4, math.nan], [1, 2, 4, 3, 9])
    assert result.tau == pytest.approx(4 / 6)
    # Without ties the variance of concordant minus discordant pairs is n (n - 1) (2 n + 5) / 18.
    assert result.p_value == pytest.approx(math.erfc(4 / math.sqrt(4 * 3 * 13 / 18) / math.sqrt(2)))
    with pytest.raises(ValueError, match="at least three trials without NaN, got 2"):
        kendall([1, math.nan, 3], [1, 2, 3])
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(3,\)"):
        kendall([1, 2], [1, 2, 3])
