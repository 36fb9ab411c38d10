"""The verb `beyond`: trained on short lengths, measured at long ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lenmem.cli.terminal import plain_report, say
from lenmem.fields import PositiveInt
from lenmem.models import name_of
from lenmem.options import parse


@dataclasses.dataclass(frozen=True)
class Beyond:
    """Train on lengths up to 16, measure up to 1,024.

    An entry with a record is printed, not trained again.

    Forms:
      lenmem beyond                         the tables of all records
      lenmem beyond TASK                    a task's entry, or its record
      lenmem beyond TASK --idea NAME        another network, or an ablation
      lenmem beyond --record                the record table
      lenmem beyond TASK --record           repeat a record in a new run
    """

    idea: str | None = None
    """Another experiment of the task's configuration. None: the task's own entry."""
    record: bool = False
    """The record table; with a task, repeat the training that holds its record."""
    rounds: PositiveInt = 8
    """Most rounds of training, the first included; the others train seeds that are not exact. 1: no restarts."""
    again: bool = False
    """Train even if there is a record."""
    results: Path = Path("results/beyond")
    """Directory of the records."""
    runs: Path = Path("runs/beyond")
    """Directory of the runs."""


def go_beyond(arguments: list[str]) -> None:
    """`lenmem beyond [TASK] [--idea NAME] [--record]`."""
    from lenmem import beyond

    task = arguments[0] if arguments and not arguments[0].startswith("-") else None
    options = parse(Beyond, "beyond", arguments[1:] if task else arguments)
    results, runs = options.results, options.runs
    if task is None:
        if options.idea or options.again or options.rounds != Beyond.rounds:
            raise ValueError("--idea, --again and --rounds go with a task, as in lenmem beyond copy --again")
        records = beyond.read_records(results)
        for table in [beyond.best] if options.record else [beyond.overview, beyond.best]:
            _say_lines(*table(records))
        if records:
            beyond.save_page(results)
        return
    entry = beyond.entry_of(task, options.idea)
    if options.record and (options.idea or options.again):
        raise ValueError("--record repeats the best result, in a new directory; it takes neither --idea nor --again")
    if options.record:
        entry = beyond.fastest(task, beyond.read_records(results))
        results = runs = beyond.again(entry, runs)
    record = None if options.again or options.record else entry.record(results)
    if record is not None and options.rounds != Beyond.rounds:
        raise ValueError(f"--rounds has no effect: {entry.name} has a record; --again trains it once more")
    if record is None:
        if options.again and beyond.finished(runs / entry.name):
            runs = beyond.again(entry, runs)
        beyond.check_page(results)
        say(f"training {name_of(entry.experiment.model)} on {entry.name}")
        told = plain_report(entry.experiment.training.steps)
        record = beyond.run_entry(entry, results=results, runs=runs, report=told, rounds=options.rounds)
        beyond.save_page(results)
    _say_lines(*beyond.tried([record]))
    say(f"{results / entry.name}.json")


def _say_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A wide table, a line for each row, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    say("")
