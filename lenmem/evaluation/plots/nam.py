"""The tapes of a NAM Turing machine (Nam & Seo 2023): positions of the heads.

read_position, write_position float[B, T, tapes, cells]    in each layer, the weights of the heads over cells
jump_target float[B, T, tapes, cells]                      where a jump would lead
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lenmem.evaluation.plots.figures import Trial, redraws
from lenmem.evaluation.plots.look import (
    BELOW,
    FAINT,
    INK,
    Path,
    color_bar,
    finish,
    mark_answers,
    name_ticks,
    plain,
    require_within,
)
from lenmem.evaluation.plots.registry import Target, draws
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.traces import require_traces


@draws({"read_position": 4, "write_position": 4}, also={"jump_target": 4}, layers=True)
def _tapes(scene: Scene, target: Target) -> None:
    """The heads in a picture per layer, for its first tape or for each tape."""
    layers = tape_layers(scene.traces)
    # An encoder reads the inputs and then the answer slots; the rest is padding.
    aligned = scene.spec.alignment == "aligned"
    rows = scene.inputs if aligned else [*scene.inputs, *(f"→ {name}" for name in scene.answers)]
    real = {name: trace[:, : len(rows)] for name, trace in scene.traces.items() if trace.ndim == 4}
    for number, layer in enumerate(layers):
        tapes = scene.trace(f"{layer}read_position").shape[1]
        for tape in range(tapes if scene.everything else 1):
            plot_tape(
                real,
                0,
                target(f"tape_{number + 1}.png" if tape == 0 else f"tape_{number + 1}_{tape + 1}.png"),
                layer=number,
                tape=tape,
                rows=rows,
                mark=None if aligned else len(scene.inputs),
                title=f"{scene.title}\nlayer {number + 1} of {len(layers)}, tape {tape + 1} of {tapes}",
            )


@redraws("nam-tapes", of="example", shows="both heads and the jump table of every tape of every layer, by step")
def _all_tapes(trials: Sequence[Trial], target: Target) -> None:
    for trial in trials:
        if not tape_layers(trial.scene.traces):
            tape_of(trial.scene.traces, 0)  # says what is missing
        own = f"{trial.name}-" if len(trials) > 1 else ""
        whole = dataclasses.replace(trial.scene, everything=True)
        _tapes(whole, lambda name, own=own: target(own + name.removesuffix(".png")))


def tape_layers(traces: Mapping[str, np.ndarray]) -> list[str]:
    """Prefixes of the trace names of the layers with tapes."""
    return sorted(name.removesuffix("read_position") for name in traces if name.endswith("read_position"))


class Tape(NamedTuple):
    """The heads of a tape machine in one example: steps x cells, with cells counted from where the heads began."""

    write: np.ndarray
    """float[T, cells]: the write head."""
    read: np.ndarray
    """float[T, cells]: the read head."""
    jump: np.ndarray | None
    """float[T, cells]: the target of a jump at each step; None for a machine that cannot jump."""
    cells: np.ndarray
    """int[cells]: number of each cell, 0 for the one in which the heads began."""


def tape_of(traces: Mapping[str, np.ndarray], example: int, *, layer: int = 0, tape: int = 0) -> Tape:
    """The heads of one tape of one layer of a NAM Turing machine, cut to the cells that they visited.

    Needs the traces `read_position` and `write_position` [B, T, tapes, cells] of at least one layer. Raises ValueError
    if they are missing, or if the example, layer or tape does not exist.
    """
    layers = tape_layers(traces)
    if not layers:
        require_traces(traces, ["read_position"], "a picture of a tape")
    shape = traces[f"{layers[0]}read_position"].shape
    require_within(shape[0], example=example)
    require_within(len(layers), layer=layer)
    require_within(shape[2], tape=tape)
    heads = {
        name: np.asarray(traces[layers[layer] + name][example, :, tape], np.float64)
        for name in ("write_position", "read_position", "jump_target")
        if layers[layer] + name in traces
    }
    visited = np.nonzero(np.any([np.abs(head).max(axis=0) > 0.01 for head in heads.values()], axis=0))[0]
    cells = np.arange(visited[0], visited[-1] + 1)
    start = int(np.argmax(heads["read_position"][0]))
    write, read, jump = (
        heads[name][:, cells] if name in heads else None for name in ("write_position", "read_position", "jump_target")
    )
    assert write is not None and read is not None
    return Tape(write, read, jump, cells - start)


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
    """The heads of a NAM Turing machine on one tape, with time running downwards.

    From left to right: the write head, the read head and, if the machine can jump, its jump table, the cells to which
    the query of each step would lead. Cells are counted from where the heads began; red is negative.

    Args:
        traces: the result of `traces.collect`.
        example: row of the batch.
        path: where to write the picture.
        layer: layer of the machine.
        tape: tape of the layer.
        rows: names of the steps, for instance the tokens read.
        mark: the first step of the answer; a line is drawn above it.
        title: a line above the picture.
    """
    heads = tape_of(traces, example, layer=layer, tape=tape)
    panels = [("write head", heads.write), ("read head", heads.read)]
    panels += [] if heads.jump is None else [("jump table", heads.jump)]
    steps, cells = heads.read.shape
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
        mark_answers(ax, mark)
    name_ticks(axes[0].yaxis, rows, steps, "rows", size)
    axes[0].set_ylabel("step" + ("" if mark is None else BELOW))
    assert image is not None
    color_bar(figure, image, axes[-1], "weight (red: negative)")
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)
