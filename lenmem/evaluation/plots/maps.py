"""Heat maps of weights, and strips of per-step values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lenmem.evaluation.plots.look import (
    BELOW,
    FAINT,
    INK,
    Path,
    color_bar,
    color_scale,
    finish,
    mark_answers,
    matrix,
    name_ticks,
    plain,
)


def plot_attention(
    weights: np.ndarray,
    path: Path = None,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "memory slot",
    ylabel: str = "step",
    title: str = "",
    mark: int | None = None,
) -> Figure:
    """Heat map of weights[T, slots] in [0, 1], with time running downwards.

    `rows` and `columns` name the steps and slots (for instance by their tokens); by default they are numbered. A line
    above the step `mark` shows where answering begins.
    """
    weights = matrix(weights, "weights [T, slots]")
    return plot_maps(
        weights[None],
        path,
        rows=rows,
        columns=columns,
        xlabel=xlabel,
        ylabel=ylabel,
        title=title,
        mark=mark,
    )


def plot_maps(
    maps: np.ndarray,
    path: Path = None,
    *,
    titles: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "",
    ylabel: str = "step",
    label: str = "weight",
    title: str = "",
    mark: int | None = None,
    top: float | None = None,
) -> Figure:
    """Heat maps [n, T, K] with one scale, one panel each: for several heads, layers or steps.

    The scale goes from 0 to the largest value, or for values of both signs from minus to plus the largest, with red for
    negative values. Other arguments as in `plot_attention`.

    Args:
        maps: the values.
        path: where to write the picture.
        titles: titles of the panels.
        rows: names of the rows.
        columns: names of the columns.
        xlabel: label of the columns.
        ylabel: label of the rows.
        label: label of the values.
        title: a line above the picture.
        mark: the first row of the answers; a line is drawn above it.
        top: end of the scale; None: the largest value, rounded up.
    """
    maps = np.asarray(maps, dtype=np.float64)
    if maps.ndim != 3 or not maps.size:
        raise ValueError(f"maps must be [n, T, K] with at least one entry, got shape {maps.shape}")
    count, height, width = maps.shape
    cell = min(0.2, 9 / max(height, width), 14 / (count * width) if count > 1 else 9)
    size = (max(cell * width, 1.6 if count > 1 else 2.4), max(cell * height, 1.2 if count > 1 else 1.8))
    across = min(count, max(1, int(12 / (size[0] + 0.3))))
    down = -(-count // across)
    shape = 1.9 + across * (size[0] + 0.25), 1.3 + down * (size[1] + 0.3)
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    norm, cmap = color_scale(maps, top)
    image = None
    for number, ax in enumerate(axes.flat):
        if number >= count:
            ax.set_axis_off()
            continue
        image = ax.imshow(maps[number], cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        if titles is not None:
            ax.set_title(plain(titles[number]), fontsize=8, color=INK, pad=3)
        ax.spines[:].set_color(FAINT)
        ax.tick_params(labelsize=8, color=FAINT)
        below = number + across >= count
        ax.tick_params(labelleft=number % across == 0, labelbottom=below)
        name_ticks(ax.yaxis, rows, height, "rows", size[1] / height)
        name_ticks(ax.xaxis, columns, width, "columns", size[0] / width)
        mark_answers(ax, mark)
    figure.supxlabel(xlabel, fontsize=9, color=INK)
    figure.supylabel(ylabel + ("" if mark is None else BELOW), fontsize=9, color=INK)
    figure.suptitle(plain(title), fontsize=11, color=INK)
    assert image is not None
    color_bar(figure, image, list(axes.flat), label, shrink=min(1.0, 3 / shape[1]))
    return finish(figure, path)


def plot_strips(
    strips: Mapping[str, np.ndarray],
    path: Path = None,
    *,
    rows: Mapping[str, Sequence[str]] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "step",
    title: str = "",
    mark: int | None = None,
) -> Figure:
    """Values of each step, name by name: gates, actions, addresses. Each is float[T, k], with a row per entry.

    Time runs to the right, on one axis for all. `rows` names the entries of strips; by default they are numbered. Other
    arguments as in `plot_maps`; each strip has its own scale.
    """
    arrays = {name: matrix(values, f"{name} [T, k]").T for name, values in strips.items()}
    if not arrays or len({values.shape[1] for values in arrays.values()}) > 1:
        raise ValueError("at least one strip is needed, and all must have the same number of steps")
    steps = next(iter(arrays.values())).shape[1]
    cell = min(0.24, 11 / steps)
    heights = [0.16 * len(values) + 0.12 for values in arrays.values()]
    shape = 3.2 + max(cell * steps, 3.0), 1.4 + sum(heights) + 0.14 * len(heights)
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(len(arrays), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for ax, (name, values) in zip(axes, arrays.items(), strict=True):
        norm, cmap = color_scale(values)
        image = ax.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        ax.spines[:].set_color(FAINT)
        ax.tick_params(labelsize=7, length=0)
        labels = (rows or {}).get(name, [str(number + 1) for number in range(len(values))])
        ax.set_yticks(range(len(values)), labels) if len(values) > 1 else ax.set_yticks([])
        ax.set_ylabel(plain(name.replace("_", " ")), fontsize=8, rotation=0, ha="right", va="center")
        mark_answers(ax, mark, across=False)
        bar = figure.colorbar(image, ax=ax, fraction=0.03, pad=0.01, aspect=max(3, 8 * values.shape[0]))
        bar.ax.tick_params(labelsize=6)
        ends = [float(norm.vmin or 0), float(norm.vmax or 0)]
        bar.set_ticks(ends, labels=[f"{end:.3g}" for end in ends])
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    name_ticks(axes[-1].xaxis, columns, steps, "columns", cell)
    axes[-1].set_xlabel(xlabel + ("" if mark is None else "; right of the line: answers"))
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)
