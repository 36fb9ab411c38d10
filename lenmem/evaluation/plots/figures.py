"""The papers' figures of trained networks, by name. The file of each paper registers its own.

    @redraws("lantm-3", of="example", length=7, shows="writes and reads on the sphere of keys")
    def _figure_3(trials, target): ...

A figure is drawn from one or more trained networks, so its drawer gets a list of `Trial`; figures of accuracy by length
get the curves instead. `lenmem.figures.draw_figure` makes both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from lenmem.errors import choices
from lenmem.evaluation.plots.registry import Target
from lenmem.evaluation.plots.scene import Scene

DrawnFrom = Literal["example", "trials", "lengths", "curves"]
"""What a figure is drawn from: one example for each run, many examples for each seed of each run, many examples of
several lengths for each run, or the curves of runs or records."""


class Trial(NamedTuple):
    """A trained network on one example or on many."""

    name: str
    """Name of the run; with the step, if that is not the last."""
    seed: int
    scene: Scene
    length: int
    score: float | None = None
    """Mean accuracy by length, for figures of `trials`."""


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper, redrawn from runs."""

    draw: Callable[[Sequence[Any], Target], None]
    """Gets trials, or curves, and a function from the name of a part (or "") to its path."""
    of: DrawnFrom
    shows: str
    """What it shows, in a line."""
    length: int | None
    """Length of the examples in the paper; None: the longest training length."""


FIGURES: dict[str, PaperFigure] = {}
"""All registered figures by name: the paper's and the number, or a word where the paper has no such figure."""


def redraws(
    name: str, *, of: DrawnFrom, shows: str, length: int | None = None
) -> Callable[[Callable[[Sequence[Any], Target], None]], Callable[[Sequence[Any], Target], None]]:
    """Registers a function as a paper's figure; the arguments are the fields of `PaperFigure`."""

    def register(draw: Callable[[Sequence[Any], Target], None]) -> Callable[[Sequence[Any], Target], None]:
        FIGURES[name] = PaperFigure(draw, of, shows, length)
        return draw

    return register


def figure(name: str) -> PaperFigure:
    """The figure with this name. Raises ValueError for an unknown one."""
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}.{choices(name, sorted(FIGURES), every=True)}")
    return FIGURES[name]


def parts(trials: Sequence[Trial], *names: str) -> list[list[str]]:
    """Names of the files of each trial: those given, after the trial's own name if there are several trials."""
    own = [trial.name if len(trials) > 1 else "" for trial in trials]
    return [["-".join(filter(None, (prefix, name))) for name in names] for prefix in own]
