"""Pictures of curves, training and memory. The only module that imports matplotlib, and never its global state.

Every function returns a `Figure` and, given `path`, also writes it (the suffix decides the format). Colours are those
of Okabe and Ito, which all kinds of colour vision tell apart; line styles and markers repeat the distinction. A panel
has at most eight lines.
"""

from __future__ import annotations

import itertools
import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.states import PHASES, States, mode_histograms
from lenmem.evaluation.statistics import summarise
from lenmem.evaluation.tables import METRICS, grid
from lenmem.evaluation.traces import Memory, data_flow_of, memory_of, pca, tape_of

Path = str | os.PathLike[str] | None

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""With the line styles they tell curves apart in black and white."""
WRITE, READ, INK, FAINT = "#C8102E", "#0072B2", "#333333", "#DDDDDD"
RESOLUTION = 200
"""Dots per inch of written pictures: twice that of a plain screen."""
BELOW = "; below the line: answers"
"""Goes on the name of an axis of steps that is cut by a mark."""
SMALLEST = 6.0
"""Points of the smallest text. Where names would have to be smaller, only some are written."""

# ---------------------------------------------------------------------------------------------------- curves


def plot_curves(
    curves: Sequence[LengthCurve], path: Path = None, metric: Sequence[str] = METRICS, *, title: str | None = None
) -> Figure:
    """Accuracy by length, one panel per metric: the median over seeds, a band from the lowest to the highest seed, and
    the training lengths shaded.

    More than eight curves have a panel each (`plot_curve_grid`). The title is the task's name, unless one is given.
    """
    if not curves:
        raise ValueError("no curves given; a picture needs at least one")
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    if len(curves) > len(COLORS):
        return plot_curve_grid(curves, path, metrics, title=title)
    figure = Figure(figsize=(0.6 + 4.4 * len(metrics), 4.2), layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False, sharex=True)[0]
    for ax, name in zip(axes, metrics, strict=True):
        _accuracy_axes(ax, curves, name)
        ax.set_title(name.replace("_", " "), loc="left", fontsize=11, color=INK)
        ax.set_xlabel(_length_label(curves))
        for number, curve in enumerate(curves):
            _curve(ax, curve, name, number)
    labels = [_plain(label) for label in _labels(curves)]
    _curve_legend(figure, curves, labels)
    figure.suptitle(_plain(_task_title(curves) if title is None else title), fontsize=12, color=INK)
    return _finish(figure, path)


def plot_curve_grid(
    curves: Sequence[LengthCurve],
    path: Path = None,
    metric: Sequence[str] = METRICS,
    *,
    title: str | None = None,
    columns: int = 5,
) -> Figure:
    """A small panel for each of many curves, all metrics in it: medians, seeds and training lengths as `plot_curves`.

    A curve that lacks a metric is drawn without it.
    """
    if not curves:
        raise ValueError("no curves given; a picture needs at least one")
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    labels = _labels(curves)
    across = min(columns, len(curves))
    down = -(-len(curves) // across)
    figure = Figure(figsize=(0.7 + 2.3 * across, 1.3 + 1.85 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for place, ax in enumerate(axes.flat):
        if place >= len(curves):
            ax.set_axis_off()
            continue
        curve = curves[place]
        there = [name for name in metrics if name in curve.values]
        _accuracy_axes(ax, [curve], there[0] if there else metrics[0])
        for name in there:
            _curve(ax, curve, name, metrics.index(name), linewidth=1.5)
        ax.set_title(_plain(textwrap.fill(labels[place], 34)), loc="left", fontsize=7.5, color=INK)
        ax.tick_params(labelsize=7)
        if place + across >= len(curves):
            ax.set_xlabel(_length_label([curve]), fontsize=8)
    _curve_legend(figure, curves, [name.replace("_", " ") for name in metrics])
    figure.suptitle(_plain(_task_title(curves) if title is None else title), fontsize=12, color=INK)
    return _finish(figure, path)


def _task_title(curves: Sequence[LengthCurve]) -> str:
    """The task that all curves are of; with one curve also its label."""
    tasks = {curve.task for curve in curves}
    if len(tasks) > 1 or not curves[0].task:
        return ""
    return f"{curves[0].label} on {curves[0].task}" if len(curves) == 1 and curves[0].label else curves[0].task


def _labels(curves: Sequence[LengthCurve]) -> list[str]:
    """What the curves are called: their labels, and the task where they are of several."""
    several = len({curve.task for curve in curves}) > 1
    return [f"{curve.label or 'median'}{f', {curve.task}' if several and curve.task else ''}" for curve in curves]


def _length_label(curves: Sequence[LengthCurve]) -> str:
    units = {curve.unit for curve in curves}
    return f"length ({curves[0].unit})" if len(units) == 1 and curves[0].unit else "length"


def _curve_legend(figure: Figure, curves: Sequence[LengthCurve], labels: Sequence[str]) -> None:
    """Below the panels: a line for each label, the seeds' spread, the training lengths."""
    handles: list[Any] = [
        Line2D([], [], color=COLORS[i], linestyle=STYLES[i % len(STYLES)], linewidth=2, marker=MARKERS[i], markersize=5)
        for i in range(len(labels))
    ]
    texts = list(labels)
    seeds = sorted({curve.seeds for curve in curves if curve.seeds > 1})
    if seeds:
        handles.append(Patch(facecolor=INK, alpha=0.18))
        texts.append(f"lowest to highest of {seeds[0] if len(seeds) == 1 else f'{seeds[0]} to {seeds[-1]}'} seeds")
    ranges = _train_ranges(curves)
    handles.append(Patch(facecolor="#F3ECD2"))
    texts.append(f"training lengths {ranges[0][0]} to {ranges[0][1]}" if len(ranges) == 1 else "training lengths")
    figure.legend(handles, texts, loc="outside lower center", ncols=min(len(texts), 5), frameon=False, fontsize=9)


def plot_cross_table(cells: Mapping[tuple[str, str], LengthCurve | str], path: Path = None) -> Figure:
    """Models x tasks: a small picture of accuracy by length in every cell, or the line that says why there is none.

    `cells` maps (model, task) to a curve or to a line of text.
    """
    models, tasks = grid(cells)
    figure = Figure(figsize=(1.0 + 2.5 * len(tasks), 0.9 + 1.75 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), len(tasks), squeeze=False)
    for i, model in enumerate(models):
        for j, task in enumerate(tasks):
            ax, cell = axes[i, j], cells.get((model, task), "")
            if i == 0:
                ax.set_title(_plain(task), fontsize=10.5, color=INK)
            if isinstance(cell, LengthCurve):
                _accuracy_axes(ax, [cell], next(iter(cell.values)))
                for number, name in enumerate(METRICS):
                    if name in cell.values:
                        _curve(ax, cell, name, number, linewidth=1.6)
            else:
                ax.set(xticks=[], yticks=[], facecolor="#F7F7F7")
                ax.spines[:].set_color(FAINT)
                wrapped = textwrap.fill(_plain(cell), 28)
                ax.text(
                    0.5, 0.5, wrapped, transform=ax.transAxes, ha="center", va="center", fontsize=8, color="#666666"
                )
            if j == 0:
                ax.set_ylabel(_plain(model), fontsize=10.5, color=INK)
            else:
                ax.tick_params(labelleft=False)
            if i == len(models) - 1:
                ax.set_xlabel(_length_label([cell]) if isinstance(cell, LengthCurve) else "length", fontsize=9)
    drawn = [cell for cell in cells.values() if isinstance(cell, LengthCurve)]
    if drawn:
        _curve_legend(figure, drawn, [name.replace("_", " ") for name in METRICS])
    return _finish(figure, path)


def plot_sweep(
    names: Sequence[str], panels: Mapping[str, Sequence[np.ndarray]], path: Path = None, *, best: int | None = None
) -> Figure:
    """A row for each combination of a sweep and a panel for each score: every seed a dot, their median a bar.

    `panels` maps a title to float[S] for each name, NaN for seeds that died. Scores are shares, but for those whose
    title ends with `loss`. The row `best` is marked.
    """
    if not names or not panels:
        raise ValueError("no combinations or no scores given; a picture needs at least one of each")
    height = 1.1 + 0.24 * len(names)
    figure = Figure(figsize=(1.0 + 0.055 * max(map(len, names)) + 2.2 * len(panels), height), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    rows = np.arange(len(names))
    for ax, (title, scores) in zip(axes, panels.items(), strict=True):
        _style(ax)
        loss = title.endswith("loss")
        if best is not None:
            ax.axhspan(best - 0.45, best + 0.45, color="#F3ECD2", linewidth=0, zorder=0)
        for row, seeds in enumerate(scores):
            values = np.asarray(seeds, dtype=np.float64) * (1 if loss else 100)
            ax.plot(values, np.full(len(values), row), "o", color=COLORS[0], markersize=4, alpha=0.5)
            ax.plot([summarise(values).median], [row], "|", color=INK, markersize=11, markeredgewidth=2)
        ax.set_title(_plain(textwrap.fill(title.replace("_", " "), 24)), loc="left", fontsize=9, color=INK)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=rows)
        if not loss:
            ax.set(xlim=(-4, 104))
            ax.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes[0].set_yticklabels([_plain(name) for name in names], fontsize=8)
    return _finish(figure, path)


def plot_against_paper(
    names: Sequence[str],
    panels: Mapping[str, Sequence[tuple[np.ndarray, float | None, float | None]]],
    path: Path = None,
    *,
    untrained: Sequence[bool] = (),
    unit: str = "percent",
    title: str = "",
) -> Figure:
    """Rows of a table, ours beside the paper's: a panel for each metric, a line for each row.

    Args:
        names: of the rows.
        panels: metric -> for each row the values of our seeds float[S], the paper's number and that of our best
            network, each None where there is none.
        path: where to write the picture.
        untrained: rows that have not learnt their trained lengths, which are drawn faintly and say so.
        unit: of the values.
        title: a line over the picture.
    """
    if not names or not panels:
        raise ValueError("no rows or no metrics given; a picture needs at least one of each")
    untrained = list(untrained) or [False] * len(names)
    height = 1.5 + 0.22 * len(names)
    width = 1.0 + 0.068 * max(map(len, names)) + 2.6 * len(panels)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    rows = np.arange(len(names))
    found = [triple for values in panels.values() for triple in values]
    for ax, (metric, values) in zip(axes, panels.items(), strict=True):
        _style(ax)
        ax.grid(axis="x", visible=False)
        for row, (seeds, paper, best) in enumerate(values):
            summary, alpha = summarise(seeds), 0.35 if untrained[row] else 1.0
            ax.plot([summary.low, summary.high], [row, row], color=COLORS[0], linewidth=2.5, alpha=0.35 * alpha)
            ax.plot([summary.median], [row], "o", color=COLORS[0], markersize=5, alpha=alpha, zorder=3)
            if best is not None:
                ax.plot([best], [row], "^", color=COLORS[2], markersize=5, markerfacecolor="none", zorder=4)
            if paper is not None:
                ax.plot([paper], [row], "D", color=COLORS[1], markersize=6, markerfacecolor="none", zorder=2)
        ax.set_title(_plain(textwrap.fill(metric, 26)), loc="left", fontsize=9, color=INK)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=rows)
        ax.set_xlabel(unit, fontsize=8)
        if unit == "percent":
            ax.set(xlim=(-4, 104))
    shown = [f"{name} (not trained)" if faint else name for name, faint in zip(names, untrained, strict=True)]
    axes[0].set_yticklabels([_plain(name) for name in shown], fontsize=7.5)
    for label, faint in zip(axes[0].get_yticklabels(), untrained, strict=True):
        label.set_color("#888888" if faint else INK)
    handles = [Line2D([], [], color=COLORS[0], marker="o", markersize=5, linewidth=2.5)]
    texts = ["ours: median, lowest to highest seed"]
    if any(best is not None for _, _, best in found):
        handles.append(Line2D([], [], color=COLORS[2], marker="^", linestyle="", markerfacecolor="none"))
        texts.append("ours: best network, chosen on test")
    if any(paper is not None for _, paper, _ in found):
        handles.append(Line2D([], [], color=COLORS[1], marker="D", linestyle="", markerfacecolor="none"))
        texts.append("paper")
    columns = max(1, min(len(texts), int(width / 2.6)))
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    figure.suptitle(_plain(textwrap.fill(title, int(11 * width))), fontsize=10, color=INK)
    return _finish(figure, path)


def plot_training(history: Sequence[Mapping[str, Any]], path: Path = None, *, title: str = "") -> Figure:
    """Loss by optimiser step: every seed as a thin line, their median as a thick one.

    `history` holds one mapping per logged step with the keys `step`, `loss` (float[S] or one number) and, if timed,
    `seconds`; mappings without a loss are passed over.
    """
    entries = [entry for entry in history if "loss" in entry]
    if not entries:
        raise ValueError("the history holds no entry with a loss")
    steps = np.array([entry["step"] for entry in entries])
    losses = np.stack([np.atleast_1d(np.asarray(entry["loss"], dtype=np.float64)) for entry in entries])
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    ax = figure.subplots()
    _style(ax)
    several = losses.shape[1] > 1
    ax.plot(steps, losses, color=COLORS[0], linewidth=0.8, alpha=0.45)
    ax.plot(steps, summarise(losses.T).median, color=COLORS[0], linewidth=2)
    finite = losses[np.isfinite(losses)]
    if finite.size and finite.min() > 0:
        ax.set_yscale("log")
    ax.set(xlabel="optimiser step", ylabel="training loss (log scale)" if ax.get_yscale() == "log" else "training loss")
    notes = [f"median and each of {losses.shape[1]} seeds"] if several else []
    if "seconds" in entries[-1]:
        notes.append(f"{float(np.max(entries[-1]['seconds'])):.0f} s")
    ax.set_title(", ".join(notes), loc="right", fontsize=9, color="#666666")
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)


def _accuracy_axes(ax: Axes, curves: Sequence[LengthCurve], metric: str) -> None:
    """Percent from 0 to 100, the training lengths shaded."""
    for curve in curves:
        if metric not in curve.values:
            raise ValueError(f"unknown metric {metric!r}; {curve.label or 'the curve'} has {', '.join(curve.values)}")
    _style(ax)
    for first, last in _train_ranges(curves):
        ax.axvspan(first - 0.5, last + 0.5, color="#F3ECD2", linewidth=0, zorder=0)
    lengths = np.concatenate([curve.lengths for curve in curves])
    low, high = float(lengths.min()), float(lengths.max())
    if high > 6 * max(curve.train_lengths[1] for curve in curves):
        # Far beyond training: equal factors get equal room, else the training lengths would vanish at the edge.
        ax.set_xscale("log", base=2)
        ax.set_xlim(low / 1.1, high * 1.1)
        ax.xaxis.set_major_formatter("{x:.0f}")
    else:
        margin = max(0.5, 0.01 * (high - low))
        ax.set_xlim(low - margin, high + margin)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _curve(ax: Axes, curve: LengthCurve, metric: str, number: int, linewidth: float = 2) -> None:
    """The median as line `number`, with its colour, line style and marker, over the range of the seeds."""
    summary = summarise(curve.values[metric])
    # Every point of a sparse curve is marked: nothing was measured between them. Of a dense one every few, at other
    # lengths than those of its neighbours.
    sparse = len(curve.lengths) < 2 or np.diff(curve.lengths).max() > 1 or len(curve.lengths) < 12
    spacing = 1 if sparse else max(2, len(curve.lengths) // 8)
    ax.plot(
        curve.lengths,
        summary.median,
        color=COLORS[number],
        linestyle=STYLES[number % len(STYLES)],
        linewidth=linewidth,
        marker=MARKERS[number],
        markevery=(number % spacing, spacing),
        markersize=2.2 * linewidth,
        zorder=3,
        clip_on=False,
    )
    if curve.seeds > 1:
        ax.fill_between(
            curve.lengths, summary.low, summary.high, color=COLORS[number], alpha=0.18, linewidth=0, zorder=2
        )


def _train_ranges(curves: Sequence[LengthCurve]) -> list[tuple[int, int]]:
    return sorted({curve.train_lengths for curve in curves})


# ---------------------------------------------------------------------------------------------------- memory


def plot_key_space(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Callable[[int], str] = str,
    title: str = "",
) -> Figure:
    """Lie-access memory of one example in key space, as in Figures 2b, 3 and 4 of Yang and Rush (2017).

    Writes in red, connected in order of time, filled by strength (black: strong) and annotated with the token that was
    eaten; reads in blue. Keys in the plane are drawn as they are. Keys in space are drawn on the unit sphere, and
    beside it projected on their two principal axes; keys of more dimensions are projected only.

    Args:
        traces: what `traces.collect` returns.
        example: row of the batch.
        path: where to write the picture.
        names: token id -> annotation (`traces.token_names(vocabulary)` names the special ones).
        title: a line over the picture.
    """
    memory = memory_of(traces, example)
    _require_writes(memory)
    d = memory.keys.shape[1]
    keys, reads = (memory.keys, memory.reads) if d == 2 else _project(memory, 2)
    low, high = _window(np.concatenate([keys, reads]))
    if d == 3:
        figure = Figure(figsize=(9.6, 4.9), layout="constrained")
        _sphere(figure.add_subplot(1, 2, 1, projection="3d"), memory, names)
        ax = figure.add_subplot(1, 2, 2)
    else:
        height = 4.6 * (high[1] - low[1]) / (high[0] - low[0])
        figure = Figure(figsize=(5.8, float(np.clip(height + 1.1, 3.2, 6.6))), layout="constrained")
        ax = figure.add_subplot()
    dots = _plane(ax, keys, reads, memory.strengths)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    ax.set(xlabel="key 1" if d == 2 else "principal axis 1", ylabel="key 2" if d == 2 else "principal axis 2")
    bar = figure.colorbar(dots, ax=ax, shrink=0.5, aspect=18, pad=0.02, ticks=[0, 0.5, 1])
    bar.set_label("strength of the write", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
    handles = [
        Line2D([], [], color=WRITE, marker="o", markerfacecolor="black", markersize=5, linewidth=1),
        Line2D([], [], color=READ, marker=".", markersize=5, linewidth=1.2),
        Line2D([], [], color="none", marker="o", markeredgecolor=INK, markerfacecolor="none", markersize=10),
        Line2D([], [], color="none", marker="s", markeredgecolor=INK, markerfacecolor="none", markersize=9),
    ]
    figure.legend(
        handles,
        ["writes", "reads while answering", "start", "end"],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    _annotate(ax, keys, _names(memory, names), memory.strengths)
    return _finish(figure, path)


def plot_rows(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Callable[[int], str] = str,
    title: str = "",
) -> Figure:
    """Lie-access memory of one example row by row, as in Figure 2a of Yang and Rush (2017).

    The keys are projected on their principal axis. From top to bottom one row per input step, with a dot where it
    wrote, filled by strength (black: strong). The last, taller row is the path of the read head while answering: time
    runs downwards inside it. Long inputs have lower rows, and of more than about 80 not all are named. Arguments as of
    `plot_key_space`.
    """
    memory = memory_of(traces, example)
    _require_writes(memory)
    keys, reads = (points[:, 0] for points in _project(memory, 1))
    steps = len(keys)
    row = min(0.2, 8 / steps)  # inches
    tall = max(0.5 / row, 0.3 * max(steps, len(reads)))
    figure = Figure(figsize=(6.2, 1.5 + row * (steps + tall)), layout="constrained")
    ax = figure.subplots()
    _style(ax)
    ax.grid(visible=False)
    rows = np.arange(steps)
    ax.hlines(rows, 0, 1, transform=ax.get_yaxis_transform(), color=FAINT, linewidth=0.6, zorder=0)
    ax.plot(keys, rows, color=WRITE, linewidth=0.6, alpha=0.35, zorder=1)
    dots = ax.scatter(
        keys,
        rows,
        c=memory.strengths,
        cmap="Greys",
        vmin=0,
        vmax=1,
        s=34 * min(1, row / 0.15),
        edgecolors=WRITE,
        linewidths=0.9,
        zorder=3,
    )
    top, bottom = steps + 0.2, steps + tall
    ax.axhspan(steps - 0.4, bottom + 0.6, color="#EEF4F9", linewidth=0, zorder=0)
    if len(reads):
        time = np.linspace(top, bottom, len(reads)) if len(reads) > 1 else np.array([(top + bottom) / 2])
        ax.plot(reads, time, color=READ, linewidth=1.2, marker="o", markersize=2.8, zorder=3)
        ax.plot(reads[0], time[0], "o", markersize=9, markerfacecolor="none", markeredgecolor=READ, zorder=4)
        ax.plot(reads[-1], time[-1], "s", markersize=8, markerfacecolor="none", markeredgecolor=READ, zorder=4)
    labels = _names(memory, names) or [str(step) for step in range(steps)]
    named = rows[:: _every(row)]
    ax.set_yticks(np.append(named, (top + bottom) / 2), [*(_plain(labels[n]) for n in named), "reads while\nanswering"])
    ax.tick_params(axis="y", labelsize=max(SMALLEST, min(8, 60 * row)), length=0)
    ax.get_yticklabels()[-1].set(color=READ, fontsize=8)
    ax.set_ylim(bottom + 0.6, -0.8)
    ax.margins(x=0.06)
    ax.set(xlabel="principal axis of the keys", ylabel="token read, one row per step")
    bar = figure.colorbar(dots, ax=ax, fraction=0.03, shrink=min(1, 1.8 / (row * (steps + tall))), pad=0.02)
    bar.set_ticks([0, 0.5, 1])
    bar.set_label("strength of the write", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)


def plot_tape(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    layer: int = 0,
    tape: int = 0,
    rows: Sequence[str] | None = None,
    mark: int | None = None,
    title: str = "",
) -> Figure:
    """The heads of a NAM Turing machine on one tape, time running downwards.

    From left to right the write head, the read head and, if the machine can jump, its jump table: the cells to which
    the query of each step would have led. Cells are counted from where the heads began; red is negative.

    Args:
        traces: what `traces.collect` returns.
        example: row of the batch.
        path: where to write the picture.
        layer: layer of the machine.
        tape: tape of the layer.
        rows: names of the steps, for instance the tokens read.
        mark: the step with which answering begins; a line is drawn above it.
        title: a line over the picture.
    """
    heads = tape_of(traces, example, layer=layer, tape=tape)
    panels = [("write head", heads.write), ("read head", heads.read)]
    panels += [] if heads.jump is None else [("jump table", heads.jump)]
    steps, cells = heads.read.shape
    if rows is not None and len(rows) != steps:
        raise ValueError(f"rows must name {steps} steps, got {len(rows)} names")
    size = min(0.2, 9 / steps, 5 / cells)
    shape = (1.4 + len(panels) * max(size * cells, 1.8), 1.5 + max(size * steps, 1.8))
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    extent = (heads.cells[0] - 0.5, heads.cells[-1] + 0.5, steps - 0.5, -0.5)
    image = None
    for ax, (name, values) in zip(axes, panels, strict=True):
        image = ax.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", extent=extent, interpolation="nearest")
        ax.set_title(name, loc="left", fontsize=11, color=INK)
        ax.set_xlabel("cell")
        ax.axvline(0, color=INK, linewidth=0.5, alpha=0.4)
        ax.spines[:].set_color(FAINT)
        ax.tick_params(labelsize=8, color=FAINT)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        _mark(ax, mark)
    _name_ticks(axes[0].yaxis, rows, steps, "rows", size)
    axes[0].set_ylabel("step" + ("" if mark is None else BELOW))
    assert image is not None
    _bar(figure, image, axes[-1], "weight (red: negative)")
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)


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
    """Heat map of weights[T, slots] in [0, 1], time running downwards.

    `rows` and `columns` name the steps and slots (for instance the tokens); without, they are numbered. Above the step
    `mark` a line says that answering begins.
    """
    weights = _matrix(weights, "weights [T, slots]")
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
) -> Figure:
    """Heat maps [n, T, K] of one scale, one panel each: of several heads, layers or steps.

    The scale goes from 0 to the largest value, or for values of both signs from minus to plus the largest, red being
    negative. Other arguments as of `plot_attention`.

    Args:
        maps: what is drawn.
        path: where to write the picture.
        titles: of the panels.
        rows: names of the rows.
        columns: names of the columns.
        xlabel: what the columns are.
        ylabel: what the rows are.
        label: what the values are.
        title: a line over the picture.
        mark: the row with which answering begins; a line is drawn above it.
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
    norm, cmap = _scale(maps)
    image = None
    for number, ax in enumerate(axes.flat):
        if number >= count:
            ax.set_axis_off()
            continue
        image = ax.imshow(maps[number], cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        if titles is not None:
            ax.set_title(_plain(titles[number]), fontsize=8, color=INK, pad=3)
        ax.spines[:].set_color(FAINT)
        ax.tick_params(labelsize=8, color=FAINT)
        below = number + across >= count
        ax.tick_params(labelleft=number % across == 0, labelbottom=below)
        _name_ticks(ax.yaxis, rows, height, "rows", size[1] / height)
        _name_ticks(ax.xaxis, columns, width, "columns", size[0] / width)
        _mark(ax, mark)
    figure.supxlabel(xlabel, fontsize=9, color=INK)
    figure.supylabel(ylabel + ("" if mark is None else BELOW), fontsize=9, color=INK)
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    assert image is not None
    _bar(figure, image, list(axes.flat), label, shrink=min(1.0, 3 / shape[1]))
    return _finish(figure, path)


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
    """What a network did at each step, name by name: gates, actions, addresses. Each is float[T, k], a row per entry.

    Time runs to the right, the same for all. `rows` names the entries of strips; without, they are numbered. Other
    arguments as of `plot_maps`; each strip has a scale of its own.
    """
    arrays = {name: _matrix(values, f"{name} [T, k]").T for name, values in strips.items()}
    if not arrays or len({values.shape[1] for values in arrays.values()}) > 1:
        raise ValueError("strips must be given, all of as many steps")
    steps = next(iter(arrays.values())).shape[1]
    cell = min(0.24, 11 / steps)
    heights = [0.16 * len(values) + 0.12 for values in arrays.values()]
    shape = 3.2 + max(cell * steps, 3.0), 1.4 + sum(heights) + 0.14 * len(heights)
    figure = Figure(figsize=shape, layout="constrained")
    axes = figure.subplots(len(arrays), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for ax, (name, values) in zip(axes, arrays.items(), strict=True):
        norm, cmap = _scale(values)
        image = ax.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        ax.spines[:].set_color(FAINT)
        ax.tick_params(labelsize=7, length=0)
        labels = (rows or {}).get(name, [str(number + 1) for number in range(len(values))])
        ax.set_yticks(range(len(values)), labels) if len(values) > 1 else ax.set_yticks([])
        ax.set_ylabel(_plain(name.replace("_", " ")), fontsize=8, rotation=0, ha="right", va="center")
        _mark(ax, mark, across=False)
        bar = figure.colorbar(image, ax=ax, fraction=0.03, pad=0.01, aspect=max(3, 8 * values.shape[0]))
        bar.ax.tick_params(labelsize=6)
        ends = [float(norm.vmin or 0), float(norm.vmax or 0)]
        bar.set_ticks(ends, labels=[f"{end:.3g}" for end in ends])
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    _name_ticks(axes[-1].xaxis, columns, steps, "columns", cell)
    axes[-1].set_xlabel(xlabel + ("" if mark is None else "; right of the line: answers"))
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)


def _scale(values: np.ndarray) -> tuple[Normalize, str]:
    """Colours from 0 to the largest value, rounded up so that pictures can be compared; signed values have two."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    most = max(abs(low), abs(high), 1e-9)
    end = next((step for step in (0.1, 0.2, 0.5, 1.0) if most <= step * 1.001), most)
    return (Normalize(-end, end), "RdBu") if low < -1e-6 * end else (Normalize(0, end), "Blues")


def _mark(ax: Axes, mark: int | None, *, across: bool = True) -> None:
    """A line before the row (or column) with which answering begins."""
    if mark is not None:
        line = ax.axhline if across else ax.axvline
        line(mark - 0.5, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=5)


def _every(size: float) -> int:
    """Of names in rows of `size` inches, every how many can be written in the smallest text."""
    return max(1, math.ceil(1.15 * SMALLEST / 72 / size))


def _name_ticks(axis: Any, names: Sequence[str] | None, count: int, what: str, size: float) -> None:
    """Names of rows or columns of `size` inches, as many as can be read; without names, numbers."""
    if names is None:
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
        return
    if len(names) != count:
        raise ValueError(f"{what} must name {count}, got {len(names)} names")
    names = [_plain(str(name)) for name in names]
    # Short names lie; long ones stand upright below.
    upright = axis.axis_name == "x" and max(map(len, names), default=0) > 2
    shown = range(0, count, _every(size))
    axis.set_ticks(list(shown), [names[n] for n in shown])
    axis.set_tick_params(labelsize=max(SMALLEST, min(8, 55 * size)), length=0, labelrotation=90 if upright else 0)


def _bar(figure: Figure, image: Any, ax: Any, label: str, shrink: float = 1.0) -> None:
    bar = figure.colorbar(image, ax=ax, aspect=24, fraction=0.04, pad=0.02, shrink=shrink)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def plot_gates(
    gates: np.ndarray, path: Path = None, *, names: Sequence[str] | None = None, title: str = "", xlabel: str = "step"
) -> Figure:
    """Gates by step, float[T, n]: lines for up to six gates, else a heat map with a row per gate."""
    gates = _matrix(gates, "gates [T, n]")
    steps, count = gates.shape
    if names is not None and len(names) != count:
        raise ValueError(f"names must name {count} gates, got {len(names)} names")
    few = count <= 6
    figure = Figure(figsize=(6.6, 2.6 if few else 1.2 + min(0.2 * count, 6)), layout="constrained")
    ax = figure.subplots()
    if few:
        _style(ax)
        labels = names or [f"gate {i}" for i in range(count)]
        lines = [
            ax.plot(gates[:, i], color=COLORS[i], linestyle=STYLES[i % len(STYLES)], linewidth=1.6, clip_on=False)[0]
            for i in range(count)
        ]
        figure.legend(lines, list(map(_plain, labels)), loc="outside right center", frameon=False, fontsize=9)
        ax.set(
            xlim=(-0.5, steps - 0.5), ylim=(min(-0.02, np.nanmin(gates)), max(1.02, np.nanmax(gates))), ylabel="gate"
        )
    else:
        _heat_map(figure, ax, gates.T, "value", vmax=max(1.0, float(np.nanmax(gates, initial=0))))
        if names is not None:
            ax.set_yticks(range(count), list(map(_plain, names)), fontsize=8)
        else:
            ax.set_ylabel("gate")
            ax.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    ax.set_xlabel(xlabel)
    ax.set_title(_plain(title), fontsize=11, loc="left", color=INK)
    return _finish(figure, path)


# ---------------------------------------------------------------------------------------------------- data flow


def plot_ndr_attention(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    head: int | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Attention of a Neural Data Router in every step, as in Figures 2, 7, 8, 10, 12 and 13 of Csordás et al. (2022).

    One map for each step, sources from left to right and targets from top to bottom. How an encoder with one layer for
    all steps goes through its input can be read from them.

    Args:
        traces: what `traces.collect` returns.
        example: row of the batch.
        path: where to write the picture.
        head: which head, counted from 0; None: the largest weight of all heads, as the colour bar says.
        names: names of the columns (`traces.column_names`); without, they are numbered.
        title: a line over the picture.
    """
    weights = data_flow_of(traces, example).attention
    heads = weights.shape[1]
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"head must lie between 0 and {heads - 1}, got {head}")
    maps = weights.max(axis=1) if head is None else weights[:, head]
    label = (
        "weight"
        if heads == 1
        else f"weight of head {head + 1}"
        if head is not None
        else f"largest weight of {heads} heads"
    )
    return _data_flow(maps, path, [f"step {t}" for t in range(1, len(maps) + 1)], names, title, label)


def plot_ndr_heads(
    traces: Mapping[str, np.ndarray],
    example: int,
    step: int,
    path: Path = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Attention of every head of a Neural Data Router in one step, as in Figure 3 of Csordás et al. (2022).

    `step` counts from 1. Other arguments as of `plot_ndr_attention`.
    """
    weights = data_flow_of(traces, example).attention
    if not 1 <= step <= len(weights):
        raise ValueError(f"step must lie between 1 and {len(weights)}, got {step}")
    maps = weights[step - 1]
    return _data_flow(maps, path, [f"head {i}" for i in range(1, len(maps) + 1)], names, title, "weight")


def plot_ndr_gates(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Copy gates of a Neural Data Router, as in Figures 2, 9, 11 and 14 of Csordás et al. (2022): columns by steps.

    The mean over the units of a column: 0, it was copied; 1, it was rewritten. Without gates, the weights by which
    adaptive computation time reads the steps. Arguments as of `plot_ndr_attention`.
    """
    flow = data_flow_of(traces, example)
    values, label = (flow.gates, "gate") if flow.gates is not None else (flow.halting, "weight of the step")
    if values is None:
        raise ValueError("a picture of gates needs the trace 'gate' or 'halting'; these layers have neither")
    label = {"gate": "gate: 0 copied, 1 rewritten"}.get(label, label)
    steps, columns = values.shape
    cell = min(0.24, 11 / columns)
    figure = Figure(figsize=(1.9 + max(cell * columns, 2.2), 1.1 + max(cell * steps, 1.2)), layout="constrained")
    ax = figure.subplots()
    _heat_map(figure, ax, values, label, vmax=1.0)
    ax.set(xlabel="column", ylabel="step")
    ax.set_yticks(range(steps), [str(t) for t in range(1, steps + 1)])
    if names is not None and len(names) != columns:
        raise ValueError(f"names must name {columns} columns, got {len(names)} names")
    _name_ticks(ax.xaxis, names, columns, "names", max(cell, 2.2 / columns))
    ax.set_title(_plain(title), fontsize=11, loc="left", color=INK)
    return _finish(figure, path)


def _data_flow(
    maps: np.ndarray, path: Path, titles: Sequence[str], names: Sequence[str] | None, title: str, label: str
) -> Figure:
    """Maps [n, N, N] side by side, from sources to targets, which have the same names."""
    if names is not None and len(names) != maps.shape[-1]:
        raise ValueError(f"names must name {maps.shape[-1]} columns, got {len(names)} names")
    axes = {"rows": names, "columns": names, "xlabel": "source", "ylabel": "target"}
    return plot_maps(maps, path, titles=titles, title=title, label=label, **axes)  # pyright: ignore[reportArgumentType]


def _sphere(ax: Any, memory: Memory, names: Callable[[int], str]) -> None:
    """Writes and reads on the unit sphere, seen from the side on which they lie."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 73), np.linspace(0, np.pi, 37))
    grid_lines = {"color": "#C4C4C4", "linewidth": 0.35, "rstride": 3, "cstride": 4}
    ax.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), **grid_lines)
    points = np.concatenate([memory.keys, memory.reads])
    _, axes = np.linalg.eigh(points.T @ points - np.outer(points.mean(0), points.mean(0)) * len(points))
    centre = points.mean(0)
    # A small patch is seen from its middle; points all around a circle, from the axis of that circle.
    x, y, z = centre / np.linalg.norm(centre) if np.linalg.norm(centre) > 0.3 else axes[:, 0]
    ax.view_init(elev=float(np.clip(np.degrees(np.arcsin(z)) + 20, -60, 60)), azim=np.degrees(np.arctan2(y, x)) + 15)
    ax.plot(*_arc(memory.keys).T, color=WRITE, linewidth=1, alpha=0.7)
    ax.scatter(
        *memory.keys.T,
        c=memory.strengths,
        cmap="Greys",
        vmin=0,
        vmax=1,
        s=24,
        edgecolors=WRITE,
        linewidths=0.9,
        depthshade=False,
    )
    if len(memory.reads):
        ax.plot(*_arc(memory.reads).T, color=READ, linewidth=1.2, alpha=0.85)
        ax.scatter(*memory.reads.T, color=READ, s=7, depthshade=False)
    for points, color in ((memory.keys, WRITE), (memory.reads, READ)):
        if len(points):
            ax.plot(*points[:1].T, "o", markersize=10, markerfacecolor="none", markeredgecolor=color)
            ax.plot(*points[-1:].T, "s", markersize=9, markerfacecolor="none", markeredgecolor=color)
    ax.set_box_aspect((1, 1, 1), zoom=1.45)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    ax.set_axis_off()


def _arc(points: np.ndarray, pieces: int = 12) -> np.ndarray:
    """The path over the points, along great circles where they lie on the unit sphere."""
    if len(points) < 2 or not np.allclose(np.linalg.norm(points, axis=1), 1, atol=1e-2):
        return points
    t = np.linspace(0, 1, pieces, endpoint=False)[:, None]
    chords = [(1 - t) * a + t * b for a, b in itertools.pairwise(points)]
    path = np.concatenate([*chords, points[-1:]])
    return _unit(path)


def _plane(ax: Axes, keys: np.ndarray, reads: np.ndarray, strengths: np.ndarray) -> PathCollection:
    """Writes and reads in the plane; returns the dots of the writes."""
    _style(ax)
    ax.grid(visible=False)
    ax.plot(*keys.T, color=WRITE, linewidth=1, alpha=0.7, zorder=2)
    dots = ax.scatter(
        *keys.T, c=strengths, cmap="Greys", vmin=0, vmax=1, s=36, edgecolors=WRITE, linewidths=1, zorder=3
    )
    if len(reads):
        ax.plot(*reads.T, color=READ, linewidth=1.2, alpha=0.85, marker="o", markersize=2.8, zorder=4)
    for points, color in ((keys, WRITE), (reads, READ)):
        if len(points):
            ax.plot(*points[0], "o", markersize=12, markerfacecolor="none", markeredgecolor=color, zorder=5)
            ax.plot(*points[-1], "s", markersize=11, markerfacecolor="none", markeredgecolor=color, zorder=5)
    return dots


def _window(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of what to show of the plane: never a sliver, also where all keys lie on a line."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = max(float((high - low).max()), 1e-3)
    half = np.maximum(high - low, 0.4 * span) / 2 + 0.09 * span
    return (low + high) / 2 - half, (low + high) / 2 + half


def _annotate(ax: Axes, points: np.ndarray, labels: Sequence[str] | None, strengths: np.ndarray) -> None:
    """Write labels beside points, off the path; of labels that would overlap, only the first.

    Writes of hardly any strength store nothing and are not annotated.
    """
    if labels is None:
        return
    figure: Any = ax.figure
    figure.draw_without_rendering()  # settles the layout, so that distances can be taken in points
    places = ax.transData.transform(points) * 72 / figure.dpi
    directions = _away(places)
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


def _away(places: np.ndarray) -> np.ndarray:
    """float[n, 2] unit vectors away from the path at each of its points: out of a sharp bend, else to its left."""
    steps = _unit(np.diff(places, axis=0))
    ahead = np.concatenate([steps, np.zeros((1, 2))])
    behind = np.concatenate([np.zeros((1, 2)), -steps])
    bends, tangents = (ahead + behind) / 2, ahead - behind
    left = np.stack([-tangents[:, 1], tangents[:, 0]], axis=1)
    sharp = np.linalg.norm(bends, axis=1, keepdims=True) > 0.25
    directions = np.where(sharp, -bends, left)
    for end in (0, -1):  # straight ahead the path of the reads may go on, so aim between ahead and left
        directions[end] = left[end] - 2 * bends[end]
    directions = _unit(directions)
    return np.where(directions.any(axis=1, keepdims=True), directions, [0.0, 1.0])


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; vectors of no length stay."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norm > 1e-6, norm, 1)


def _project(memory: Memory, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and reads on the k principal axes of both together."""
    projected = pca(np.concatenate([memory.keys, memory.reads]), k)
    return projected[: len(memory.keys)], projected[len(memory.keys) :]


def _names(memory: Memory, names: Callable[[int], str]) -> list[str] | None:
    return None if memory.tokens is None else [names(int(token)) for token in memory.tokens]


def _require_writes(memory: Memory) -> None:
    if not len(memory.keys):
        raise ValueError("this example writes nothing: it has no valid step before the answer")


# ---------------------------------------------------------------------------------------------------- shared


def _heat_map(figure: Figure, ax: Axes, values: np.ndarray, label: str, vmax: float) -> None:
    image = ax.imshow(values, cmap="Blues", vmin=min(0.0, float(np.nanmin(values))), vmax=vmax, aspect="auto")
    image.set_interpolation("nearest")
    ax.spines[:].set_color(FAINT)
    ax.tick_params(labelsize=8, color=FAINT)
    bar = figure.colorbar(image, ax=ax, aspect=24, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _style(ax: Axes) -> None:
    """A quiet frame: two spines, a faint grid behind the data."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#999999")
    ax.tick_params(color="#999999", labelcolor=INK, labelsize=9)
    ax.grid(color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)


def _matrix(values: np.ndarray, what: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{what} must be a matrix with at least one entry, got shape {values.shape}")
    return values


def _plain(text: str) -> str:
    """Text with dollar signs escaped, which would start a formula."""
    return text.replace("$", r"\$")


def _finish(figure: Figure, path: Path) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=RESOLUTION)
    return figure


# ---------------------------------------------------------------------------------------------------- states


def plot_states(
    maps: Mapping[str, States],
    path: Path = None,
    *,
    symbols: np.ndarray | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
) -> Figure:
    """Maps of a controller's states, as in Figures 5, 6 and 12 to 21 of Ofner and Kern: one row of panels per phase.

    A dot is a state, a faint line the path of an example. At the left dots are coloured by time (dark: early), at the
    right by symbol.

    Args:
        maps: phase -> states in the plane (`states.pca_map`, `states.tsne_map`).
        path: where to write the picture.
        symbols: int[B, T], the symbol of each step (`states.symbols_of`; -1: none); None: no right panels.
        names: phase -> names of its symbols; without, they are numbered.
        title: a line over the picture.
    """
    if not maps:
        raise ValueError("no maps given; a picture needs at least one phase")
    across = 1 if symbols is None else 2
    figure = Figure(figsize=(0.4 + 4.4 * across, 0.5 + 3.7 * len(maps)), layout="constrained")
    axes = figure.subplots(len(maps), across, squeeze=False)
    for row, (phase, states) in zip(axes, maps.items(), strict=True):
        if states.points.ndim != 2 or states.points.shape[1] != 2:
            raise ValueError(f"states of the phase {phase} must lie in the plane, got shape {states.points.shape}")
        dots = _paths(row[0], states, states.time, "viridis")
        row[0].set_title(f"{phase}, by time", loc="left", fontsize=11, color=INK)
        bar = figure.colorbar(dots, ax=row[0], aspect=24, pad=0.02, ticks=MaxNLocator(nbins=6, integer=True))
        bar.set_label("step", fontsize=9)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        if symbols is None:
            continue
        shown = symbols[states.example, states.time]
        known = np.unique(shown[shown >= 0])
        colors = np.array([COLORS[np.searchsorted(known, n) % len(COLORS)] if n >= 0 else FAINT for n in shown])
        _paths(row[1], states, colors, None)
        row[1].set_title(f"{phase}, by symbol", loc="left", fontsize=11, color=INK)
        if len(known) <= len(COLORS):
            labels = [_plain(names[phase][int(n)]) if names and phase in names else str(n) for n in known]
            handles = [Line2D([], [], color=color, marker="o", markersize=4, linestyle="") for color in COLORS]
            # Beside the panel, where no state can hide behind it.
            row[1].legend(
                handles[: len(known)], labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8
            )
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)


def _paths(ax: Axes, states: States, colors: np.ndarray, cmap: str | None) -> PathCollection:
    """Dots of states, and lines along examples; returns the dots. The axes of a map mean nothing and have no ticks."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color(FAINT)
    for example in np.unique(states.example):
        ax.plot(*states.points[states.example == example].T, color=INK, linewidth=0.3, alpha=0.15, zorder=1)
    return ax.scatter(*states.points.T, c=colors, cmap=cmap, s=7, linewidths=0, zorder=2)


def plot_modes(traces: Mapping[str, np.ndarray], path: Path = None, *, bins: int = 20, title: str = "") -> Figure:
    """How memory was written and read, as in Figures 8 to 11 of Ofner and Kern: histograms for each phase.

    The share of steps by allocation gate (0: writes by content, 1: to allocated slots), and by the content component of
    the read modes of all heads (0: reads in order of writing, 1: by content).
    """
    modes = mode_histograms(traces, bins=bins)
    figure = Figure(figsize=(7.4, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    rows = (
        ("write mode", modes.write, ("by content", "allocation"), WRITE),
        ("read mode", modes.read, ("sequential", "by content"), READ),
    )
    for row, (name, shares, ends, color) in zip(axes, rows, strict=True):
        for ax, phase in zip(row, PHASES, strict=True):
            _style(ax)
            ax.stairs(shares[phase], modes.edges, fill=True, color=color, alpha=0.75)
            ax.set_title(f"{name}, {phase}", loc="left", fontsize=11, color=INK)
            ax.set_xticks([0, 1], [f"0\n{ends[0]}", f"1\n{ends[1]}"])
            ax.set_xlim(-0.02, 1.02)
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[0, 0].set_ylim(0, 1.02)
    figure.supylabel("share of steps", fontsize=9, color=INK)
    figure.suptitle(_plain(title), fontsize=11, color=INK)
    return _finish(figure, path)
