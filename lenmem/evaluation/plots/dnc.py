"""State-constrained memory (Ofner and Kern 2021, arXiv 2110.09138): controller states, and modes of the memory.

controller_state float[B, T, d]    the states (`lenmem.evaluation.states`)
read_modes float[B, T, R, 3]       for each head: backward, content, forward
allocation_gate float[B, T]        writes go to allocated (1) or to similar (0) slots
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lenmem.evaluation import states as analysis
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.plots.curves import plot_curve_panels
from lenmem.evaluation.plots.figures import Trial, redraws
from lenmem.evaluation.plots.look import (
    COLORS,
    FAINT,
    INK,
    MARKERS,
    READ,
    WRITE,
    Path,
    color_bar,
    finish,
    plain,
    style,
)
from lenmem.evaluation.plots.registry import Target, draws
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.states import PHASES, Phase, States
from lenmem.evaluation.statistics import kendall

CONTENT = 1
"""Index of the content mode; the other modes follow the order of writing."""


@draws({"controller_state": 3, "valid": 2, "decoding": 2}, examples=True)
def _states(scene: Scene, target: Target) -> None:
    """Maps of the states in each phase, with the curvature of their paths."""
    make_map = analysis.tsne_map if scene.tsne else analysis.pca_map
    plot_states(
        {phase: make_map(scene.traces, phase) for phase in PHASES if analysis.steps_of(scene.traces, phase).any()},
        target("states.png"),
        symbols=analysis.symbols_of(scene.traces, scene.batch),
        title=f"{scene.title}: curvature {analysis.curvature(scene.traces).mean:.3f}",
    )


@draws({"read_modes": 4, "allocation_gate": 2, "valid": 2, "decoding": 2}, examples=True)
def _modes(scene: Scene, target: Target) -> None:
    """Histograms of the modes of reading and writing."""
    plot_modes(scene.traces, target("modes.png"), title=scene.title)


LENGTH = 30
"""Length of the examples whose states the paper analyses."""


@redraws("dnc-3", of="curves", shows="accuracy by length with a memory ten times as large, a panel for each task")
@redraws("dnc-7", of="curves", shows="accuracy by length of several networks; a panel for each task")
def _lengths(curves: Sequence[LengthCurve], target: Target) -> None:
    plot_curve_panels(curves, target(""), {curve.task: analysis.scored_by(curve.values) for curve in curves})


@redraws("dnc-4", of="trials", length=LENGTH, shows="curvature of the states' paths against accuracy, seed by seed")
def _curvatures(trials: Sequence[Trial], target: Target) -> None:
    points = [(trial.name, analysis.curvature(trial.scene.traces).mean, trial.score) for trial in trials]
    plot_curvature(points, target(""))


@redraws("dnc-5", of="trials", length=LENGTH, shows="maps of the states while reading, of each run's best seeds; sort")
@redraws("dnc-6", of="trials", length=LENGTH, shows="maps of the states while reading, of each run's best seeds; copy")
def _maps(trials: Sequence[Trial], target: Target) -> None:
    plot_trials(trials, target(""))


@redraws("dnc-8", of="trials", length=LENGTH, shows="modes of writing and reading of all seeds of each run")
def _all_modes(trials: Sequence[Trial], target: Target) -> None:
    runs = dict.fromkeys(trial.name for trial in trials)
    for name in runs:
        own = [trial.scene for trial in trials if trial.name == name]
        traces = {
            trace: np.concatenate([np.asarray(analysis.trace_of(scene.traces, trace)) for scene in own])
            for trace in ("read_modes", "allocation_gate", "valid", "decoding")
        }
        plot_modes(traces, target(name if len(runs) > 1 else ""), title=own[0].title)


class Modes(NamedTuple):
    """How memory was written and read: fractions of the steps of a phase, by the value of a gate."""

    edges: np.ndarray
    """float[bins + 1]: from 0 to 1."""
    write: dict[Phase, np.ndarray]
    """float[bins]: the allocation gate. 1: writes to allocated slots, 0: by content."""
    read: dict[Phase, np.ndarray]
    """float[bins]: the content component of the read modes of all heads. 1: by content, 0: in order of writing."""


def mode_histograms(traces: Mapping[str, np.ndarray], *, bins: int = 20) -> Modes:
    """Histograms of write modes and of read modes for each phase; each sums to 1. A phase without steps is all 0."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    reads = np.asarray(analysis.trace_of(traces, "read_modes"), np.float64)
    if reads.ndim != 4 or reads.shape[-1] != 3:
        raise ValueError(f"the trace 'read_modes' must be [B, T, R, 3], got shape {reads.shape}")
    writes = np.asarray(analysis.trace_of(traces, "allocation_gate"), np.float64)
    edges = np.linspace(0, 1, bins + 1)

    def shares(values: np.ndarray) -> np.ndarray:
        counts = np.histogram(np.clip(values, 0, 1), edges)[0]
        return counts / max(1, counts.sum())

    steps: dict[Phase, np.ndarray] = {phase: analysis.steps_of(traces, phase) for phase in PHASES}
    return Modes(
        edges,
        {phase: shares(writes[steps[phase]]) for phase in PHASES},
        {phase: shares(reads[steps[phase]][..., CONTENT]) for phase in PHASES},
    )


def plot_states(
    maps: Mapping[str, States],
    path: Path = None,
    *,
    symbols: np.ndarray | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
) -> Figure:
    """Maps of a controller's states, as in Figures 5, 6 and 12 to 21 of Ofner and Kern: one row of panels per phase.

    A dot is a state, a faint line the path of an example. In the left panel dots are coloured by time (dark: early), in
    the right one by symbol.

    Args:
        maps: phase -> states in the plane (`states.pca_map`, `states.tsne_map`).
        path: where to write the picture.
        symbols: int[B, T], the symbol of each step (`states.symbols_of`; -1: none); None: no right panels.
        names: phase -> names of its symbols; by default they are numbered.
        title: a line above the picture.
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
        color_bar(figure, dots, row[0], "step", ticks=MaxNLocator(nbins=6, integer=True))
        if symbols is None:
            continue
        shown = symbols[states.example, states.time]
        known = np.unique(shown[shown >= 0])
        colors = np.array([COLORS[np.searchsorted(known, n) % len(COLORS)] if n >= 0 else FAINT for n in shown])
        _paths(row[1], states, colors, None)
        row[1].set_title(f"{phase}, by symbol", loc="left", fontsize=11, color=INK)
        if len(known) <= len(COLORS):
            labels = [plain(names[phase][int(n)]) if names and phase in names else str(n) for n in known]
            handles = [Line2D([], [], color=color, marker="o", markersize=4, linestyle="") for color in COLORS]
            # outside the panel, so that it covers no state
            row[1].legend(
                handles[: len(known)], labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8
            )
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)


def _paths(ax: Axes, states: States, colors: np.ndarray, cmap: str | None) -> PathCollection:
    """Dots for states, and lines along examples; returns the dots. The axes of a map have no meaning and no ticks."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color(FAINT)
    for example in np.unique(states.example):
        ax.plot(*states.points[states.example == example].T, color=INK, linewidth=0.3, alpha=0.15, zorder=1)
    return ax.scatter(*states.points.T, c=colors, cmap=cmap, s=7, linewidths=0, zorder=2)


def plot_modes(traces: Mapping[str, np.ndarray], path: Path = None, *, bins: int = 20, title: str = "") -> Figure:
    """How memory was written and read, as in Figures 8 to 11 of Ofner and Kern: histograms for each phase.

    The fraction of steps by allocation gate (0: writes by content, 1: to allocated slots), and by the content component
    of the read modes of all heads (0: reads in order of writing, 1: by content).
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
            style(ax)
            ax.stairs(shares[phase], modes.edges, fill=True, color=color, alpha=0.75)
            ax.set_title(f"{name}, {phase}", loc="left", fontsize=11, color=INK)
            ax.set_xticks([0, 1], [f"0\n{ends[0]}", f"1\n{ends[1]}"])
            ax.set_xlim(-0.02, 1.02)
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[0, 0].set_ylim(0, 1.02)
    figure.supylabel("fraction of steps", fontsize=9, color=INK)
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)


def plot_curvature(points: Sequence[tuple[str, float, float | None]], path: Path = None, *, title: str = "") -> Figure:
    """Curvature and accuracy of trained networks, as in Figure 4 of Ofner and Kern, with Kendall's tau of their ranks.

    `points` are (name of the run, curvature, accuracy) for each seed. Raises ValueError if an accuracy is missing.
    """
    missing = [name for name, _, score in points if score is None]
    if missing:
        raise ValueError(f"{missing[0]} has no curve of accuracy by length: run `lenmem evaluate` first")
    figure = Figure(figsize=(6, 4.6), layout="constrained")
    ax = figure.subplots()
    style(ax)
    for number, name in enumerate(dict.fromkeys(name for name, _, _ in points)):
        own = np.array([point[1:] for point in points if point[0] == name], float)
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        ax.plot(*own.T, linestyle="", color=color, marker=marker, markersize=5, label=plain(name))
    ax.set(xlabel="curvature of the states' paths", ylabel="mean accuracy by length")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    if len(points) > 2:
        tau, p = kendall([point[1] for point in points], [float(point[2] or 0) for point in points])
        title = f"{title}\nKendall's tau {tau:.2f}, p = {p:.3f}, {len(points)} networks".strip()
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)


def plot_trials(trials: Sequence[Trial], path: Path = None, *, best: int = 3, phase: Phase = "encoding") -> Figure:
    """Maps of controller states, as in Figures 5 and 6 of Ofner and Kern: a row for each run, its best seeds first.

    Dots are coloured by symbol; faint lines are the paths of examples. By t-SNE if the scenes ask for it, else on two
    principal components.
    """
    runs: dict[str, list[Trial]] = {}
    for trial in trials:
        runs.setdefault(trial.name, []).append(trial)
    across = min(best, max(map(len, runs.values())))
    figure = Figure(figsize=(0.4 + 3 * across, 0.6 + 2.9 * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), across, squeeze=False)
    for row, (name, own) in zip(axes, runs.items(), strict=True):
        ranked = sorted(own, key=lambda trial: -(trial.score or 0))[:across]
        for ax in row[len(ranked) :]:
            ax.set_axis_off()
        for ax, trial in zip(row, ranked, strict=False):
            traces = trial.scene.traces
            states = (analysis.tsne_map if trial.scene.tsne else analysis.pca_map)(traces, phase)
            symbols = analysis.symbols_of(traces, trial.scene.batch)[states.example, states.time]
            colors = np.array([COLORS[n % len(COLORS)] if n >= 0 else FAINT for n in symbols])
            _paths(ax, states, colors, None)
            score = "" if trial.score is None else f", {100 * trial.score:.0f}%"
            ax.set_title(plain(f"{name}, seed {trial.seed}{score}"), loc="left", fontsize=8, color=INK)
    figure.suptitle(plain(f"states, {phase}, by symbol"), fontsize=11, color=INK)
    return finish(figure, path)
