"""Pointers of a pointer-augmented memory (Le et al. 2024, arXiv 2404.11870): their positions at each answer.

pointer_weights float[B, M, H, N]     weights of the pointers over slots
relation_weights float[B, M, H, N]    weights of the content heads
address int[B, M, H]                  the address of each pointer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lenmem.evaluation.plots.figures import Trial, parts, redraws
from lenmem.evaluation.plots.look import Path, require_within
from lenmem.evaluation.plots.maps import plot_maps, plot_strips
from lenmem.evaluation.plots.registry import Target, draws
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.traces import require_traces

HEADS = {"pointer_weights": "pointer", "relation_weights": "content head"}
"""Trace of weights -> name of its heads."""


@draws({"pointer_weights": 4}, also={"address": 3})
def _pointers(scene: Scene, target: Target) -> None:
    """Weights of the pointers, and their addresses."""
    _draw_heads(scene, target, "pointer_weights")
    if "address" in scene.traces:
        values = scene.trace("address")
        columns = _answers(scene, len(values))
        title = f"address of each pointer, blank if it has none\n{scene.title}"
        values = np.where(values < 0, np.nan, values)[: len(columns) if columns else None]
        plot_strips({"pointer": values}, target("address.png"), columns=columns, xlabel="answer", title=title)


@draws({"relation_weights": 4})
def _relations(scene: Scene, target: Target) -> None:
    """Weights of the content heads."""
    _draw_heads(scene, target, "relation_weights")


@redraws("panm-2", of="example", shows="the walk of every pointer over the slots (pointers), and the content heads")
def _walks(trials: Sequence[Trial], target: Target) -> None:
    for trial, (pointers, content) in zip(trials, parts(trials, "pointers", "content"), strict=True):
        _draw_heads(trial.scene, lambda _, name=pointers: target(name), "pointer_weights")
        if "relation_weights" in trial.scene.traces:
            _draw_heads(trial.scene, lambda _, name=content: target(name), "relation_weights")


def _draw_heads(scene: Scene, target: Target, name: str) -> None:
    """The weights in one trace, with names of slots and answers if these are known."""
    if name not in scene.traces:
        plot_pointers(scene.traces, 0, None, name)  # says what is missing
    weights = scene.traces[name]  # [1, M, heads, slots]
    slots = scene.batch.input_mask.shape[1]
    columns = {slots: scene.inputs, slots + 2: ["begin", *scene.inputs, "end"]}.get(weights.shape[-1])
    rows = _answers(scene, weights.shape[1])
    real = weights[:, : len(rows) if rows else None, :, : len(columns) if columns else None]
    title = f"{name.replace('_', ' ')}\n{scene.title}"
    plot_pointers({name: real}, 0, target(f"{name}.png"), name, rows=rows, columns=columns, title=title)


def _answers(scene: Scene, steps: int) -> list[str] | None:
    """Names of the answers, if each has a step."""
    return scene.answers if steps == scene.batch.target_mask.shape[1] else None


def plot_pointers(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    which: str = "pointer_weights",
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Weights of the pointers over the slots of memory, one panel each, with answers from top to bottom.

    Args:
        traces: the result of `traces.collect`.
        example: row of the batch.
        path: where to write the picture.
        which: `pointer_weights`, or `relation_weights` for the content heads.
        rows: names of the answers.
        columns: names of the slots, for instance of the inputs that they hold.
        title: a line above the picture.
    """
    if which not in HEADS:
        raise ValueError(f"which is {which!r}; allowed are {', '.join(HEADS)}")
    require_traces(traces, [which], "a picture of pointers")
    require_within(len(traces[which]), example=example)
    weights = np.swapaxes(traces[which][example], 0, 1)  # [heads, M, slots]
    return plot_maps(
        weights,
        path,
        titles=[f"{HEADS[which]} {number + 1}" for number in range(len(weights))],
        rows=rows,
        columns=columns,
        xlabel="memory slot, by the input it holds" if columns else "memory slot",
        ylabel="answer",
        title=title,
    )
