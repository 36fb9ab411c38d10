"""Lie-access memory (Yang and Rush 2017, arXiv 1611.02854): its keys and heads in key space.

    read_head, write_head float[B, T, d]    positions of the heads after each step
    write_strength float[B, T]              the strength of each write

Steps before the first answer write; the others read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lenmem.evaluation.plots.figures import Trial, parts, redraws
from lenmem.evaluation.plots.look import (
    FAINT,
    INK,
    READ,
    SMALLEST,
    WRITE,
    Path,
    color_bar,
    every,
    finish,
    plain,
    require_within,
    style,
)
from lenmem.evaluation.plots.paths import annotate, arc, window
from lenmem.evaluation.plots.registry import Target, draws
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.traces import pca, require_traces


@draws({"read_head": 3, "write_head": 3, "write_strength": 2, "valid": 2, "decoding": 2})
def _lie_access(scene: Scene, target: Target) -> None:
    """Keys and heads in key space, if it has two or three dimensions, and row by row."""
    names, title = scene.token_name, scene.title
    if scene.trace("read_head").shape[-1] in (2, 3):
        plot_key_space(scene.traces, 0, target("key_space.png"), names=names, title=title)
    plot_rows(scene.traces, 0, target("rows.png"), names=names, title=title)


@redraws("lantm-2", of="example", length=8, shows="the memory row by row (a) and in key space (b); priority sort")
def _rows_and_key_space(trials: Sequence[Trial], target: Target) -> None:
    for trial, (rows, space) in zip(trials, parts(trials, "a", "b"), strict=True):
        scene, title = trial.scene, trial.scene.title
        plot_rows(scene.traces, 0, target(rows), names=scene.token_name, title=title)
        plot_key_space(scene.traces, 0, target(space), names=scene.token_name, title=title)


@redraws("lantm-3", of="example", length=7, shows="the memory in key space, a sphere; repeat copy with `slantm`")
@redraws("lantm-4", of="example", length=6, shows="the memory in key space, also at step N with `--step N`; odd first")
def _key_space(trials: Sequence[Trial], target: Target) -> None:
    for trial, (name,) in zip(trials, parts(trials, ""), strict=True):
        names, title = trial.scene.token_name, trial.scene.title
        plot_key_space(trial.scene.traces, 0, target(name), names=names, title=title)


class MemoryTrace(NamedTuple):
    """The memory of one example, and where it was read: W writes and R reads in key space."""

    keys: np.ndarray
    """float[W, d]: the written keys, in order of time."""
    strengths: np.ndarray
    """float[W] in [0, 1]: the strength of each write."""
    tokens: np.ndarray | None
    """int[W]: the token read at each write; None for inputs without tokens."""
    reads: np.ndarray
    """float[R, d]: the position of the read head at the answer steps."""


def memory_of(traces: Mapping[str, np.ndarray], example: int) -> MemoryTrace:
    """The writes (steps that are valid and not decoding) and reads (valid and decoding) of one example.

    Needs the traces `write_head`, `read_head`, `decoding` and `valid`; without `write_strength`, writes have full
    strength. Raises ValueError if a trace is missing or the example does not exist.
    """
    require_traces(traces, ("write_head", "read_head", "decoding", "valid"), "a picture of Lie-access memory")
    require_within(len(traces["valid"]), example=example)
    valid, decoding = traces["valid"][example], traces["decoding"][example]
    writes = valid & ~decoding
    keys = traces["write_head"][example][writes]
    strengths = traces["write_strength"][example][writes] if "write_strength" in traces else np.ones(len(keys))
    return MemoryTrace(
        keys=keys,
        strengths=strengths,
        tokens=traces["token"][example][writes] if "token" in traces else None,
        reads=traces["read_head"][example][valid & decoding],
    )


def plot_key_space(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Callable[[int], str] = str,
    title: str = "",
) -> Figure:
    """Lie-access memory of one example in key space, as in Figures 2b, 3 and 4 of Yang and Rush (2017).

    Writes are red, connected in order of time, filled by strength (black: strong) and annotated with the token read at
    that step; reads are blue. Keys in the plane are drawn as they are. Keys in three dimensions are drawn on the unit
    sphere, and beside it projected on their two principal axes; keys of more dimensions are only projected.

    Args:
        traces: the result of `traces.collect`.
        example: row of the batch.
        path: where to write the picture.
        names: token id -> annotation (`traces.token_names(vocabulary)` names the special ones).
        title: a line above the picture.
    """
    memory = memory_of(traces, example)
    _require_writes(memory)
    d = memory.keys.shape[1]
    keys, reads = (memory.keys, memory.reads) if d == 2 else _project(memory, 2)
    low, high = window(np.concatenate([keys, reads]))
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
    color_bar(figure, dots, ax, "strength of the write", shrink=0.5, ticks=[0, 0.5, 1])
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
    figure.suptitle(plain(title), fontsize=11, color=INK)
    annotate(ax, keys, _names(memory, names), memory.strengths)
    return finish(figure, path)


def plot_rows(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Callable[[int], str] = str,
    title: str = "",
) -> Figure:
    """Lie-access memory of one example row by row, as in Figure 2a of Yang and Rush (2017).

    The keys are projected on their principal axis. Each input step has a row, from top to bottom, with a dot at its
    write, filled by strength (black: strong). The last, taller row is the path of the read head while answering, with
    time running downwards. Long inputs have lower rows; with more than about 80, not all are labelled. Arguments as in
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
    style(ax)
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
    named = rows[:: every(row)]
    ax.set_yticks(np.append(named, (top + bottom) / 2), [*(plain(labels[n]) for n in named), "reads while\nanswering"])
    ax.tick_params(axis="y", labelsize=max(SMALLEST, min(8, 60 * row)), length=0)
    ax.get_yticklabels()[-1].set(color=READ, fontsize=8)
    ax.set_ylim(bottom + 0.6, -0.8)
    ax.margins(x=0.06)
    ax.set(xlabel="principal axis of the keys", ylabel="token read, one row per step")
    shrink = min(1, 1.8 / (row * (steps + tall)))
    color_bar(figure, dots, ax, "strength of the write", shrink=shrink, ticks=[0, 0.5, 1])
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)


def _sphere(ax: Any, memory: MemoryTrace, names: Callable[[int], str]) -> None:
    """Writes and reads on the unit sphere, seen from their side of it."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 73), np.linspace(0, np.pi, 37))
    grid_lines = {"color": "#C4C4C4", "linewidth": 0.35, "rstride": 3, "cstride": 4}
    ax.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), **grid_lines)
    points = np.concatenate([memory.keys, memory.reads])
    _, axes = np.linalg.eigh(points.T @ points - np.outer(points.mean(0), points.mean(0)) * len(points))
    centre = points.mean(0)
    # A small patch is seen from its middle; points all around a circle, from the axis of that circle.
    x, y, z = centre / np.linalg.norm(centre) if np.linalg.norm(centre) > 0.3 else axes[:, 0]
    ax.view_init(elev=float(np.clip(np.degrees(np.arcsin(z)) + 20, -60, 60)), azim=np.degrees(np.arctan2(y, x)) + 15)
    ax.plot(*arc(memory.keys).T, color=WRITE, linewidth=1, alpha=0.7)
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
        ax.plot(*arc(memory.reads).T, color=READ, linewidth=1.2, alpha=0.85)
        ax.scatter(*memory.reads.T, color=READ, s=7, depthshade=False)
    for points, color in ((memory.keys, WRITE), (memory.reads, READ)):
        if len(points):
            ax.plot(*points[:1].T, "o", markersize=10, markerfacecolor="none", markeredgecolor=color)
            ax.plot(*points[-1:].T, "s", markersize=9, markerfacecolor="none", markeredgecolor=color)
    ax.set_box_aspect((1, 1, 1), zoom=1.45)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    ax.set_axis_off()


def _plane(ax: Axes, keys: np.ndarray, reads: np.ndarray, strengths: np.ndarray) -> PathCollection:
    """Writes and reads in the plane; returns the dots of the writes."""
    style(ax)
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


def _project(memory: MemoryTrace, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and reads on the k principal axes of both together."""
    projected = pca(np.concatenate([memory.keys, memory.reads]), k)
    return projected[: len(memory.keys)], projected[len(memory.keys) :]


def _names(memory: MemoryTrace, names: Callable[[int], str]) -> list[str] | None:
    return None if memory.tokens is None else [names(int(token)) for token in memory.tokens]


def _require_writes(memory: MemoryTrace) -> None:
    if not len(memory.keys):
        raise ValueError("this example writes nothing: it has no valid step before the answer")
