"""The common style of all pictures: colours, frames, names of rows and columns, colour bars.

Colours are those of Okabe and Ito, which are distinct in all kinds of colour vision; line styles and markers repeat the
distinction. Figures are made without Matplotlib's global state.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Path = str | os.PathLike[str] | None

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Together with the line styles they distinguish curves in black and white."""
WRITE, READ, INK, FAINT = "#C8102E", "#0072B2", "#333333", "#DDDDDD"
RESOLUTION = 200
"""Dots per inch of saved pictures: twice the resolution of a plain screen."""
BELOW = "; below the line: answers"
"""Appended to the label of a step axis that has a line before the answers."""
SMALLEST = 6.0
"""Size of the smallest text in points. If names would have to be smaller, only some are written."""


def color_scale(values: np.ndarray, top: float | None = None) -> tuple[Normalize, str]:
    """A colour scale from 0 to `top`, or to the largest value, rounded up so that pictures can be compared.

    Values of both signs get two colours and a symmetric scale.
    """
    finite = values[np.isfinite(values)]
    low, high = float(finite.min(initial=0)), float(finite.max(initial=0))
    most = max(abs(low), abs(high), 1e-9)
    end = top or next((step for step in (0.1, 0.2, 0.5, 1.0) if most <= step * 1.001), most)
    return (Normalize(-end, end), "RdBu") if low < -1e-6 * end else (Normalize(0, end), "Blues")


def mark_answers(ax: Axes, mark: int | None, *, across: bool = True) -> None:
    """Draws a line before the first row (or column) of the answers."""
    if mark is not None:
        line = ax.axhline if across else ax.axvline
        line(mark - 0.5, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=5)


def every(size: float) -> int:
    """The spacing of names along rows of `size` inches at which the smallest text fits: 1 for every row."""
    return max(1, math.ceil(1.15 * SMALLEST / 72 / size))


def name_ticks(axis: Any, names: Sequence[str] | None, count: int, what: str, size: float) -> None:
    """Labels rows or columns of `size` inches with as many names as can be read; without names, with numbers."""
    if names is None:
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
        return
    if len(names) != count:
        raise ValueError(f"{what} must name {count}, got {len(names)} names")
    names = [plain(str(name)) for name in names]
    # Short names are horizontal; long ones are vertical below the axis.
    upright = axis.axis_name == "x" and max(map(len, names), default=0) > 2
    shown = range(0, count, every(size))
    axis.set_ticks(list(shown), [names[n] for n in shown])
    axis.set_tick_params(labelsize=max(SMALLEST, min(8, 55 * size)), length=0, labelrotation=90 if upright else 0)


def color_bar(figure: Figure, image: Any, ax: Any, label: str, *, shrink: float = 1.0, ticks: Any = None) -> None:
    """A labelled colour bar beside some axes."""
    bar = figure.colorbar(image, ax=ax, aspect=24, fraction=0.04, pad=0.02, shrink=shrink, ticks=ticks)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set(linewidth=0.5, edgecolor=FAINT)  # pyright: ignore[reportCallIssue]


def style(ax: Axes) -> None:
    """A plain frame: two spines, and a faint grid behind the data."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#999999")
    ax.tick_params(color="#999999", labelcolor=INK, labelsize=9)
    ax.grid(color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)


def matrix(values: np.ndarray, what: str) -> np.ndarray:
    """The values as float64. Raises ValueError, naming them, if they are not a matrix."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{what} must be a matrix with at least one entry, got shape {values.shape}")
    return values


def require_within(count: int, **numbers: int) -> None:
    """Raises ValueError, naming the argument, if one of the numbers is not in 0 .. count - 1."""
    for name, got in numbers.items():
        if not 0 <= got < count:
            raise ValueError(f"{name} must lie between 0 and {count - 1}, got {got}")


def plain(text: str) -> str:
    """Text with escaped dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


def finish(figure: Figure, path: Path) -> Figure:
    """Writes the figure to `path`, if given, and returns it."""
    if path is not None:
        figure.savefig(path, dpi=RESOLUTION)
    return figure
