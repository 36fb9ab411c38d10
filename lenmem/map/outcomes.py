"""The outcomes of cells: records, reaches, the table and its picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lenmem import models, tasks
from lenmem.evaluation.lengths import LengthCurve
from lenmem.files import make_directory, read_json, write_whole
from lenmem.map.cells import LEARNED, NETWORKS, TASKS, Budget, Cell, cells, plain_budget, settings_of


def read(cell: Cell, budget: Budget | None, results: Path) -> dict[str, Any] | None:
    """The record of a cell with its present settings; None if there is none.

    ValueError if it was made with another budget, since cells of two budgets cannot be compared. `budget` None: any.
    """
    path = cell.path(results)
    if not path.exists():
        return None
    record = read_json(path)
    if budget is not None and record["budget"] != plain_budget(budget):
        different = [name for name, value in plain_budget(budget).items() if record["budget"].get(name) != value]
        raise ValueError(
            f"{path} was made with another budget ({', '.join(different)}); give another directory with --results"
        )
    return record if record["cell"] == settings_of(cell) else None


def reach_of(curve: LengthCurve) -> float | None:
    """The reach of a cell, relative to the longest training length; None if it has not learned its training lengths."""
    medians = np.median(np.nan_to_num(curve.values["exact_match"]), axis=0)
    longest = curve.train_lengths[1]
    failed = curve.lengths[medians < LEARNED]
    first = failed.min(initial=curve.lengths.max() + 1)
    if first <= longest:
        return None
    return float(curve.lengths[curve.lengths < first].max() / longest)


def trained_accuracy(curve: LengthCurve) -> float:
    """The lowest median exact match at a training length."""
    trained = curve.lengths <= curve.train_lengths[1]
    return float(np.median(np.nan_to_num(curve.values["exact_match"][:, trained]), axis=0).min())


def described(record: Mapping[str, Any]) -> str:
    """The outcome of a cell in one line."""
    curve = LengthCurve.from_dict(record["curve"])
    reach, longest = reach_of(curve), curve.train_lengths[1]
    how = f"{record['steps']} steps at rate {record['rate']:g}"
    if any(loss is None for loss in record["final_loss"]):
        how += f", {sum(loss is None for loss in record['final_loss'])} of {curve.seeds} seeds diverged"
    if reach is None:
        lowest = trained_accuracy(curve)
        return f"not learned in {how}: exact match {100 * lowest:.0f}% at a length of up to {longest} {curve.unit}"
    end = f"up to {round(reach * longest)} {curve.unit}, {reach:.3g} times the longest of training"
    return f"{end}, after {how}"


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """A map: a row for each network and a column for each task."""

    networks: tuple[str, ...]
    tasks: tuple[str, ...]
    records: Mapping[Cell, Mapping[str, Any]]
    """The cells that were trained."""
    refusals: Mapping[Cell, str]
    """The cells that are not possible, with the reason."""

    def curve(self, cell: Cell) -> LengthCurve | None:
        """The curve of a cell, if it was trained."""
        return LengthCurve.from_dict(self.records[cell]["curve"]) if cell in self.records else None

    def text(self, cell: Cell) -> str:
        """`2.5x`; `(31%)`: not learned; `-`: not possible; nothing: not trained."""
        if cell in self.refusals:
            return "-"
        curve = self.curve(cell)
        if curve is None:
            return ""
        reach = reach_of(curve)
        return f"({100 * trained_accuracy(curve):.0f}%)" if reach is None else f"{reach:.3g}x"

    def rows(self) -> list[tuple[str, list[str]]]:
        """Each network with the texts of its cells."""
        return [(network, [self.text(Cell(task, network)) for task in self.tasks]) for network in self.networks]

    def lines(self) -> list[str]:
        """A line of text about each cell."""
        trained = [f"{cell.name}: {described(record)}" for cell, record in self.records.items()]
        return trained + [f"{cell.name}: not possible, {reason}" for cell, reason in self.refusals.items()]


def with_recorded(chosen: Sequence[Cell], budget: Budget, results: Path) -> list[Cell]:
    """These cells and all others that have a record, in the order of the map. ValueError as in `read`."""
    networks, headings = (dict.fromkeys(names) for names in ((*NETWORKS, *models.names()), (*TASKS, *tasks.names())))
    every, wanted = (Cell(heading, network) for heading in headings for network in networks), set(chosen)
    return [cell for cell in every if read(cell, budget, results) or cell in wanted]


def outcomes(chosen: Sequence[Cell], results: Path) -> Outcomes:
    """The map of these cells, as far as they were trained. A row also shows what its network cannot take."""
    networks = tuple(dict.fromkeys(cell.network for cell in chosen))
    headings = tuple(dict.fromkeys(cell.task for cell in chosen))
    refusals = {cell: reason for cell in cells(networks, headings) if (reason := cell.refusal)}
    records = {cell: record for cell in chosen if cell not in refusals and (record := read(cell, None, results))}
    return Outcomes(networks, headings, records, refusals)


def save_map(found: Outcomes, results: Path) -> None:
    """Writes `README.md`, the table and a line about each cell, and `map.png`."""
    from lenmem.evaluation.plots import plot_reach

    make_directory(results)
    write_whole(results / "README.md", markdown(found).encode())
    rows = [[found.curve(Cell(task, network)) for task in found.tasks] for network in found.networks]
    reach = [[np.nan if curve is None else reach_of(curve) or 0.0 for curve in row] for row in rows]
    texts = [texts for _, texts in found.rows()]
    plot_reach(found.networks, found.tasks, np.array(reach), results / "map.png", texts=texts)


def markdown(found: Outcomes) -> str:
    """The map as a page."""
    record = next(iter(found.records.values()), None)
    lines = ["# The map", "", "Generated by `lenmem map` from the records beside it; do not edit.", ""]
    if record is not None:
        budget = Budget(**(record["budget"] | {"rates": tuple(record["budget"]["rates"])}))
        lines += [
            f"Every network has about {budget.parameters:,} parameters and is trained for {budget.seconds:g} s of",
            f"processor time for each of {budget.seeds} seeds, at the best of the rates "
            f"{', '.join(f'{rate:g}' for rate in budget.rates)}, chosen by trainings of",
            f"{budget.search_seconds:g} s and their loss at the training lengths.",
            "",
        ]
    lines += [
        "A cell shows how far the network generalises: the longest measured length, relative to the longest of",
        f"training, up to which the median exact match stays at {100 * LEARNED:.0f}%. In brackets, for a network that",
        "did not learn its training lengths: the lowest exact match there. `-`: the network cannot take the task. An",
        "empty cell is not trained yet.",
        "",
        "![The map](map.png)",
        "",
        "| network | " + " | ".join(found.tasks) + " |",
        "| --- |" + " ---: |" * len(found.tasks),
    ]
    lines += [f"| {network} | " + " | ".join(texts) + " |" for network, texts in found.rows()]
    lines += ["", "## Each cell", "", *(f"* {line}" for line in found.lines())]
    return "\n".join(lines) + "\n"
