"""Measuring many rows of the papers' tables, several at a time.

`run_queue` starts `lenmem reproduce CONFIG --rows ROW` for one row after another (`lenmem.workers`). Rows with a record
are skipped and interrupted rows are resumed, so the same command always continues an interrupted queue.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lenmem import configs, papers
from lenmem.errors import choices
from lenmem.files import read_json
from lenmem.reproduce import Row, rows_of, select
from lenmem.workers import LENMEM, Job, run_jobs


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of a queue."""

    config: str
    """Name or path of the configuration."""
    name: str
    """Name of the row."""
    row: Row
    paper: str
    """Name of the directory of the configuration and of the record."""

    def record(self, results: Path) -> dict[str, Any] | None:
        """The record of exactly this row; None if it was not measured."""
        return self.row.record(results / self.paper / f"{self.name}.json")

    def job(self, results: Path, runs: Path) -> Job:
        """The job that measures it."""
        folders = ("--results", os.fspath(results), "--runs", os.fspath(runs))
        log = runs / self.paper / f"{self.name}.log"
        run = runs / self.paper / (self.row.trained_as or self.name)
        return Job(self.name, ("reproduce", self.config, "--rows", self.name, *folders), log, os.fspath(run))


def read_queue(queue: str | os.PathLike[str]) -> list[Entry]:
    """The rows of a file, in its order, or every variant of every row of a paper, a name in `lenmem.papers`.

    The queue of a paper leaves out grids and sweeps, the rows of which are searches for settings: a file can name them.
    A line of the file is a configuration, optionally followed by names of its rows; the default is all rows. `#` starts
    a comment. A row that is named twice is measured once. Raises ValueError, with the line number, for unknown names.
    """
    path = Path(queue)
    if not path.is_file():
        if os.fspath(queue) not in papers.names():
            raise ValueError(f"{queue} is neither a file nor a paper.{choices(queue, papers.names())}")
        named = [name for name in configs.names() if name.startswith(f"{queue}/") and not configs.is_search(name)]
        return _entries((name, ()) for name in named if getattr(configs.module_of(name), "rows", None))
    entries = []
    rows = functools.cache(rows_of)  # several lines may have the same configuration
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            entries += _entries([(words[0], words[1:])] if words else [], rows)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return list({(entry.paper, entry.name): entry for entry in entries}.values())


def _entries(
    lines: Iterable[tuple[str, Sequence[str]]], rows: Callable[[str], dict[str, Row]] = rows_of
) -> list[Entry]:
    entries = []
    for config, names in lines:
        paper = configs.find(config).parent.name  # outside the loop, since it lists all configurations
        entries += [Entry(config, name, row, paper) for name, row in select(rows(config), names or None).items()]
    return entries


def run_queue(
    entries: Sequence[Entry],
    *,
    workers: int = 2,
    results: Path,
    runs: Path,
    say: Callable[[str], None] = print,
    command: Sequence[str] = LENMEM,
) -> list[str]:
    """Measures the rows without a record, in order; returns the names of those that failed.

    Each row runs in a separate process (`run_jobs`), whose output is written to `runs/<paper>/<row>.log`.

    Args:
        entries: rows, as returned by `read_queue`.
        workers: number of rows measured at the same time.
        results: directory of the records.
        runs: directory of the runs.
        say: called with a line of text at every start and end of a row.
        command: the command that starts lenmem.
    """
    waiting = [entry for entry in entries if entry.record(results) is None]
    failed = run_jobs(
        [entry.job(results, runs) for entry in waiting],
        workers=workers,
        say=say,
        seconds=estimates(waiting, results),
        heading=f"{len(entries) - len(waiting)} of {len(entries)} rows were measured before; ",
        command=command,
    )
    return [job.name for job in failed]


def estimates(entries: Iterable[Entry], results: Path) -> dict[str, float]:
    """Row -> estimated seconds, from the records of its paper; rows without an estimate are missing.

    The estimate is the median time per seed and step of the most similar records (same model and task, same model, or
    same task), times the row's number of seeds and steps.
    """
    known: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    found = {}
    for entry in entries:
        if entry.paper not in known:
            records = [*_readable(results / entry.paper)]
            known[entry.paper] = [
                (record["where"], record["wall_seconds"] / (record["steps"] * len(record["alive"])))
                for record in records
                if record.get("where") and record.get("steps")
            ]
        training = entry.row.experiment.training
        for columns in (("model", "task", "regime"), ("model", "task"), ("model",), ("task",)):
            alike = [
                cost
                for where, cost in known[entry.paper]
                if all(where.get(column) == entry.row.where.get(column) for column in columns)
            ]
            if alike:
                found[entry.name] = statistics.median(alike) * training.steps * training.seeds
                break
    return found


def _readable(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The records in a folder, without damaged ones, whose rows are measured again."""
    for path in sorted(folder.glob("*.json")):
        with suppress(ValueError):
            yield read_json(path)
