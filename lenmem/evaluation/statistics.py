"""Statistics over training seeds. Dead seeds are given as NaN."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """What the seeds have in common, each field of the shape of one seed's values; NaN where all seeds are dead."""

    median: np.ndarray
    low: np.ndarray
    """The worst living seed."""
    high: np.ndarray
    """The best seed."""
    lower_quartile: np.ndarray
    upper_quartile: np.ndarray
    solve_rate: np.ndarray
    """Share of *all* seeds that reach the threshold: a seed that died has not solved its task."""
    alive: np.ndarray
    """int: number of seeds that are not NaN."""

    @property
    def best(self) -> np.ndarray:
        """The best seed: `high`, since every metric of the library is better when larger."""
        return self.high


def summarise(values: ArrayLike, *, threshold: float = 0.99) -> Summary:
    """Median, range, quartiles and solve rate over the leading axis of `values`, float[S, ...].

    Quartiles interpolate linearly. A seed solves where its value is at least `threshold`.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim < 1 or values.shape[0] < 1:
        raise ValueError(f"values need a leading axis of at least one seed, got shape {values.shape}")
    alive = np.sum(~np.isnan(values), axis=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        low, lower, median, upper, high = np.nanquantile(values, [0.0, 0.25, 0.5, 0.75, 1.0], axis=0)
    solved = np.sum(values >= threshold, axis=0) / values.shape[0]
    return Summary(
        median=median,
        low=low,
        high=high,
        lower_quartile=lower,
        upper_quartile=upper,
        solve_rate=np.where(alive > 0, solved, np.nan),
        alive=alive,
    )


class MannWhitney(NamedTuple):
    """Result of a rank test between two groups of seeds."""

    p_value: float
    effect_size: float
    """Common-language effect size: P(a > b) + P(a = b) / 2. 0.5 means no difference."""


def mann_whitney(
    a: ArrayLike, b: ArrayLike, *, alternative: Literal["two-sided", "less", "greater"] = "two-sided"
) -> MannWhitney:
    """Mann-Whitney U test of two groups of seeds, float[S] each; exact for small groups without ties.

    NaN is left out. Groups that are all one value have p = 1. Raises ValueError where no living seed is left.
    """
    # Imported here, since scipy.stats takes most of a second.
    from scipy.stats import mannwhitneyu

    a, b = _living(a, "a"), _living(b, "b")
    if np.ptp(np.concatenate([a, b])) == 0:
        return MannWhitney(1.0, 0.5)  # the normal approximation would divide by a variance of zero
    result = mannwhitneyu(a, b, alternative=alternative)
    return MannWhitney(float(result.pvalue), float(result.statistic) / (a.size * b.size))


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of float[S], NaN left out. Raises ValueError where none is left."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    values = _living(values, "values")
    draws = np.random.default_rng(seed).choice(values, size=(resamples, values.size))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _living(values: ArrayLike, name: str) -> np.ndarray:
    """The values that are not NaN, as a vector."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} must be a vector of one value per seed, got shape {values.shape}")
    values = values[~np.isnan(values)]
    if not values.size:
        raise ValueError(f"{name} has no seed that is not NaN")
    return values
