"""Statistics over training seeds. Diverged seeds are NaN."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """Median and range over seeds. Each field has the shape of one seed's values; NaN if all seeds diverged."""

    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def summarise(values: ArrayLike) -> Summary:
    """Median and range over the leading axis of `values`, float[S, ...]; NaN is left out. ValueError without a seed."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim < 1 or values.shape[0] < 1:
        raise ValueError(f"values need a leading axis of at least one seed, got shape {values.shape}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        low, median, high = np.nanquantile(values, [0.0, 0.5, 1.0], axis=0)
    return Summary(median=median, low=low, high=high)


class MannWhitney(NamedTuple):
    """Result of a rank test between two groups of seeds."""

    p_value: float
    effect_size: float
    """Common-language effect size: P(a > b) + P(a = b) / 2. 0.5 means no difference."""


def mann_whitney(
    a: ArrayLike, b: ArrayLike, *, alternative: Literal["two-sided", "less", "greater"] = "two-sided"
) -> MannWhitney:
    """Mann-Whitney U test of two groups of seeds, float[S] each; exact for small groups without ties.

    NaN is left out. If both groups have only one value, p = 1. Raises ValueError if a group has no value left.
    """
    # Imported here, since scipy.stats takes most of a second.
    from scipy.stats import mannwhitneyu

    a, b = _living(a, "a"), _living(b, "b")
    if np.ptp(np.concatenate([a, b])) == 0:
        return MannWhitney(1.0, 0.5)  # the normal approximation would divide by a variance of zero
    result = mannwhitneyu(a, b, alternative=alternative)
    return MannWhitney(float(result.pvalue), float(result.statistic) / (a.size * b.size))


def _living(values: ArrayLike, name: str) -> np.ndarray:
    """The values that are not NaN, as a vector."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} must be a vector of one value per seed, got shape {values.shape}")
    values = values[~np.isnan(values)]
    if not values.size:
        raise ValueError(f"{name} has no seed that is not NaN")
    return values


# The protocol of Ofner & Kern (arXiv 2110.09138). A trial is a trained seed, measured at every length.


def longest_length(lengths: ArrayLike, accuracies: ArrayLike, *, threshold: float = 0.95) -> int:
    """The longest measured length whose median over trials is at least `threshold`; 0 if there is none.

    lengths int[L], accuracies float[S, L]. Shorter lengths may fail. A diverged seed counts as accuracy 0.
    """
    lengths, accuracies = _by_length(lengths, accuracies)
    reached = np.median(np.nan_to_num(accuracies), axis=0) >= threshold
    return int(np.max(lengths[reached], initial=0))


def mean_over_lengths(lengths: ArrayLike, accuracies: ArrayLike, *, first: int = 2, last: int = 45) -> np.ndarray:
    """Each trial's mean over the lengths `first` .. `last`: float[S].

    Accuracies are interpolated linearly between measured lengths, so a sparse grid gives the same weights as a full
    one. lengths int[L], accuracies float[S, L]. ValueError if the lengths do not reach from `first` to `last`.
    """
    lengths, accuracies = _by_length(lengths, accuracies)
    if first > last or first < lengths.min() or last > lengths.max():
        raise ValueError(
            f"the mean over lengths {first} to {last} needs a curve that reaches from {first} to {last}; "
            f"measured were {lengths.min()} to {lengths.max()}"
        )
    order = np.argsort(lengths)
    every = np.arange(first, last + 1)
    return np.array([np.interp(every, lengths[order], trial[order]).mean() for trial in accuracies])


def benjamini_hochberg(p_values: ArrayLike) -> np.ndarray:
    """P-values of one family, float[n], adjusted for the false discovery rate (Benjamini & Hochberg 1995).

    With rank r among n: p n / r, but no more than the adjusted value of the next larger p-value. ValueError for other
    shapes, and for numbers outside of [0, 1].
    """
    from scipy.stats import false_discovery_control

    p_values = np.asarray(p_values, dtype=np.float64)
    if p_values.ndim != 1 or not p_values.size or not np.all((p_values >= 0) & (p_values <= 1)):
        raise ValueError(f"p_values must be a vector of at least one number between 0 and 1, got {p_values}")
    return false_discovery_control(p_values, method="bh")


class Comparison(NamedTuple):
    """Two groups of trials on one task."""

    task: str
    first: str
    second: str
    p_value: float
    """Two-sided, of the Mann-Whitney U test."""
    adjusted: float
    """The p-value, adjusted within the family of all comparisons."""
    effect_size: float
    """P(first > second) + P(first = second) / 2; times the number of pairs, this is U of the first group."""


def compare_pairs(tasks: Mapping[str, Mapping[str, ArrayLike]]) -> list[Comparison]:
    """Every pair of groups of every task, with p-values adjusted over *all* of them: the paper's Tables IV and VIII.

    `tasks` maps a task to its groups, and a group's name to one value per trial. The paper does not define its family;
    its adjusted values belong to ranks among 70, which shows that the family is all pairs of all tasks.
    """
    pairs = [
        (task, first, second, mann_whitney(groups[first], groups[second]))
        for task, groups in tasks.items()
        for first, second in itertools.combinations(groups, 2)
    ]
    if not pairs:
        raise ValueError("nothing to compare: no task has two groups")
    adjusted = benjamini_hochberg([result.p_value for *_, result in pairs])
    return [
        Comparison(task, first, second, result.p_value, float(adjusted[i]), result.effect_size)
        for i, (task, first, second, result) in enumerate(pairs)
    ]


class Kendall(NamedTuple):
    """A rank correlation."""

    tau: float
    """tau-b: concordant minus discordant pairs, over the pairs that are not tied."""
    p_value: float
    """Two-sided, by the normal approximation."""


def kendall(a: ArrayLike, b: ArrayLike) -> Kendall:
    """Kendall's tau-b of two values for each trial, float[n] each; trials with a NaN are left out.

    The paper's Table VI, of curvature and performance; adjust the p-values of several tasks with `benjamini_hochberg`.
    If one of the two is constant, tau is NaN and p is 1. ValueError for other shapes, and for fewer than 3 trials.
    """
    from scipy.stats import kendalltau

    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"a and b must be vectors of the same trials, got shapes {a.shape} and {b.shape}")
    both = ~(np.isnan(a) | np.isnan(b))
    a, b = a[both], b[both]
    if a.size < 3:
        raise ValueError(f"a rank correlation needs at least three trials without NaN, got {a.size}")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return Kendall(math.nan, 1.0)
    result: Any = kendalltau(a, b, variant="b", method="asymptotic")
    return Kendall(float(result.statistic), float(result.pvalue))


def _by_length(lengths: ArrayLike, accuracies: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """int[L] and float[S, L], checked."""
    lengths, accuracies = np.asarray(lengths), np.asarray(accuracies, dtype=np.float64)
    if lengths.ndim != 1 or not lengths.size or accuracies.ndim != 2 or accuracies.shape[1] != lengths.size:
        raise ValueError(
            f"accuracies must be [trials, lengths] for {lengths.shape} lengths, got shape {accuracies.shape}"
        )
    return lengths, accuracies
