"""A path over points: its part of the plane, its arcs on a sphere, and labels beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lenmem.evaluation.plots.look import INK


def arc(points: np.ndarray, pieces: int = 12) -> np.ndarray:
    """The path over the points, along great circles if they lie on the unit sphere."""
    if len(points) < 2 or not np.allclose(np.linalg.norm(points, axis=1), 1, atol=1e-2):
        return points
    t = np.linspace(0, 1, pieces, endpoint=False)[:, None]
    chords = [(1 - t) * a + t * b for a, b in itertools.pairwise(points)]
    path = np.concatenate([*chords, points[-1:]])
    return unit(path)


def window(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of the visible part of the plane; never too narrow, even if all keys lie on a line."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = max(float((high - low).max()), 1e-3)
    half = np.maximum(high - low, 0.4 * span) / 2 + 0.09 * span
    return (low + high) / 2 - half, (low + high) / 2 + half


def annotate(ax: Axes, points: np.ndarray, labels: Sequence[str] | None, strengths: np.ndarray) -> None:
    """Writes labels beside points, off the path; of overlapping labels, only the first.

    Writes with almost no strength store nothing and are not annotated.
    """
    if labels is None:
        return
    figure: Any = ax.figure
    figure.draw_without_rendering()  # settles the layout, so that distances can be measured in points
    places = ax.transData.transform(points) * 72 / figure.dpi
    directions = away(places)
    directions[[0, -1]] *= 1.4  # start and end are ringed
    taken: list[np.ndarray] = []
    for point, place, direction, label, strength in zip(points, places, directions, labels, strengths, strict=True):
        offset = 12 * direction
        spot = place + offset
        if not label or strength < 0.05 or any(np.all(np.abs(spot - other) < (12, 8)) for other in taken):
            continue
        taken.append(spot)
        ax.annotate(
            label,
            point,
            xytext=tuple(offset),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7.5,
            color=INK,
            zorder=6,
            parse_math=False,
        )


def away(places: np.ndarray) -> np.ndarray:
    """float[n, 2] unit vectors away from the path at each of its points: out of a sharp bend, else to its left."""
    steps = unit(np.diff(places, axis=0))
    ahead = np.concatenate([steps, np.zeros((1, 2))])
    behind = np.concatenate([np.zeros((1, 2)), -steps])
    bends, tangents = (ahead + behind) / 2, ahead - behind
    left = np.stack([-tangents[:, 1], tangents[:, 0]], axis=1)
    sharp = np.linalg.norm(bends, axis=1, keepdims=True) > 0.25
    directions = np.where(sharp, -bends, left)
    for end in (0, -1):  # the path of the reads may continue straight ahead, so aim between ahead and left
        directions[end] = left[end] - 2 * bends[end]
    directions = unit(directions)
    return np.where(directions.any(axis=1, keepdims=True), directions, [0.0, 1.0])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1; zero vectors are unchanged."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norm > 1e-6, norm, 1)
