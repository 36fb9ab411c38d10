"""Pictures of all traces of a network, starting with the pictures that are registered for them.

A trace that no picture takes becomes a strip in `steps.png` if it has only a few numbers per step. Otherwise it becomes
a heat map in its own file, as attention and weights always do. Reads and writes of a memory with slots are drawn in the
same way for all networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from lenmem.evaluation.plots.maps import plot_attention, plot_maps, plot_strips
from lenmem.evaluation.plots.registry import CONTEXT, PICTURES, Target, draws
from lenmem.evaluation.plots.scene import Scene

STRIP = 24
"""Most numbers per step for a strip in `steps.png`."""
PANELS = 16
"""Most panels of a heat map; if there are more, this many are shown, evenly spaced."""


def draw(scene: Scene, target: Target) -> set[str]:
    """Draws all traces of an example into the files that `target` names; returns the names of the traces drawn."""
    drawn = _draw_known(scene, target, examples=False)
    rest = [name for name in scene.traces if name not in drawn | CONTEXT.keys()]
    _draw_rest(scene, target, rest)
    return drawn.union(rest)


def draw_examples(scene: Scene, target: Target) -> None:
    """Draws pictures of many examples. Raises ValueError if no trace has such a picture."""
    if not _draw_known(scene, target, examples=True):
        wanted = [" and ".join(map(repr, picture.needs)) for picture in PICTURES if picture.examples]
        raise ValueError(
            f"pictures of many examples need the traces {', or '.join(wanted)}; "
            f"this model has {', '.join(sorted(scene.traces)) or 'none'}"
        )


def _draw_known(scene: Scene, target: Target, *, examples: bool) -> set[str]:
    """Draws every registered picture whose traces were sown; returns the traces used."""
    drawn: set[str] = set()
    for picture in PICTURES:
        taken = picture.takes(scene) - CONTEXT.keys() - (set() if examples else drawn)
        if picture.examples == examples and taken:
            picture.draw(scene, target)
            drawn |= taken
    return drawn


@draws({"read_weights": (3, 4)})
def _reads(scene: Scene, target: Target) -> None:
    """The slots read at each step."""
    _draw_slots(scene, target, "read_weights")


@draws({"write_weights": (3, 4)})
def _writes(scene: Scene, target: Target) -> None:
    """The slots written at each step."""
    _draw_slots(scene, target, "write_weights")


def _draw_slots(scene: Scene, target: Target, name: str) -> None:
    """Weights over slots by step, a picture for each head. Slots are named if each holds what one step wrote."""
    steps = scene.steps
    weights = scene.trace(name)[: len(steps) if steps is not None else None]
    weights = weights[:, None] if weights.ndim == 2 else weights  # [T, heads, slots]
    columns = slot_names(scene, weights.shape[-1])
    if columns is not None:
        weights = weights[..., : len(columns)]
    heads = weights.shape[1]
    for head in range(heads):
        which = f", head {head + 1} of {heads}" if heads > 1 else ""
        plot_attention(
            weights[:, head],
            target(f"{name}_{head + 1}.png" if heads > 1 else f"{name}.png"),
            rows=steps,
            columns=columns,
            xlabel="memory slot, by what was read when it was written" if columns else "memory slot",
            title=f"{name.replace('_', ' ')}{which}\n{scene.title}",
            mark=scene.first_answer,
        )


def slot_names(scene: Scene, slots: int) -> list[str] | None:
    """Names of the slots if each step adds a slot, which follows from their number; None for other memories."""
    steps, first = scene.steps, scene.first_answer
    if steps is None or first is None or "write_weights" in scene.traces:
        return None
    if slots == scene.traces["valid"].shape[1]:
        return steps
    # Slots are written while reading, after those that exist at the start.
    reading = scene.traces["valid"].shape[1] - scene.batch.target_mask.shape[1]
    start = slots - reading
    return ["start"] * start + steps[:first] if 0 <= start <= 2 else None


def _draw_rest(scene: Scene, target: Target, names: Iterable[str]) -> None:
    """Draws the traces that no picture takes."""
    strips = {name: strip for name in names if (strip := _strip(scene, name)) is not None}
    _draw_strips(scene, target, strips)
    for name in names:
        if name not in strips:
            _draw_map(scene, target, name)


def _strip(scene: Scene, name: str) -> np.ndarray | None:
    """[T, k] if a trace has a few numbers for each real step or answer; None for others, and for weights."""
    trace = scene.trace(name)
    if "attention" in name or "weights" in name:
        return None
    numbers = int(np.prod(trace.shape[1:]))
    if trace.ndim < 1 or not np.issubdtype(trace.dtype, np.number) or numbers > STRIP or trace.shape[0] < 2:
        return None
    names, real = scene.naming(trace.shape[0])
    if names is None and real == 0:
        return None
    return np.asarray(trace[:real], np.float64).reshape(real, numbers)


def _draw_strips(scene: Scene, target: Target, strips: Mapping[str, np.ndarray]) -> None:
    """One picture for each number of steps that occurs, usually one in all."""
    for number, steps in enumerate(sorted({len(values) for values in strips.values()}, reverse=True)):
        chosen = {name: values for name, values in strips.items() if len(values) == steps}
        static = {scene.traces[name].shape[1] for name in chosen}
        names = scene.naming(static.pop())[0] if len(static) == 1 else None
        recurrent = scene.recurrent
        entries = {name: scene.traces[name].shape[2:] for name in chosen}
        plot_strips(
            chosen,
            rows={
                name: [".".join(str(n + 1) for n in at) for at in np.ndindex(shape)] for name, shape in entries.items()
            },
            path=target(f"steps_{number + 1}.png" if number else "steps.png"),
            columns=names,
            xlabel="step" if recurrent else "position",
            title=scene.title,
            mark=scene.first_answer if recurrent else None,
        )


def _draw_map(scene: Scene, target: Target, name: str) -> None:
    """The last two axes of a trace as heat maps, with a panel for each entry of the other axes."""
    values = np.asarray(scene.trace(name), np.float64)
    recurrent = scene.recurrent
    if recurrent and values.ndim and values.shape[0] == scene.traces["valid"].shape[1]:
        values = values[: int(scene.trace("valid").sum())]
    sizes = [size for size in values.shape if size > 1]
    values = values.reshape(sizes or [1])
    if values.ndim == 1:
        values = values[None]
    # [T, n] over steps is one map. In [T, heads, n], as in [heads, N, N], each head is a panel.
    answers = scene.batch.target_mask.shape[1]
    over_time = values.ndim == 3 and values.shape[0] in (answers, len(scene.steps or ())) != values.shape[1]
    if over_time and values.shape[1] <= PANELS:
        values = np.swapaxes(values, 0, 1)
    before = values.shape[:-2]
    maps = values.reshape(-1, *values.shape[-2:])
    titles = [", ".join(str(number + 1) for number in place) for place in np.ndindex(before)] if before else None
    note = ""
    if len(maps) > PANELS:
        shown = np.linspace(0, len(maps) - 1, PANELS).round().astype(int)
        note = f", {PANELS} of {len(maps)}"
        maps, titles = maps[shown], [titles[n] for n in shown] if titles else None
    named = [scene.naming(size) for size in maps.shape[1:]]
    if recurrent and scene.steps is not None and maps.shape[1] == len(scene.steps):
        named[0] = (scene.steps, len(scene.steps))
    (rows, height), (columns, width) = named
    over_steps, attention = recurrent and rows is not None, "attention" in name
    if titles is not None and recurrent and not over_steps:
        titles = [f"step {title}" for title in titles]
    plot_maps(
        maps[:, :height, :width],
        target(f"{name.replace('/', '-')}.png"),
        titles=titles,
        rows=rows,
        columns=columns,
        xlabel="source" if attention else "",
        ylabel="step" if over_steps else "target" if attention else "",
        label="weight" if attention else "value",
        title=f"{name.replace('_', ' ')}{note}\n{scene.title}",
        mark=scene.first_answer if over_steps else None,
    )
