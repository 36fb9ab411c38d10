"""The verbs that fill tables: `reproduce` and `map`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from lenmem import map as maps
from lenmem import workers
from lenmem.cli.terminal import console, fail, plain_report, say
from lenmem.cli.words import subject_ahead
from lenmem.experiment import Experiment
from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.options import parse


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Measure rows of a paper's table, and print them beside the paper's.

    Rows with a record are printed, not measured again.
    """

    queue: str | None = None
    """Instead of a configuration: every variant of every row of a paper, or the rows of a file with a configuration and
    its rows on each line. Each row runs in a process with one thread; the same command continues after an
    interruption."""
    workers: PositiveInt = 2
    """Number of rows of a queue that run at the same time."""
    rows: tuple[str, ...] = ()
    """Names of rows. None given: the row of the configuration's own experiment."""
    results: Path = Path("results")
    """Directory of the records."""
    runs: Path = Path("runs")
    """Directory of the runs; interrupted runs are resumed."""
    again: bool = False
    """Measure rows again that have a record."""


@dataclasses.dataclass(frozen=True)
class Map:
    """Train networks on tasks with one budget; draw how far each goes.

    Cells trained before are kept: the same command continues the map.
    """

    networks: tuple[str, ...] = ()
    """Names of models. None given: those of the map."""
    tasks: tuple[str, ...] = ()
    """Headings of the map's tasks, or names of tasks. None given: those of the map."""
    budget: maps.Budget = maps.Budget()
    """The budget of each cell."""
    results: Path = Path("results/map")
    """Directory of the records, the table and the picture."""
    workers: NonNegativeInt = 2
    """Number of cells that are trained at the same time, each in a process with one thread. 0: in this process."""
    quick: bool = False
    """A small map in a few minutes, with its own budget, in runs/map."""


def reproduce(arguments: list[str]) -> None:
    """`lenmem reproduce CONFIG [--rows ...]` or `lenmem reproduce --queue FILE|PAPER [--workers 2]`."""
    from lenmem import records
    from lenmem import reproduce as rows

    if any(word == "--queue" or word.startswith("--queue=") for word in arguments):
        _run_queue(parse(Reproduce, "reproduce", arguments))
        return
    name, rest = subject_ahead(arguments, "reproduce", "CONFIG | --queue PAPER", Reproduce)
    options = parse(Reproduce, f"reproduce {shlex.quote(name)}", rest)
    if options.workers != Reproduce.workers:
        raise ValueError("--workers goes with --queue")

    def report(row: str, experiment: Experiment) -> Callable[[dict[str, Any]], None]:
        console.print(f"measuring {row}")
        return plain_report(experiment.training.steps)

    measured = rows.reproduce_config(
        name, options.rows, results=options.results, runs=options.runs, again=options.again, report=report
    )
    console.print(records.results_table(measured))


def _run_queue(options: Reproduce) -> None:
    from lenmem import queue

    if options.rows or options.again:
        raise ValueError("--rows and --again go with a configuration, not with --queue")
    failed = queue.run_queue(
        queue.read_queue(options.queue or ""),
        workers=options.workers,
        results=options.results,
        runs=options.runs,
        say=say,
    )
    if failed:
        fail(f"{len(failed)} rows failed: {', '.join(failed)}", 1)


def draw_map(arguments: list[str]) -> None:
    """`lenmem map [--networks ...] [--tasks ...]` or `lenmem map --quick`."""
    small: dict[str, Any] = {
        "networks": maps.QUICK_NETWORKS,
        "tasks": maps.QUICK_TASKS,
        "budget": maps.QUICK,
        "results": Path("runs/map"),
    }
    options = parse(Map, "map", arguments, **(small if "--quick" in arguments else {}))
    budget, results = options.budget, options.results
    chosen = maps.cells(options.networks, options.tasks)
    if workers.is_worker():  # of a map, whose own process writes the page
        for cell in chosen:
            maps.run_cell(cell, budget, results, say)
        return
    shown = maps.with_recorded(chosen, budget, results)
    failed = maps.run_map(chosen, budget, results, workers=options.workers, say=say)
    found = maps.outcomes(shown, results)
    maps.save_map(found, results)
    _say_map(found)
    say(f"{results}/: README.md, map.png, and a record for each cell")
    if failed:
        fail(f"{len(failed)} of {len(chosen)} cells failed: {', '.join(job.name for job in failed)}", 1)


def _say_map(found: maps.Outcomes) -> None:
    """The map as a table, and each cell in a line."""
    table = Table("network", *(escape(task) for task in found.tasks), box=None, pad_edge=False)
    for network, texts in found.rows():
        table.add_row(escape(network), *(escape(text) for text in texts))
    console.print(table)
    for line in found.lines():
        say(line)
