"""Accuracy by length, and training loss. A panel has at most eight lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.metrics import is_share
from lenmem.evaluation.plots.look import COLORS, FAINT, INK, MARKERS, STYLES, Path, finish, plain, style
from lenmem.evaluation.statistics import summarise
from lenmem.evaluation.tables import check_metrics, grid, shown_metrics


def plot_curves(
    curves: Sequence[LengthCurve],
    path: Path = None,
    metric: str | Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Accuracy by length, one panel per metric: the median over seeds, a band from the lowest to the highest seed, and
    the training lengths shaded.

    The metrics are those of `shown_metrics`, if none are given.

    With more than eight curves, each gets its own panel (`plot_curve_grid`). The default title is the task's name.
    """
    if not curves:
        raise ValueError("no curves given; a picture needs at least one")
    metrics = _metrics(curves, metric)
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
    _curve_legend(figure, curves, _labels(curves))
    figure.suptitle(plain(_task_title(curves) if title is None else title), fontsize=12, color=INK)
    return finish(figure, path)


def plot_curve_grid(
    curves: Sequence[LengthCurve],
    path: Path = None,
    metric: str | Sequence[str] | None = None,
    *,
    title: str | None = None,
    columns: int = 5,
) -> Figure:
    """A small panel for each of many curves, with all metrics: medians, seeds and training lengths as in `plot_curves`.

    A curve that lacks a metric is drawn without it.
    """
    if not curves:
        raise ValueError("no curves given; a picture needs at least one")
    metrics = _metrics(curves, metric)
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
        ax.set_title(plain(textwrap.fill(labels[place], 34)), loc="left", fontsize=7.5, color=INK)
        ax.tick_params(labelsize=7)
        if place + across >= len(curves):
            ax.set_xlabel(_length_label([curve]), fontsize=8)
    _curve_legend(figure, curves, [name.replace("_", " ") for name in metrics])
    figure.suptitle(plain(_task_title(curves) if title is None else title), fontsize=12, color=INK)
    return finish(figure, path)


def plot_curve_panels(
    curves: Sequence[LengthCurve], path: Path = None, metric: str | Mapping[str, str] = "token_accuracy"
) -> Figure:
    """A panel for each task with the curves of that task: medians, seeds and training lengths as in `plot_curves`.

    `metric` is that of all panels, or maps the name of each task to its own.
    """
    if not curves:
        raise ValueError("no curves given; a picture needs at least one")
    tasks = list(dict.fromkeys(curve.task for curve in curves))
    labels = list(dict.fromkeys(curve.label for curve in curves))
    if len(labels) > len(COLORS):
        raise ValueError(f"{len(labels)} different curves; a picture can have {len(COLORS)}")
    across = min(4, len(tasks))
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(max(6, 0.7 + 3.2 * across), 1.3 + 2.4 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for place, ax in enumerate(axes.flat):
        if place >= len(tasks):
            ax.set_axis_off()
            continue
        own = [curve for curve in curves if curve.task == tasks[place]]
        shown = metric if isinstance(metric, str) else metric[tasks[place]]
        _accuracy_axes(ax, own, shown)
        for curve in own:
            _curve(ax, curve, shown, labels.index(curve.label), linewidth=1.5)
        ax.set_title(plain(tasks[place]), loc="left", fontsize=10, color=INK)
        ax.set_xlabel(_length_label(own), fontsize=9)
        if place == 0 or not isinstance(metric, str):
            ax.set_ylabel(shown.replace("_", " "), fontsize=9)
    _curve_legend(figure, curves, labels, columns=max(2, across))
    return finish(figure, path)


def _metrics(curves: Sequence[LengthCurve], metric: str | Sequence[str] | None) -> tuple[str, ...]:
    if metric is None:
        return shown_metrics(curves)
    return (metric,) if isinstance(metric, str) else tuple(metric)


def _task_title(curves: Sequence[LengthCurve]) -> str:
    """The task that all curves share; with one curve also its label."""
    tasks = {curve.task for curve in curves}
    if len(tasks) > 1 or not curves[0].task:
        return ""
    return f"{curves[0].label} on {curves[0].task}" if len(curves) == 1 and curves[0].label else curves[0].task


def _labels(curves: Sequence[LengthCurve]) -> list[str]:
    """Names of the curves: their labels, with the task if there are several tasks."""
    several = len({curve.task for curve in curves}) > 1
    return [f"{curve.label or 'median'}{f', {curve.task}' if several and curve.task else ''}" for curve in curves]


def _length_label(curves: Sequence[LengthCurve]) -> str:
    units = {curve.unit for curve in curves}
    return f"length ({curves[0].unit})" if len(units) == 1 and curves[0].unit else "length"


def _curve_legend(figure: Figure, curves: Sequence[LengthCurve], labels: Sequence[str], columns: int = 5) -> None:
    """The legend below the panels: a line for each label, the range of the seeds, the training lengths."""
    handles: list[Any] = [
        Line2D([], [], color=COLORS[i], linestyle=STYLES[i % len(STYLES)], linewidth=2, marker=MARKERS[i], markersize=5)
        for i in range(len(labels))
    ]
    texts = [plain(label) for label in labels]
    seeds = sorted({curve.seeds for curve in curves if curve.seeds > 1})
    if seeds:
        handles.append(Patch(facecolor=INK, alpha=0.18))
        texts.append(f"lowest to highest of {seeds[0] if len(seeds) == 1 else f'{seeds[0]} to {seeds[-1]}'} seeds")
    ranges = _train_ranges(curves)
    handles.append(Patch(facecolor="#F3ECD2"))
    texts.append(f"training lengths {ranges[0][0]} to {ranges[0][1]}" if len(ranges) == 1 else "training lengths")
    figure.legend(handles, texts, loc="outside lower center", ncols=min(len(texts), columns), frameon=False, fontsize=9)


def plot_cross_table(cells: Mapping[tuple[str, str], LengthCurve | str], path: Path = None) -> Figure:
    """Models x tasks: each cell is a small picture of accuracy by length, or the line that says why there is none.

    `cells` maps (model, task) to a curve or to a line of text.
    """
    models, tasks = grid(cells)
    drawn = [cell for cell in cells.values() if isinstance(cell, LengthCurve)]
    metrics = list(dict.fromkeys(name for cell in drawn for name in shown_metrics([cell])))
    figure = Figure(figsize=(1.0 + 2.5 * len(tasks), 0.9 + 1.75 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), len(tasks), squeeze=False)
    for i, model in enumerate(models):
        for j, task in enumerate(tasks):
            ax, cell = axes[i, j], cells.get((model, task), "")
            if i == 0:
                ax.set_title(plain(task), fontsize=10.5, color=INK)
            if isinstance(cell, LengthCurve):
                _accuracy_axes(ax, [cell], next(iter(cell.values)))
                for name in shown_metrics([cell]):
                    _curve(ax, cell, name, metrics.index(name), linewidth=1.6)
            else:
                ax.set(xticks=[], yticks=[], facecolor="#F7F7F7")
                ax.spines[:].set_color(FAINT)
                wrapped = textwrap.fill(plain(cell), 28)
                ax.text(
                    0.5, 0.5, wrapped, transform=ax.transAxes, ha="center", va="center", fontsize=8, color="#666666"
                )
            if j == 0:
                ax.set_ylabel(plain(model), fontsize=10.5, color=INK)
            else:
                ax.tick_params(labelleft=False)
            if i == len(models) - 1:
                ax.set_xlabel(_length_label([cell]) if isinstance(cell, LengthCurve) else "length", fontsize=9)
    if drawn:
        _curve_legend(figure, drawn, [name.replace("_", " ") for name in metrics])
    return finish(figure, path)


def plot_training(history: Sequence[Mapping[str, Any]], path: Path = None, *, title: str = "") -> Figure:
    """Loss by optimiser step, each seed as a thin line, their median as a thick one; and perplexity, if measured.

    `history` holds one mapping per logged step with the keys `step`, `loss` (float[S] or one number) and, if timed,
    `seconds`; mappings without a loss are skipped. A second panel has `<split>/perplexity`, if some have it.
    """
    entries = [entry for entry in history if "loss" in entry]
    if not entries:
        raise ValueError("the history holds no entry with a loss")
    validated = sorted({key for entry in entries for key in entry if key.endswith("/perplexity")})
    figure = Figure(figsize=(5.6 + 4.4 * len(validated), 3.6), layout="constrained")
    axes = figure.subplots(1, 1 + len(validated), squeeze=False)[0]
    seeds = _seeds_by_step(axes[0], entries, "loss", "training loss")
    for ax, key in zip(axes[1:], validated, strict=True):
        split, _, metric = key.rpartition("/")
        _seeds_by_step(ax, entries, key, f"{metric} on the split {split}")
    notes = [f"median and each of {seeds} seeds"] if seeds > 1 else []
    if "seconds" in entries[-1]:
        notes.append(f"{float(np.max(entries[-1]['seconds'])):.0f} s")
    axes[0].set_title(", ".join(notes), loc="right", fontsize=9, color="#666666")
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)


def _seeds_by_step(ax: Axes, history: Sequence[Mapping[str, Any]], key: str, label: str) -> int:
    """Draws a value of every seed and their median, with a log scale if all values are above 0. Returns S."""
    entries = [entry for entry in history if key in entry]
    steps = np.array([entry["step"] for entry in entries])
    values = np.stack([np.atleast_1d(np.asarray(entry[key], dtype=np.float64)) for entry in entries])
    style(ax)
    ax.plot(steps, values, color=COLORS[0], linewidth=0.8, alpha=0.45)
    ax.plot(steps, summarise(values.T).median, color=COLORS[0], linewidth=2)
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0:
        ax.set_yscale("log")
    ax.set(xlabel="optimiser step", ylabel=f"{label} (log scale)" if ax.get_yscale() == "log" else label)
    return values.shape[1]


def _accuracy_axes(ax: Axes, curves: Sequence[LengthCurve], metric: str) -> None:
    """Percent from 0 to 100 for a share, with the training lengths shaded."""
    check_metrics(curves, [metric])
    style(ax)
    for first, last in _train_ranges(curves):
        ax.axvspan(first - 0.5, last + 0.5, color="#F3ECD2", linewidth=0, zorder=0)
    lengths = np.concatenate([curve.lengths for curve in curves])
    low, high = float(lengths.min()), float(lengths.max())
    if high > 6 * max(curve.train_lengths[1] for curve in curves):
        # Far beyond training, use a log scale; otherwise the training lengths would vanish at the edge.
        ax.set_xscale("log", base=2)
        ax.set_xlim(low / 1.1, high * 1.1)
        ax.xaxis.set_major_formatter("{x:.0f}")
    else:
        margin = max(0.5, 0.01 * (high - low))
        ax.set_xlim(low - margin, high + margin)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    if is_share(metric):
        ax.set_ylim(-0.03, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _curve(ax: Axes, curve: LengthCurve, metric: str, number: int, linewidth: float = 2) -> None:
    """The median as line `number`, with its colour, line style and marker, over the range of the seeds."""
    summary = summarise(curve.values[metric])
    # In a sparse curve every point is marked, since nothing was measured in between. In a dense curve a few points are
    # marked, at different lengths than in neighbouring curves.
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
