"""Measuring many rows of the papers' tables, several at a time, each in a single-threaded process of its own.

One training of a small network gains little from a second core; two trainings gain all of it. `run_queue` starts
`lenmem reproduce CONFIG --rows ROW` for one row after another. A row that has a record is skipped, and one that was cut
off is resumed, so that the same command always goes on where the last one stopped.
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
    """The folder of its configuration, and of its record."""

    def record(self, results: Path) -> dict[str, Any] | None:
        """What was measured of this very row; None if it was not."""
        return recorded(results / self.paper / f"{self.name}.json", self.row)


def read_queue(queue: str | os.PathLike[str]) -> list[Entry]:
    """The rows of a file, in its order, or all rows of a paper.

    A line of a file is a configuration and names of its rows, all of them if none is named; `#` starts a comment. A
    paper is one of `lenmem.papers`. ValueError for anything else, with the line where it stands.
    """
    path = Path(queue)
    if not path.is_file():
        if os.fspath(queue) not in papers.names():
            raise ValueError(f"{queue} is no file, and no paper.{choices(queue, papers.names())}")
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
        paper = configs.find(config).parent.name  # Once for all rows: it lists the configurations.
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
    """Measure the rows that have no record, in their order; returns those that failed.

    Each worker is a process of one thread. What a row prints goes to `runs/<paper>/<row>.log`. At a signal the workers
    are told to stop, which saves their runs, and are waited for; then KeyboardInterrupt. A row that fails is named,
    with the last line it printed, and the others go on.

    Args:
        entries: rows, as `read_queue` gives them.
        workers: rows measured at the same time.
        results: folder of the records.
        runs: folder of the runs.
        say: told what starts, ends and is left.
        command: what starts lenmem.
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
        raise KeyboardInterrupt("stopped; the same command goes on")
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
    """Row -> seconds it may take, from the records of its paper; rows of which nothing is known are missing.

    The median seconds a seed and step of the records most like the row, those of its model and task, of its model, or
    of its task, times its own seeds and steps.
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
    """`12 left, about 3.5 h`: rows under way are counted whole."""
    known = [seconds[entry.name] for entry in entries if entry.name in seconds]
    unknown = len(entries) - len(known)
    parts = [f"{len(entries)} left"]
    if known:
        parts.append(f"about {duration(sum(known) / workers)}")
    if unknown and entries:
        parts.append(f"{unknown} of them of unknown length")
    return ", ".join(parts)


def _start(entry: Entry, results: Path, runs: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """The process that measures a row."""
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
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops its workers in order.
        )


def _log(entry: Entry, runs: Path) -> Path:
    return runs / entry.paper / f"{entry.name}.log"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1]} ({log})" if lines else f"it printed nothing ({log})"
