"""Heads of a two-way transducer: the slot of each head at each answer.

head int[B, M, H]         the slots, of which 0 is the begin symbol
symbol float[B, M, K]     the state, drawn as a strip below
"""

from __future__ import annotations

from matplotlib.figure import Figure

from lenmem.evaluation.plots.look import COLORS, INK, MARKERS, Path, finish, plain, style
from lenmem.evaluation.plots.registry import Target, draws
from lenmem.evaluation.plots.scene import Scene


@draws({"head": 3}, also={"symbol": 3})
def _walks(scene: Scene, target: Target) -> None:
    """The walks of the heads, and the state."""
    plot_heads(scene, target("heads.png"))


def plot_heads(scene: Scene, path: Path = None) -> Figure:
    """The slot of each head (a line) at each answer, and the number of the state's symbol below, if there is one."""
    heads = scene.trace("head")[: int(scene.batch.target_mask[0].sum())]
    states = scene.traces.get("symbol")
    figure = Figure(figsize=(7.5, 5.5 if states is not None else 4.5), layout="constrained")
    ratios = [4, 1] if states is not None else [1]
    axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    marker = MARKERS if len(heads) <= 40 else [None] * len(MARKERS)
    steps = range(1, len(heads) + 1)
    for head in range(heads.shape[1]):
        color = COLORS[head % len(COLORS)]
        axes[0].plot(
            steps,
            heads[:, head],
            color=color,
            marker=marker[head % len(MARKERS)],
            markersize=4,
            linewidth=1.2 + 2 * (heads.shape[1] - 1 - head),  # heads at the same places stay visible
            label=f"head {head + 1}",
        )
    end = int(scene.batch.input_mask[0].sum()) + 1
    axes[0].set_ylim(-0.02 * end - 0.5, 1.02 * end + 0.5)
    axes[0].set_ylabel(f"slot (0: begin, {end}: end)")
    axes[0].legend(fontsize=8, loc="best")
    if states is not None:
        symbols = states[0].argmax(-1)[: len(heads)]
        axes[1].step(steps, symbols, where="mid", color=COLORS[6], linewidth=0.9)
        axes[1].set_ylabel("state")
        axes[1].set_ylim(-0.5, states.shape[-1] - 0.5)
    axes[-1].set_xlabel("answer")
    for ax in axes:
        style(ax)
    figure.suptitle(plain(f"heads\n{scene.title}"), fontsize=11, color=INK)
    return finish(figure, path)
