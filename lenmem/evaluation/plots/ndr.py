"""Data flow of a Neural Data Router (Csordás et al. 2022, arXiv 2110.07732): attention and gates by step.

attention float[B, T, R, N, N]    for an encoder with one layer for all T steps
column bool[B, N]                 which columns are real
gate, halting float[B, T, N]      how much each column was rewritten, and the weight of each step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from lenmem.evaluation.plots.figures import Trial, parts, redraws
from lenmem.evaluation.plots.look import COLORS, INK, MARKERS, Path, finish, plain, require_within, style
from lenmem.evaluation.plots.maps import plot_maps
from lenmem.evaluation.plots.registry import CONTEXT, Target, draws
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.traces import column_names

CONTEXT["column"] = "which columns are real"


@draws({"attention": 5, "column": 2}, also={"gate": 3, "halting": 3})
def _columns(scene: Scene, target: Target) -> None:
    """Attention, with the maximum over heads or for each head too, and gates."""
    traces, names = scene.traces, _names(scene)
    plot_ndr_attention(traces, 0, target("attention.png"), names=names, title=f"attention\n{scene.title}")
    heads = scene.trace("attention").shape[1]
    for head in range(heads if scene.everything and heads > 1 else 0):
        title = f"attention of head {head + 1} of {heads}\n{scene.title}"
        plot_ndr_attention(traces, 0, target(f"attention_{head + 1}.png"), head=head, names=names, title=title)
    if traces.keys() & {"gate", "halting"}:
        plot_ndr_gates(traces, 0, target("gates.png"), names=names, title=scene.title)


def _names(scene: Scene) -> list[str]:
    """Names of the real columns."""
    real = int(scene.trace("column").sum())
    given = column_names(scene.spec, scene.batch, 0, lambda token: scene.input_names[token])
    return given if len(given) == real else [str(column) for column in range(real)]


@redraws(
    "ndr-2",
    of="example",
    shows="attention (a) and copy gates (b) in every step; for ACT, the halting weights instead of the gates (b)",
)
def _steps(trials: Sequence[Trial], target: Target) -> None:
    for trial, (attention, gates) in zip(trials, parts(trials, "a", "b"), strict=True):
        traces, names, title = trial.scene.traces, _names(trial.scene), trial.scene.title
        plot_ndr_attention(traces, 0, target(attention), names=names, title=f"attention\n{title}")
        if traces.keys() & {"gate", "halting"}:
            plot_ndr_gates(traces, 0, target(gates), names=names, title=title)


@redraws("ndr-3", of="example", shows="attention of each head in every step")
def _heads(trials: Sequence[Trial], target: Target) -> None:
    heads = data_flow_of(trials[0].scene.traces, 0).attention.shape[1]
    for trial, files in zip(trials, parts(trials, *(f"head-{head + 1}" for head in range(heads))), strict=True):
        names = _names(trial.scene)
        for head, name in enumerate(files):
            title = f"attention of head {head + 1} of {heads}\n{trial.scene.title}"
            plot_ndr_attention(trial.scene.traces, 0, target(name), head=head, names=names, title=title)


@redraws("ndr-4", of="lengths", shows="the mean number of steps until columns halt, by length; with ACT")
def _halting(trials: Sequence[Trial], target: Target) -> None:
    plot_steps_used({(t.name, t.length): t.scene.traces for t in trials}, target(""))


class DataFlow(NamedTuple):
    """The steps of an encoder with one layer, in one example: T steps, R heads, N columns."""

    attention: np.ndarray
    """float[T, R, N, N]: the attention of each column (second last axis) to the others (last axis)."""
    gates: np.ndarray | None
    """float[T, N]: how much each column was rewritten, averaged over its units; None for layers without a gate."""
    halting: np.ndarray | None
    """float[T, N]: the weight of each step in a column's output; None without adaptive computation time."""

    @property
    def steps_used(self) -> np.ndarray:
        """int[N]: number of steps until each column halted; all steps without adaptive computation time."""
        if self.halting is None:
            return np.full(self.attention.shape[-1], len(self.attention))
        return np.sum(self.halting > 0, axis=0)


def data_flow_of(traces: Mapping[str, np.ndarray], example: int) -> DataFlow:
    """The data flow of one example, cut to its real columns.

    Needs the traces `attention` [B, T, R, N, N] and `column` bool[B, N]. Raises ValueError if one is missing or the
    example does not exist.
    """
    attention = traces.get("attention")
    if attention is None or attention.ndim != 5 or "column" not in traces:
        raise ValueError(
            "a picture of data flow needs the traces 'attention' of every step and 'column'; this model has "
            f"{', '.join(sorted(traces))}"
        )
    require_within(len(attention), example=example)
    real = np.nonzero(traces["column"][example])[0]

    def of_columns(name: str) -> np.ndarray | None:
        return np.asarray(traces[name][example][:, real], np.float64) if name in traces else None

    weights = np.asarray(attention[example], np.float64)[..., real, :][..., real]
    return DataFlow(weights, of_columns("gate"), of_columns("halting"))


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

    One map per step, with sources from left to right and targets from top to bottom. They show how an encoder with one
    layer for all steps processes its input.

    Args:
        traces: the result of `traces.collect`.
        example: row of the batch.
        path: where to write the picture.
        head: number of the head, from 0; None: the largest weight of all heads, as the colour bar says.
        names: names of the columns (`traces.column_names`); by default they are numbered.
        title: a line above the picture.
    """
    weights = data_flow_of(traces, example).attention
    heads = weights.shape[1]
    if head is None:
        maps, label = weights.max(axis=1), f"largest weight of {heads} heads"
    else:
        require_within(heads, head=head)
        maps, label = weights[:, head], f"weight of head {head + 1}"
    return plot_maps(
        maps,
        path,
        titles=[f"step {t}" for t in range(1, len(maps) + 1)],
        rows=names,
        columns=names,
        xlabel="source",
        ylabel="target",
        label="weight" if heads == 1 else label,
        title=title,
    )


def plot_ndr_gates(
    traces: Mapping[str, np.ndarray],
    example: int,
    path: Path = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Copy gates of a Neural Data Router, as in Figures 2, 9, 11 and 14 of Csordás et al. (2022): columns by steps.

    Averaged over the units of a column: 0 if it was copied, 1 if it was rewritten. Without gates, the weights of the
    steps in adaptive computation time. Arguments as in `plot_ndr_attention`.
    """
    flow = data_flow_of(traces, example)
    values, label = (flow.gates, "gate: 0 copied, 1 rewritten")
    if values is None:
        values, label = flow.halting, "weight of the step"
    if values is None:
        raise ValueError("a picture of gates needs the trace 'gate' or 'halting'; these layers have neither")
    return plot_maps(
        values[None],
        path,
        rows=[str(step) for step in range(1, len(values) + 1)],
        columns=names,
        xlabel="column",
        label=label,
        title=title,
        top=1.0,
    )


def plot_steps_used(
    traces: Mapping[tuple[str, int], Mapping[str, np.ndarray]], path: Path = None, *, title: str = ""
) -> Figure:
    """Mean number of steps until the columns of an example halt, by length, as in Figure 4 of Csordás et al. (2022).

    The dots are means over the columns of each example, the line their mean. Without adaptive computation time all
    steps are used. `traces` has those of a network's examples for each (name of the network, length).
    """
    if not traces:
        raise ValueError("no traces given; a picture needs at least one network")
    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    ax = figure.subplots()
    style(ax)
    most = 0
    for number, name in enumerate(dict.fromkeys(name for name, _ in traces)):
        lengths = sorted(length for other, length in traces if other == name)
        used = []
        for length in lengths:
            own = traces[name, length]
            flows = [data_flow_of(own, row) for row in range(len(own["column"]))]
            used.append([flow.steps_used.mean() for flow in flows])
            most = max(most, len(flows[0].attention))
            ax.plot([length] * len(flows), used[-1], ".", color=COLORS[number % len(COLORS)], alpha=0.3, markersize=3)
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        ax.plot(lengths, [np.mean(each) for each in used], color=color, marker=marker, markersize=4, label=plain(name))
    ax.axhline(most, color=INK, linewidth=0.8, linestyle="--")
    ax.set(xlabel="length", ylabel="steps until a column halts", ylim=(0, 1.08 * most))
    ax.legend(frameon=False, fontsize=9)
    figure.suptitle(plain(title), fontsize=11, color=INK)
    return finish(figure, path)
