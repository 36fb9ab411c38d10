"""What a network sowed on one example, as pictures: everything in its traces is drawn, or listed in `CONTEXT`.

A `Scene` is the example and the traces. `draw` asks each drawer of `DRAWERS` in turn; a drawer draws the traces that it
knows and returns their names. What none of them knows becomes a strip in `steps.png`, if it is a few numbers a step,
and else a heat map in a file of its own, as weights and attention are always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lenmem.evaluation.traces import column_names, token_names
from lenmem.types import Batch, Spec

CONTEXT = {
    "valid": "which steps are real",
    "decoding": "which steps answer: drawn as a line where answering begins",
    "token": "what each step reads: drawn as the names of steps",
    "column": "which columns are real",
}
"""Traces that are not drawn, since they say how others are."""
STRIP = 24
"""Most numbers a step for a strip in `steps.png`."""
PANELS = 16
"""Most panels of a heat map; of more, so many are shown, evenly chosen."""

Target = Callable[[str], Path]


@dataclasses.dataclass(frozen=True)
class Scene:
    """One example, and what a network did on it."""

    spec: Spec
    batch: Batch
    """Of one example."""
    traces: Mapping[str, np.ndarray]
    """As `traces.collect` returns them."""
    input_names: Sequence[str]
    """Names of the input's tokens."""
    answer_names: Sequence[str]
    """Names of the answer's."""
    title: str = ""
    """What stands over every picture."""

    def token_name(self, token: int) -> str:
        """Name of a token that a recurrent network reads, special ones included."""
        if 0 <= token < len(self.input_names):
            return str(self.input_names[token])
        return token_names(len(self.input_names))(token)

    @property
    def inputs(self) -> list[str]:
        """Names of the real inputs; numbers for inputs without tokens."""
        names = column_names(self.spec, self.batch, 0, lambda token: str(self.input_names[token]))
        real = int(self.batch.input_mask[0].sum())
        return names[1 : real + 1] if names[:1] == ["begin"] and len(names) > real + 1 else names[:real]

    @property
    def answers(self) -> list[str]:
        """Names of the answer slots: the right tokens, a question mark where they are not known, else numbers."""
        asked, scored = (np.asarray(mask[0]) for mask in (self.batch.target_mask, self.batch.score_mask))
        slots = np.flatnonzero(asked)
        if self.spec.outputs != "tokens":
            return [str(number + 1) for number in range(len(slots))]
        targets = np.asarray(self.batch.targets[0])
        return [self.answer_name(int(targets[slot])) if scored[slot] else "?" for slot in slots]

    def answer_name(self, token: int) -> str:
        """Name of a token of the answer; an end symbol that the task does not name is called `end`."""
        name = str(self.answer_names[token])
        return "end" if token == self.spec.end_id and name == str(token) else name

    @property
    def steps(self) -> list[str] | None:
        """Names of the real steps of a recurrent network: what was read, then what was to be answered."""
        if "valid" not in self.traces or "token" not in self.traces:
            return None
        tokens = self.traces["token"][0][: int(self.traces["valid"][0].sum())]
        if self.spec.takes_tokens or self.spec.vocabulary:
            read = [self.token_name(int(token)) for token in tokens]
        else:
            specials = {0: "begin", 1: "delimiter", 2: ""}
            read = [specials[int(token)] if token else str(step) for step, token in enumerate(tokens)]
        first = self.first_answer
        if first is None or self.spec.alignment == "aligned":
            return read
        return [*read[:first], *(f"→ {name}" for name in self.answers[: len(read) - first])]

    @property
    def first_answer(self) -> int | None:
        """The step with which answering begins; None where every step answers, or steps are not told apart."""
        if "decoding" not in self.traces or self.spec.alignment == "aligned":
            return None
        decoding = self.traces["decoding"][0]
        return int(np.argmax(decoding)) if decoding.any() else None

    def naming(self, size: int) -> tuple[list[str] | None, int]:
        """Names of an axis of `size`, and how much of it is real; None where what it counts cannot be told."""
        slots, answers = self.batch.input_mask.shape[1], self.batch.target_mask.shape[1]
        inputs = self.inputs
        known: list[tuple[int, list[str]]] = [
            (slots, inputs),
            (slots + 2, ["begin", *inputs, "end"]),
            (answers, self.answers),
            (slots + answers, [*inputs, *self.answers]),
        ]
        if "valid" in self.traces:
            steps = self.steps or [str(step) for step in range(int(self.traces["valid"][0].sum()))]
            known = [(self.traces["valid"].shape[1], steps)]
        found = [names for static, names in known if static == size]
        if len(found) == 1:
            return found[0], len(found[0])
        return None, min((len(names) for names in found), default=size) if len(set(map(len, found))) == 1 else size


def draw(scene: Scene, target: Target, *, everything: bool = False) -> set[str]:
    """Draw all traces of a scene, into the files that `target` names; returns the names of those that were drawn.

    `everything`: also what is otherwise drawn together, such as each head by itself.
    """
    drawn: set[str] = set()
    for drawer in DRAWERS:
        drawn |= drawer(scene, target, everything)
    rest = {name: values for name, values in scene.traces.items() if name not in drawn | CONTEXT.keys()}
    strips = {name: strip for name in rest if (strip := _strip(scene, name)) is not None}
    _draw_strips(scene, target, strips)
    for name in rest:
        if name not in strips:
            _draw_map(scene, target, name)
    return drawn | rest.keys()


# The drawers: each draws what it knows, and returns the names of the traces it has drawn ------------------------------


def _lie_access(scene: Scene, target: Target, everything: bool) -> set[str]:
    """Keys and heads in key space, and row by row."""
    from lenmem.evaluation import plots

    traces, names = scene.traces, {"read_head", "write_head", "write_strength"}
    if not names <= traces.keys():
        return set()
    options = {"names": scene.token_name, "title": scene.title}
    if traces["read_head"].shape[-1] in (2, 3):
        plots.plot_key_space(traces, 0, target("key_space.png"), **options)
    plots.plot_rows(traces, 0, target("rows.png"), **options)
    return names


def _memory_slots(scene: Scene, target: Target, everything: bool) -> set[str]:
    """Where a memory was read and written at each step. Slots are named where each holds what one step wrote."""
    from lenmem.evaluation import plots

    drawn = set()
    for name in ("read_weights", "write_weights"):
        if name not in scene.traces:
            continue
        steps = scene.steps
        weights = scene.traces[name][0][: len(steps) if steps is not None else None]
        weights = weights[:, None] if weights.ndim == 2 else weights  # [T, heads, slots]
        columns = _slot_names(scene, weights.shape[-1])
        if columns is not None:
            weights = weights[..., : len(columns)]
        heads = weights.shape[1]
        for head in range(heads):
            of = f", head {head + 1} of {heads}" if heads > 1 else ""
            plots.plot_attention(
                weights[:, head],
                target(f"{name}_{head + 1}.png" if heads > 1 else f"{name}.png"),
                rows=steps,
                columns=columns,
                xlabel="memory slot, by what was read when it was written" if columns else "memory slot",
                title=f"{name.replace('_', ' ')}{of}\n{scene.title}",
                mark=scene.first_answer,
            )
        drawn.add(name)
    return drawn


def _slot_names(scene: Scene, slots: int) -> list[str] | None:
    """Names of the slots of a memory that each step adds one to, from how many there are; None for other memories."""
    steps, first = scene.steps, scene.first_answer
    if steps is None or first is None or "write_weights" in scene.traces:
        return None
    if slots == scene.traces["valid"].shape[1]:
        return steps
    # Written while reading, after those that were there at the start.
    reading = scene.traces["valid"].shape[1] - scene.batch.target_mask.shape[1]
    start = slots - reading
    return ["start"] * start + steps[:first] if 0 <= start <= 2 else None


def _tapes(scene: Scene, target: Target, everything: bool) -> set[str]:
    """The heads of a machine with tapes: a picture for each layer, of its first tape or of every one."""
    from lenmem.evaluation import plots

    layers = sorted(name.removesuffix("read_position") for name in scene.traces if name.endswith("read_position"))
    if not layers:
        return set()
    # An encoder reads the inputs and then the answer slots; what follows is padding.
    aligned = scene.spec.alignment == "aligned"
    rows = scene.inputs if aligned else [*scene.inputs, *(f"→ {name}" for name in scene.answers)]
    cut = {name: trace[:, : len(rows)] for name, trace in scene.traces.items()}
    for number, layer in enumerate(layers):
        tapes = scene.traces[f"{layer}read_position"].shape[2]
        for tape in range(tapes if everything else 1):
            file = f"tape_{number + 1}.png" if tape == 0 else f"tape_{number + 1}_{tape + 1}.png"
            plots.plot_tape(
                cut,
                0,
                target(file),
                layer=number,
                tape=tape,
                rows=rows,
                mark=None if aligned else len(scene.inputs),
                title=f"{scene.title}\nlayer {number + 1} of {len(layers)}, tape {tape + 1} of {tapes}",
            )
    heads = ("read_position", "write_position", "jump_target")
    return {name for name in scene.traces if name.rpartition("/")[2] in heads}


def _columns(scene: Scene, target: Target, everything: bool) -> set[str]:
    """Attention and gates of an encoder with one layer for all steps."""
    from lenmem.evaluation import plots

    traces = scene.traces
    if "column" not in traces or "attention" not in traces:
        return set()
    real = int(traces["column"][0].sum())
    given = column_names(scene.spec, scene.batch, 0, lambda token: scene.input_names[token])
    names = given if len(given) == real else [str(column) for column in range(real)]
    plots.plot_ndr_attention(traces, 0, target("attention.png"), names=names, title=f"attention\n{scene.title}")
    heads = traces["attention"].shape[2]
    for head in range(heads if everything and heads > 1 else 0):
        title = f"attention of head {head + 1} of {heads}\n{scene.title}"
        plots.plot_ndr_attention(traces, 0, target(f"attention_{head + 1}.png"), head=head, names=names, title=title)
    gates = {"gate", "halting"} & traces.keys()
    if gates:
        plots.plot_ndr_gates(traces, 0, target("gates.png"), names=names, title=scene.title)
    return {"attention"} | gates


def _pointers(scene: Scene, target: Target, everything: bool) -> set[str]:
    """Where pointers and content heads of a pointer memory are at each answer."""
    from lenmem.evaluation import plots

    titles = {"pointer_weights": "pointer", "relation_weights": "content head"}
    drawn = set()
    for name in titles.keys() & scene.traces.keys():
        weights = scene.traces[name][0]  # [M, heads, slots]
        slots = scene.batch.input_mask.shape[1]
        columns = {slots: scene.inputs, slots + 2: ["begin", *scene.inputs, "end"]}.get(weights.shape[-1])
        rows = scene.answers if weights.shape[0] == scene.batch.target_mask.shape[1] else None
        weights = weights[: len(rows) if rows else None, :, : len(columns) if columns else None]
        plots.plot_maps(
            np.swapaxes(weights, 0, 1),
            target(f"{name}.png"),
            titles=[f"{titles[name]} {head + 1}" for head in range(weights.shape[1])],
            rows=rows,
            columns=columns,
            xlabel="memory slot, by the input it holds" if columns else "memory slot",
            ylabel="answer",
            title=f"{name.replace('_', ' ')}\n{scene.title}",
        )
        drawn.add(name)
    if drawn and "address" in scene.traces:
        values = scene.traces["address"][0]
        columns = scene.answers if len(values) == scene.batch.target_mask.shape[1] else None
        values = values[: len(columns) if columns else None]
        title = f"address that each pointer is at\n{scene.title}"
        plots.plot_strips({"pointer": values}, target("address.png"), columns=columns, xlabel="answer", title=title)
        drawn.add("address")
    return drawn


DRAWERS: tuple[Callable[[Scene, Target, bool], set[str]], ...] = (
    _lie_access,
    _memory_slots,
    _tapes,
    _columns,
    _pointers,
)


# What no drawer knows -------------------------------------------------------------------------------------------------


def _strip(scene: Scene, name: str) -> np.ndarray | None:
    """[T, k] for a trace that is a few numbers at each real step or answer; None for others, and for weights."""
    trace = scene.traces[name][0]
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
    """A picture for each number of steps there is, most often one."""
    from lenmem.evaluation import plots

    for number, steps in enumerate(sorted({len(values) for values in strips.values()}, reverse=True)):
        chosen = {name: values for name, values in strips.items() if len(values) == steps}
        static = {scene.traces[name].shape[1] for name in chosen}
        names = scene.naming(static.pop())[0] if len(static) == 1 else None
        recurrent = "valid" in scene.traces
        entries = {name: scene.traces[name].shape[2:] for name in chosen}
        plots.plot_strips(
            chosen,
            rows={name: [".".join(str(n + 1) for n in at) for at in np.ndindex(of)] for name, of in entries.items()},
            path=target(f"steps_{number + 1}.png" if number else "steps.png"),
            columns=names,
            xlabel="step" if recurrent else "position",
            title=scene.title,
            mark=scene.first_answer if recurrent else None,
        )


def _draw_map(scene: Scene, target: Target, name: str) -> None:
    """The last two axes of a trace as heat maps, a panel for each entry of those before."""
    from lenmem.evaluation import plots

    values = np.asarray(scene.traces[name][0], np.float64)
    recurrent = "valid" in scene.traces
    if recurrent and values.ndim and values.shape[0] == scene.traces["valid"].shape[1]:
        values = values[: int(scene.traces["valid"][0].sum())]
    sizes = [size for size in values.shape if size > 1]
    values = values.reshape(sizes or [1])
    if values.ndim == 1:
        values = values[None]
    # [T, n] over steps is one map. Of [T, heads, n] each head is a panel, as it is of [heads, N, N].
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
    over_steps = recurrent and rows is not None
    if titles is not None and recurrent and not over_steps:
        titles = [f"step {title}" for title in titles]
    plots.plot_maps(
        maps[:, :height, :width],
        target(f"{name.replace('/', '-')}.png"),
        titles=titles,
        rows=rows,
        columns=columns,
        xlabel="",
        ylabel="step" if over_steps else "",
        label="value",
        title=f"{name.replace('_', ' ')}{note}\n{scene.title}",
        mark=scene.first_answer if over_steps else None,
    )
