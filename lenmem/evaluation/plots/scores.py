"""Scores of many networks: the combinations of a sweep, and the rows of a table beside the paper's numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from lenmem.evaluation.metrics import is_share
from lenmem.evaluation.plots.look import COLORS, INK, Path, color_bar, finish, matrix, plain, style
from lenmem.evaluation.statistics import summarise


def plot_sweep(
    names: Sequence[str], panels: Mapping[str, Sequence[np.ndarray]], path: Path = None, *, best: int | None = None
) -> Figure:
    """A row for each combination of a sweep and a panel for each score: every seed is a dot, their median a bar.

    `panels` maps a title to float[S] for each name, NaN for seeds that diverged. Scores are fractions, except losses
    and perplexities (`is_share`). The row `best` is marked.
    """
    if not names or not panels:
        raise ValueError("no combinations or no scores given; a picture needs at least one of each")
    down = -(-len(panels) // 4)  # at most four beside each other
    across = -(-len(panels) // down)
    size = 1.0 + 0.055 * max(map(len, names)) + 2.2 * across, down * (1.1 + 0.24 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    rows = np.arange(len(names))
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (title, scores) in zip(axes.flat, panels.items(), strict=False):
        style(ax)
        share = is_share(title)
        if best is not None:
            ax.axhspan(best - 0.45, best + 0.45, color="#F3ECD2", linewidth=0, zorder=0)
        for row, seeds in enumerate(scores):
            values = np.asarray(seeds, dtype=np.float64) * (100 if share else 1)
            ax.plot(values, np.full(len(values), row), "o", color=COLORS[0], markersize=4, alpha=0.5)
            ax.plot([summarise(values).median], [row], "|", color=INK, markersize=11, markeredgewidth=2)
        ax.set_title(plain(textwrap.fill(title.replace("_", " "), 24)), loc="left", fontsize=9, color=INK)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=rows)
        if share:
            ax.set(xlim=(-4, 104))
            ax.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    for ax in axes[:, 0]:
        ax.set_yticklabels([plain(name) for name in names], fontsize=8)
    return finish(figure, path)


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
        names: names of the rows.
        panels: metric -> for each row the values of our seeds float[S], the paper's number and that of our best
            network; each is None if there is none.
        path: where to write the picture.
        untrained: rows whose networks did not learn their training lengths; they are drawn faintly and labelled.
        unit: unit of the values.
        title: a line above the picture.
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
        style(ax)
        ax.grid(axis="x", visible=False)
        for row, (seeds, paper, best) in enumerate(values):
            summary, alpha = summarise(seeds), 0.35 if untrained[row] else 1.0
            ax.plot([summary.low, summary.high], [row, row], color=COLORS[0], linewidth=2.5, alpha=0.35 * alpha)
            ax.plot([summary.median], [row], "o", color=COLORS[0], markersize=5, alpha=alpha, zorder=3)
            if best is not None:
                ax.plot([best], [row], "^", color=COLORS[2], markersize=5, markerfacecolor="none", zorder=4)
            if paper is not None:
                ax.plot([paper], [row], "D", color=COLORS[1], markersize=6, markerfacecolor="none", zorder=2)
        ax.set_title(plain(textwrap.fill(metric, 26)), loc="left", fontsize=9, color=INK)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=rows)
        ax.set_xlabel(unit, fontsize=8)
        if unit == "percent":
            ax.set(xlim=(-4, 104))
    shown = [f"{name} (not trained)" if faint else name for name, faint in zip(names, untrained, strict=True)]
    axes[0].set_yticklabels([plain(name) for name in shown], fontsize=7.5)
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
    figure.suptitle(plain(textwrap.fill(title, int(11 * width))), fontsize=10, color=INK)
    return finish(figure, path)


def plot_reach(
    networks: Sequence[str],
    tasks: Sequence[str],
    reach: np.ndarray,
    path: Path = None,
    *,
    texts: Sequence[Sequence[str]] | None = None,
    title: str = "How far each network generalises: longest length, relative to the longest of training",
) -> Figure:
    """A map of networks and tasks. The colour of a cell is its reach; a cell that was not learned is grey.

    Args:
        networks: names of the rows.
        tasks: names of the columns.
        reach: [networks, tasks], at least 1; 0: not learned at the training lengths; NaN: not measured, left white.
        path: where to write the picture.
        texts: what is written in each cell.
        title: a line above the picture.
    """
    reach = matrix(reach, "reach [networks, tasks]")
    if reach.shape != (len(networks), len(tasks)):
        raise ValueError(f"reach must be [{len(networks)}, {len(tasks)}], got shape {reach.shape}")
    width, height = 2.6 + 0.56 * len(tasks), 1.9 + 0.25 * len(networks)
    figure = Figure(figsize=(max(width, 5.0), height), layout="constrained")
    ax = figure.subplots()
    learned = np.where(reach >= 1, reach, np.nan)
    colors = LinearSegmentedColormap.from_list("reach", ["#FBE6C5", "#7FBF9F", "#0B4F6C"])
    top = max(4.0, float(np.nanmax(learned, initial=1.0)))
    ax.imshow(np.where(reach == 0, 0.0, np.nan), cmap="Greys", vmin=-0.35, vmax=1, aspect="auto")
    image = ax.imshow(learned, cmap=colors, norm=LogNorm(1, top), aspect="auto")
    for row, names in enumerate(texts or []):
        for column, text in enumerate(names):
            dark = reach[row, column] >= 2.5
            ax.text(column, row, plain(text), ha="center", va="center", fontsize=6.5, color="white" if dark else INK)
    ax.set_xticks(range(len(tasks)), [plain(task) for task in tasks], rotation=45, ha="left", fontsize=8, color=INK)
    ax.set_yticks(range(len(networks)), [plain(network) for network in networks], fontsize=8, color=INK)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xticks(np.arange(len(tasks) + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(len(networks) + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.5)
    ax.tick_params(which="minor", length=0)
    color_bar(figure, image, ax, "reach")
    bar = figure.axes[-1]
    ticks = [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 16) if tick <= top]
    bar.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    bar.set_yticks([], minor=True)
    figure.suptitle(plain(textwrap.fill(title, int(11 * width))), fontsize=10, color=INK)
    return finish(figure, path)
