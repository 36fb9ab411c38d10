"""A registry of pictures and the traces they need. The file of each paper registers its own.

    @draws({"read_head": 3, "write_head": 3})
    def _heads(scene, target): ...

is called whenever a network has sown both traces with that number of axes, including the batch.
`lenmem.evaluation.plots.sown` draws the traces that no picture takes. Every trace is therefore drawn or listed in
`CONTEXT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from lenmem.evaluation.plots.scene import Scene

Target = Callable[[str], Path]
"""Name of a file -> its path."""
Drawer = Callable[[Scene, Target], None]
Axes = Mapping[str, int | tuple[int, ...]]
"""Name of a trace -> the number of axes it has, or may have."""

CONTEXT = {
    "valid": "which steps are real",
    "decoding": "which steps answer: drawn as a line where answering begins",
    "token": "the token read at each step: drawn as the names of steps",
}
"""Traces that are not drawn themselves but affect how others are drawn."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A way to draw some traces."""

    draw: Drawer
    needs: Axes
    """Traces that are needed: the picture is drawn if all of these were sown."""
    also: Axes
    """Optional traces: they are part of the picture if they were sown."""
    layers: bool
    """The names are per layer: anything may come before the last slash."""
    examples: bool
    """The picture shows many examples, not one."""

    def takes(self, scene: Scene) -> set[str]:
        """The traces of a scene that the picture draws; none if a needed one is missing."""

        def those(wanted: Axes) -> dict[str, str]:
            """Trace -> the registered name that it matches."""
            found = {name: name.rpartition("/")[2] if self.layers else name for name in scene.traces}
            return {name: short for name, short in found.items() if _fits(scene.traces[name].ndim, wanted.get(short))}

        needed = those(self.needs)
        return {*needed, *those(self.also)} if set(needed.values()) == self.needs.keys() else set()


PICTURES: list[Picture] = []
"""All registered pictures. If two draw the same trace, the first one is used."""


def draws(
    needs: Axes, also: Axes = MappingProxyType({}), *, layers: bool = False, examples: bool = False
) -> Callable[[Drawer], Drawer]:
    """Registers a function as the picture of some traces; the arguments are the fields of `Picture`."""

    def register(drawer: Drawer) -> Drawer:
        PICTURES.append(Picture(drawer, needs, also, layers, examples))
        return drawer

    return register


def _fits(axes: int, wanted: int | tuple[int, ...] | None) -> bool:
    """Whether a trace with this number of axes matches; without an expected number it does not."""
    return wanted is not None and axes in ((wanted,) if isinstance(wanted, int) else wanted)
