"""The figures of traces. Traces without a specific figure become lines or heat maps, so that any network can be shown.

kind        figure
space       keys and heads in the plane, or on the sphere
slots       weights of heads over slots, cells or addresses, now and over time
stack       a stack, each cell with the step that pushed its contents
lines       a few numbers for each step
frames      a matrix for each step: attention, links
map         many numbers for each step, as a heat map
still       a matrix that does not change
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lenmem.evaluation.traces import pca
from lenmem.gallery.pack import Packer

if TYPE_CHECKING:
    from lenmem.evaluation.plots.scene import Scene

FEW = 8
"""Most numbers per step that are drawn as lines."""
MOST = 64
"""Most rows of a heat map, and largest size of a matrix. Of more rows, those that vary most are shown."""
USED = 0.02
"""Weight above which a slot counts as used."""
VISITED = 0.2
"""Weight above which a cell of a tape counts as visited."""
PANELS = 8
"""Most matrices shown for one trace, such as the heads of an attention."""
FINE = {"read", "write", "source"}
"""Arrays that are packed with two bytes: positions and indices."""


@dataclasses.dataclass(frozen=True)
class View:
    """A figure of the page: arrays over steps [T, ...], and texts."""

    kind: str
    title: str
    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def plain(self, packer: Packer) -> dict[str, Any]:
        """The view as JSON, with references to its arrays in `packer`."""
        arrays = {name: packer.add(values, fine=name in FINE) for name, values in self.arrays.items()}
        return {"kind": self.kind, "title": self.title, "arrays": arrays, **self.facts}


Found = tuple[list[View], set[str]]
"""Views, and the names of the traces that they use."""
Builder = Callable[[dict[str, np.ndarray], "Scene"], Found]


def views_of(scene: Scene, steps: int, static: int) -> list[View]:
    """The views of all traces of an example, each of which is used once. `static` is the padded size of the step
    axis."""
    from lenmem.evaluation.plots.registry import CONTEXT

    left = {}
    for name in sorted(scene.traces.keys() - CONTEXT.keys() - {"column"}):
        values = np.asarray(scene.trace(name))
        if np.issubdtype(values.dtype, np.number) or values.dtype == bool:
            left[name] = values[:steps] if values.ndim and values.shape[0] == static else values
    views: list[View] = []
    for build in BUILDERS:
        found, taken = build(left, scene)
        views += found
        left = {name: values for name, values in left.items() if name not in taken}
    for name, values in left.items():
        views += _rest(name, np.asarray(values, np.float64), steps, scene)
    return views


def _space(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Positions of heads. More than three dimensions are projected on two principal axes."""
    if not {"read_head", "write_head"} <= traces.keys() or traces["read_head"].ndim != 2:
        return [], set()
    read, write = traces["read_head"], traces["write_head"]
    dimensions = read.shape[-1]
    if dimensions > 3:
        both = pca(np.concatenate([read, write]), 2)
        read, write = both[: len(read)], both[len(read) :]
    strength = traces.get("write_strength", np.ones(len(write)))
    what = {2: "Keys and heads in the plane", 3: "Keys and heads on the sphere"}
    title = what.get(dimensions, f"Keys and heads, {dimensions} dimensions on two principal axes")
    first = scene.first_answer
    facts = {"first": len(read) if first is None else first}
    view = View("space", title, {"read": read, "write": write, "strength": strength}, facts)
    return [view], {"read_head", "write_head", "write_strength"}


def _stack(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Superposition stacks, whose contents follow from their actions: push, pop and optionally no-op."""
    actions = traces.get("actions")
    known = {"top", "seen"} & traces.keys()
    if actions is None or not known or actions.shape[-1] > 3:
        return [], set()
    each = actions[:, None] if actions.ndim == 2 else actions
    names = ["push", "pop", "no-op"][: each.shape[-1]]
    views = []
    for number in range(each.shape[1]):
        which = f", stack {number + 1} of {each.shape[1]}" if each.shape[1] > 1 else ""
        source, weight = provenance(each[:, number])
        arrays = {"source": source + 1, "weight": weight, "actions": each[:, number]}
        views.append(View("stack", f"The stack{which}", arrays, {"names": names}))
    return views, {"actions", *known}


def provenance(actions: np.ndarray, deepest: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """The contents of the cells of a superposition stack, from its actions [T, 2 or 3] (push, pop, no-op).

    The stack is linear in the pushed values: with P_t[d, s] the weight of the value of step s in cell d after step t,

        P_t[d] = push_t P_{t-1}[d - 1] + pop_t P_{t-1}[d + 1] + no-op_t P_{t-1}[d],    P_{t-1}[-1, s] = [s = t]

    Returns the step with the largest weight in each of the top cells, int[T, D] (-1: none above 0.02), and that weight,
    float[T, D]. D is `deepest`, or less if the stack is never that high.
    """
    steps = len(actions)
    shares = np.zeros((steps + 1, steps))
    sources, weights = [], []
    for step, row in enumerate(np.asarray(actions, np.float64)):
        new = np.zeros((1, steps))
        new[0, step] = 1.0
        pushed = np.concatenate([new, shares[:-1]])
        popped = np.concatenate([shares[1:], np.zeros((1, steps))])
        shares = row[0] * pushed + row[1] * popped + (row[2] * shares if len(row) > 2 else 0)
        weights.append(shares[:deepest].max(axis=1))
        sources.append(np.where(weights[-1] > USED, shares[:deepest].argmax(axis=1), -1))
    source, weight = np.stack(sources), np.stack(weights)
    high = max(1, int(np.max(np.nonzero((source >= 0).any(axis=0))[0], initial=0)) + 1)
    return source[:, :high], weight[:, :high]


def _tapes(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Heads on tapes, a view for each tape of each layer, with the clearest movements first. Cells are counted from the
    first position of the read head."""
    views: list[tuple[float, int, View]] = []
    taken: set[str] = set()
    layers = [name.removesuffix("read_position") for name in traces if name.endswith("read_position")]
    for number, layer in enumerate(layers):
        heads = {"read": traces[f"{layer}read_position"], "write": traces.get(f"{layer}write_position")}
        if heads["write"] is None or heads["read"].ndim != 3:
            continue
        taken |= {f"{layer}{name}" for name in ("read_position", "write_position", "jump_target")}
        for tape in range(heads["read"].shape[1]):
            read, write = (np.asarray(heads[name][:, tape], np.float64) for name in ("read", "write"))
            used = np.nonzero((np.abs(read) + np.abs(write)).max(axis=0) > VISITED)[0]
            cells = np.arange(used.min(initial=read.shape[1] - 1), used.max(initial=0) + 1)
            origin = int(np.abs(read[0]).argmax())
            view = View(
                "slots",
                f"Layer {number + 1} of {len(layers)}, tape {tape + 1} of {heads['read'].shape[1]}",
                {"read:read head": read[:, cells], "write:write head": write[:, cells]},
                {"columns": [str(cell - origin) for cell in cells], "what": "cell", "group": "tapes"},
            )
            # A movement is clear if the head has a high weight on one cell at a time and visits many cells.
            walked = np.abs(read).max(axis=1).mean() * len(set(np.abs(read).argmax(axis=1).tolist()))
            views.append((walked, len(views), view))
    views.sort(key=lambda ranked: (-ranked[0], ranked[1]))
    return [view for _, _, view in views], taken


def _slot_facts(columns: list[str] | None) -> dict[str, Any]:
    """The labels of slots in a figure: their names, if known."""
    return {"columns": columns, "what": "the slot of" if columns else "slot"}


def _pointers(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Pointers of a pointer-augmented memory over the slots that hold the inputs."""
    views: list[View] = []
    taken: set[str] = set()
    known = (("pointer_weights", "Pointers over the memory", "pointer"), ("relation_weights", "Content heads", "head"))
    for name, title, what in known:
        weights = traces.get(name)
        if weights is None or weights.ndim != 3:
            continue
        heads = {f"read:{what} {number + 1}": weights[:, number] for number in range(weights.shape[1])}
        inputs, static = scene.inputs, scene.batch.input_mask.shape[1]
        columns = {static: inputs, static + 2: ["begin", *inputs, "end"]}.get(weights.shape[-1])
        heads = {name: values[:, : len(columns) if columns else None] for name, values in heads.items()}
        views.append(View("slots", title, heads, _slot_facts(columns)))
        taken.add(name)
    return views, taken | ({"address"} if taken else set())


def _walkers(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Heads that are at one slot of the input, which is between a begin and an end symbol."""
    places = traces.get("head")
    if places is None or places.ndim != 2 or not np.issubdtype(places.dtype, np.integer):
        return [], set()
    columns = ["begin", *scene.inputs, "end"]
    there = np.eye(max(len(columns), places.max() + 1))[places]
    heads = {f"read:head {number + 1}": there[:, number] for number in range(places.shape[1])}
    facts = _slot_facts(columns if len(columns) == there.shape[-1] else None)
    return [View("slots", "Heads over the input", heads, facts)], {"head"}


def _slots(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Weights of read and write heads over the used slots, with usage and links of these slots."""
    from lenmem.evaluation.plots.sown import slot_names

    heads: dict[str, np.ndarray] = {}
    for name in ("read_weights", "write_weights"):
        weights = traces.get(name)
        if weights is None or weights.ndim not in (2, 3):
            continue
        kind = name.removesuffix("_weights")
        each = weights[:, None] if weights.ndim == 2 else weights
        several = each.shape[1] > 1
        heads |= {f"{kind}:{kind} head{f' {n + 1}' if several else ''}": each[:, n] for n in range(each.shape[1])}
    if not heads or len({values.shape[-1] for values in heads.values()}) > 1:
        return [], set()
    taken = {"read_weights", "write_weights"} & traces.keys()
    columns = slot_names(scene, next(iter(heads.values())).shape[-1])
    largest = np.max([np.abs(values).max(axis=0) for values in heads.values()], axis=0)
    used = np.arange(len(columns)) if columns else np.nonzero(largest > USED)[0]
    if not used.size:
        used = np.arange(1)
    arrays = {name: values[:, used] for name, values in heads.items()}
    usage = traces.get("usage")
    if usage is not None and usage.ndim == 2 and usage.shape[1] == len(largest):
        arrays["usage:usage"] = usage[:, used]
        taken.add("usage")
    names = list(columns) if columns else [str(slot) for slot in used]
    title = "Reads and writes" if "write_weights" in taken else "What is read"
    views = [View("slots", title, arrays, {"columns": names, "what": "the slot of" if columns else "slot"})]
    link = traces.get("link")
    if link is not None and link.ndim == 3 and link.shape[1:] == (len(largest), len(largest)):
        kept = used[:MOST]
        facts = {"rows": names[:MOST], "columns": names[:MOST], "across": "from slot", "down": "to slot"}
        values = link[:, kept][:, :, kept]
        views.append(View("frames", "Links: which slot was written after which", {"values": values}, facts))
        taken.add("link")
    return views, taken


def _router(traces: dict[str, np.ndarray], scene: Scene) -> Found:
    """Attention of an encoder that applies one layer repeatedly: a matrix for each step and head."""
    attention = traces.get("attention")
    if attention is None or attention.ndim != 4 or "column" not in scene.traces:
        return [], set()
    real = int(scene.trace("column").sum())
    names = ["begin", *scene.inputs, "end"]
    names = names if len(names) == real else [str(number) for number in range(real)]
    facts = {"rows": names, "columns": names, "across": "source", "down": "target", "group": "heads"}
    heads = attention.shape[1]
    return [
        View("frames", f"Attention, head {head + 1} of {heads}", {"values": attention[:, head, :real, :real]}, facts)
        for head in range(min(heads, PANELS))
    ], {"attention"}


BUILDERS: Sequence[Builder] = (_space, _stack, _tapes, _pointers, _walkers, _slots, _router)
"""Applied in this order. A trace is used by the first builder that takes it."""


def _rest(name: str, values: np.ndarray, steps: int, scene: Scene) -> list[View]:
    """The views of any other trace: lines if it has few numbers for each step, else heat maps or matrices."""
    title = name.replace("_", " ").replace("encoder/", "").replace("/", ", ")
    title = title[:1].upper() + title[1:]
    if not values.size or not values.ndim:
        return []
    if values.shape[0] == steps and steps > 1:
        flat = values.reshape(steps, -1)
        if flat.shape[1] <= FEW:
            shape = values.shape[1:]
            names = [".".join(str(n + 1) for n in at) for at in np.ndindex(shape)] if shape else [title.lower()]
            return [View("lines", title, {"values": flat}, {"names": names})]
        if values.ndim == 3 and min(values.shape[1:]) > FEW:
            return [View("frames", title, {"values": values[:, :MOST, :MOST]}, {})]
        kept, note = _most_varied(flat)
        facts = {"rows": [str(row) for row in kept], "down": f"number{note}"}
        return [View("map", title, {"values": flat[:, kept]}, facts)]
    matrix = values.reshape(-1, values.shape[-1]) if values.ndim != 3 else values
    panels = matrix[None] if matrix.ndim == 2 else matrix
    named, which = {size: scene.naming(size)[0] for size in set(panels.shape[1:])}, len(panels)
    return [
        View(
            "still",
            title + (f", {number + 1} of {which}" if which > 1 else ""),
            {"values": panel[:MOST, :MOST]},
            {"rows": _cut(named[panel.shape[0]]), "columns": _cut(named[panel.shape[1]]), "group": name},
        )
        for number, panel in enumerate(panels[:PANELS])
    ]


def _most_varied(flat: np.ndarray) -> tuple[np.ndarray, str]:
    """The columns of [T, k] that vary most, at most `MOST`, in their order, and a note if there are others."""
    if flat.shape[1] <= MOST:
        return np.arange(flat.shape[1]), ""
    return np.sort(
        np.argsort(-flat.std(axis=0), kind="stable")[:MOST]
    ), f", the {MOST} of {flat.shape[1]} that vary most"


def _cut(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names[:MOST])
