"""Measuring many rows of the papers' tables, several at a time, each in its own single-threaded process.

Training a small network gains little from a second core; two trainings in parallel use it fully. `run_queue` starts
`lenmem reproduce CONFIG --rows ROW` for one row after another. Rows with a record are skipped and interrupted rows are
resumed, so the same command always continues where the last one stopped.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lenmem import configs, papers, stopping
from lenmem.errors import choices
from lenmem.progress import duration
from lenmem.reproduce import Row, read_record, recorded, rows_of, select

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""XLA_FLAGS of a worker."""
POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of a queue."""

    config: str
    """Name or path of the configuration."""
    name: str
    """Name of the row."""
    row: Row
    paper: str
    """Directory name of its configuration and of its record."""

    def record(self, results: Path) -> dict[str, Any] | None:
        """The record of this exact row; None if it was not measured."""
        return recorded(results / self.paper / f"{self.name}.json", self.row)


def read_queue(queue: str | os.PathLike[str]) -> list[Entry]:
    """The rows of a file, in its order, or all rows of a paper.

    A line of a file is a configuration and the names of its rows, or of none for all rows; `#` starts a comment. A
    paper is a name in `lenmem.papers`. Raises ValueError for anything else, with the line number.
    """
    path = Path(queue)
    if not path.is_file():
        if os.fspath(queue) not in papers.names():
            raise ValueError(f"{queue} is neither a file nor a paper.{choices(queue, papers.names())}")
        named = [name for name in configs.names() if name.startswith(f"{queue}/")]
        return _entries((name, ()) for name in named if getattr(configs.module_of(name), "rows", None))
    entries = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            entries += _entries([(words[0], words[1:])] if words else [])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return entries


def _entries(lines: Iterable[tuple[str, Sequence[str]]]) -> list[Entry]:
    entries = []
    for config, names in lines:
        paper = configs.find(config).parent.name  # outside the loop, since it lists all configurations
        entries += [Entry(config, name, row, paper) for name, row in select(rows_of(config), names or None).items()]
    return entries


def run_queue(
    entries: Sequence[Entry],
    *,
    workers: int = 2,
    results: Path,
    runs: Path,
    say: Callable[[str], None] = print,
    command: Sequence[str] = (sys.executable, "-m", "lenmem"),
) -> list[Entry]:
    """Measures the rows without a record, in order; returns the rows that failed.

    Each worker is a process with one thread. The output of a row goes to `runs/<paper>/<row>.log`. At a signal the
    workers are told to stop, save their runs and are waited for; then KeyboardInterrupt is raised. If a row fails, its
    name and last line of output are reported, and the other rows continue.

    Args:
        entries: rows, as returned by `read_queue`.
        workers: number of rows measured at the same time.
        results: directory of the records.
        runs: directory of the runs.
        say: called with a line of text at every start, end and change of what is left.
        command: the command that starts lenmem.
    """
    waiting = [entry for entry in entries if entry.record(results) is None]
    seconds = estimates(waiting, results)
    say(
        f"{len(entries) - len(waiting)} of {len(entries)} rows were measured before; {_left(waiting, seconds, workers)}"
    )
    running: dict[subprocess.Popen[bytes], tuple[Entry, float]] = {}
    failed = []
    with stopping.heeded() as stop, _stopped_at_the_end(running):
        stop.alone = False
        while (waiting or running) and not stop.is_set():
            while waiting and len(running) < workers:
                entry = waiting.pop(0)
                say(f"start {entry.name}")
                running[_start(entry, results, runs, command)] = entry, time.monotonic()
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                entry, started = running.pop(process)
                if process.returncode == 0:
                    how = f"done  {entry.name} in {duration(time.monotonic() - started)}"
                else:
                    failed.append(entry)
                    how = f"FAILED {entry.name}, exit status {process.returncode}: {_last_line(_log(entry, runs))}"
                say(f"{how}; {_left([*waiting, *(entry for entry, _ in running.values())], seconds, workers)}")
    if stop.is_set():
        raise KeyboardInterrupt("stopped; the same command continues")
    return failed


@contextmanager
def _stopped_at_the_end(running: Iterable[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def estimates(entries: Iterable[Entry], results: Path) -> dict[str, float]:
    """Row -> estimated seconds, from the records of its paper; rows without an estimate are missing.

    The estimate is the median time per seed and step of the most similar records (same model and task, same model, or
    same task), times the row's number of seeds and steps.
    """
    known: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    found = {}
    for entry in entries:
        if entry.paper not in known:
            records = [read_record(path) for path in sorted((results / entry.paper).glob("*.json"))]
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


def _left(entries: Sequence[Entry], seconds: Mapping[str, float], workers: int) -> str:
    """`12 left, about 3.5 h`. A row in progress counts in full."""
    known = [seconds[entry.name] for entry in entries if entry.name in seconds]
    unknown = len(entries) - len(known)
    parts = [f"{len(entries)} left"]
    if known:
        parts.append(f"about {duration(sum(known) / workers)}")
    if unknown and entries:
        parts.append(f"{unknown} of them of unknown length")
    return ", ".join(parts)


def _start(entry: Entry, results: Path, runs: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the process that measures a row."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    alone = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folders = ["--results", os.fspath(results), "--runs", os.fspath(runs)]
    log = _log(entry, runs)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "reproduce", entry.config, "--rows", entry.name, *folders],
            env=os.environ | alone,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops its workers in order
        )


def _log(entry: Entry, runs: Path) -> Path:
    return runs / entry.paper / f"{entry.name}.log"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1]} ({log})" if lines else f"it printed nothing ({log})"
