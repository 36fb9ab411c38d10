"""Which traces a picture is made of. The file of each paper registers its own.

    @draws({"read_head": 3, "write_head": 3})
    def _heads(scene, target): ...

is asked for whenever a network has sown both, with that number of axes, the batch included. What no picture takes is
drawn by `lenmem.evaluation.plots.sown`, so that everything in the traces is drawn or listed in `CONTEXT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from lenmem.evaluation.plots.scene import Scene

Target = Callable[[str], Path]
"""Name of a file -> where it is to be written."""
Drawer = Callable[[Scene, Target], None]
Axes = Mapping[str, int | tuple[int, ...]]
"""Name of a trace -> how many axes it has, or may have."""

CONTEXT = {
    "valid": "which steps are real",
    "decoding": "which steps answer: drawn as a line where answering begins",
    "token": "what each step reads: drawn as the names of steps",
}
"""Traces that are not drawn, since they say how others are."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """One way to draw some traces."""

    draw: Drawer
    needs: Axes
    """Drawn where all of these were sown."""
    also: Axes
    """These are in the picture too, where they were sown."""
    layers: bool
    """The names are those in each layer: what comes before the last slash may be anything."""
    examples: bool
    """It shows many examples, not one."""

    def takes(self, scene: Scene) -> set[str]:
        """The traces of a scene that it draws; none where one that it needs is missing."""

        def those(wanted: Axes) -> dict[str, str]:
            """Trace -> the name that is wanted."""
            found = {name: name.rpartition("/")[2] if self.layers else name for name in scene.traces}
            return {name: short for name, short in found.items() if _fits(scene.traces[name].ndim, wanted.get(short))}

        needed = those(self.needs)
        return {*needed, *those(self.also)} if set(needed.values()) == self.needs.keys() else set()


PICTURES: list[Picture] = []
"""All that are registered; of two for the same trace the first draws it."""


def draws(
    needs: Axes, also: Axes = MappingProxyType({}), *, layers: bool = False, examples: bool = False
) -> Callable[[Drawer], Drawer]:
    """Register a function as the picture of some traces; the arguments are the fields of `Picture`."""

    def register(drawer: Drawer) -> Drawer:
        PICTURES.append(Picture(drawer, needs, also, layers, examples))
        return drawer

    return register


def _fits(axes: int, wanted: int | tuple[int, ...] | None) -> bool:
    """A trace with so many axes is what a picture wants; it wants none without a number."""
    return wanted is not None and axes in ((wanted,) if isinstance(wanted, int) else wanted)
