"""Beyond: networks trained on lengths up to 16, measured at lengths up to 1,024.

Each task has a configuration `beyond/<task>`, whose `experiment` is the entry of the task. It is trained on short
lengths, and its parameters are those of the best validation at up to twice the longest training length. It is measured
at 2, 4, 8, .. times the longest training length; the last of these lengths is the goal of the task. The `ideas` of a
configuration are other experiments on the task, by name: other networks, and ablations.

    results/beyond/<task>.json            the record of an entry
    results/beyond/<task>-<idea>.json     the record of an idea
    results/beyond/README.md              the tables, generated from the records
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lenmem import configs, models
from lenmem.errors import choices
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.tables import percent
from lenmem.experiment import Experiment
from lenmem.files import read_json, write_whole
from lenmem.records import recorded, save_record
from lenmem.restarts import trained_until_exact
from lenmem.runs import measure
from lenmem.serialize import from_plain, to_plain
from lenmem.training import Optimizer, checkpoint
from lenmem.training.environment import describe_environment
from lenmem.training.run_directory import CHECKPOINTS, all_diverged

MET = 0.99
"""A goal is met if the median exact match at this length is at least this."""
FACTORS = (2, 4, 8, 16, 32, 64)
"""The measured lengths, relative to the longest training length. A task may have fewer."""
WANTED = 12
"""Number of tasks whose goals should be met."""
ROUNDS = 8
"""Most rounds of training in total, if seeds without an exact validation are trained again (`lenmem.restarts`)."""
SECONDS = 900
"""Processor time for each seed, in seconds, after which no round is started."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A network on a task."""

    task: str
    """Name of the configuration, without `beyond/`."""
    idea: str | None
    """Name of an idea; None: the entry of the task."""
    experiment: Experiment

    @property
    def name(self) -> str:
        """Name of its record and run."""
        return f"{self.task}-{self.idea}" if self.idea else self.task

    @property
    def command(self) -> str:
        """The command that measures it."""
        return shlex.join(["lenmem", "beyond", self.task, *(["--idea", self.idea] if self.idea else [])])

    @property
    def goal(self) -> int:
        """The longest measured length."""
        return max(self.experiment.evaluation.lengths_for(self.experiment.task))

    def record(self, results: Path) -> dict[str, Any] | None:
        """The record of this exact experiment, if there is one."""
        return recorded(results / f"{self.name}.json", self.experiment)


def task_names() -> tuple[str, ...]:
    """The tasks."""
    return tuple(name.removeprefix("beyond/") for name in configs.names() if name.startswith("beyond/"))


@functools.cache
def entries_of(task: str) -> Mapping[str | None, Entry]:
    """The entry of a task, under None, and those of its ideas. Raises ValueError for an unknown task.

    The result is cached, since the goal of a task is needed for each of its records.
    """
    if task not in task_names():
        raise ValueError(f"beyond has no task {task!r}.{choices(task, task_names(), listed='lenmem beyond')}")
    ideas: Mapping[str, Experiment] = getattr(configs.module_of(f"beyond/{task}"), "ideas", {})
    own = Entry(task, None, configs.load_config(f"beyond/{task}"))
    return {None: own} | {name: Entry(task, name, experiment) for name, experiment in ideas.items()}


def entry_of(task: str, idea: str | None = None) -> Entry:
    """The entry of a task or idea. Raises ValueError for an unknown task or idea."""
    entries = entries_of(task)
    if idea not in entries:
        ideas = [name for name in entries if name]
        raise ValueError(f"beyond/{task} has no idea {idea!r}.{choices(idea or '', ideas)}")
    return entries[idea]


def run_entry(
    entry: Entry,
    *,
    results: Path,
    runs: Path,
    report: Callable[[dict[str, Any]], None] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Trains (or resumes) and measures an entry; writes and returns its record.

    The run is in `runs/<name>`; a finished run is measured again. Seeds without an exact validation are trained again
    (`lenmem.restarts`). Raises the same errors as `lenmem.reproduce.trained`.
    """
    experiment, environment, started = entry.experiment, describe_environment(), time.process_time()
    folder = runs / entry.name
    fresh = not folder.exists()
    params, training = trained_until_exact(experiment, folder, rounds=rounds, seconds=SECONDS, report=report)
    spent = time.process_time() - started if fresh else None  # unknown for a resumed training
    curve = measure(experiment, params, label=entry.name, alive=np.array(training["alive"]))
    record = {
        "task": entry.task,
        "idea": entry.idea,
        "network": models.name_of(experiment.model) or type(experiment.model).__name__,
        "curves": [curve.to_dict()],
        **training,
        "processor_seconds": None if spent is None else round(spent, 1),
        "experiment": to_plain(experiment),
        "environment": environment,
        "command": entry.command,
    }
    save_record(results / f"{entry.name}.json", record, params)
    return record


def shares(record: Mapping[str, Any]) -> np.ndarray:
    """The exact match of a record by seed and length, float[S, L]; 0 for a diverged seed."""
    return np.nan_to_num(LengthCurve.from_dict(record["curves"][0]).values["exact_match"])


def met(record: Mapping[str, Any]) -> bool:
    """Whether the median exact match at the goal is at least 99%. False for an ablation that is not measured there, and
    for a task that there is no longer."""
    if record["task"] not in task_names():
        return False
    reaches = record["curves"][0]["lengths"][-1] >= entry_of(record["task"]).goal
    return bool(reaches and np.median(shares(record)[:, -1]) >= MET)


def seconds_of(record: Mapping[str, Any]) -> float:
    """Seconds for each seed: processor time, or, after an interruption, wall time."""
    seconds = record["processor_seconds"] or record["wall_seconds"]
    return seconds / len(record["alive"])


def read_records(results: Path) -> list[dict[str, Any]]:
    """The records of a directory in the order of the tasks, for each task its entry before its ideas."""
    records = [read_json(path) for path in sorted(results.glob("*.json"))]
    order = {name: number for number, name in enumerate(task_names())}
    return sorted(records, key=lambda record: (order.get(record["task"], len(order)), record["idea"] or ""))


# Tables: a header, and rows of cells ------------------------------------------------------------------------------

Table = tuple[list[str], list[list[str]]]


def overview(records: Iterable[Mapping[str, Any]]) -> Table:
    """The best record of each task at multiples of the training length: median / worst seed, in percent."""
    leading = best_records(records)
    header = ["task", "network", "trained", *(f"{factor}x" for factor in FACTORS), "goal", "met"]
    rows = []
    for task in task_names():
        if task not in leading:
            rows.append([task, "", "", *[""] * len(FACTORS), "", "not measured"])
            continue
        record = leading[task]
        verdict = "yes" if met(record) else "no"
        rows.append([task, record["network"], _trained(record), *_by_factor(record), _goal(record), verdict])
    return header, rows


def _rank(record: Mapping[str, Any]) -> tuple[float, ...]:
    return record["curves"][0]["lengths"][-1], float(np.median(shares(record)[:, -1])), -seconds_of(record)


def best_records(
    records: Iterable[Mapping[str, Any]], rank: Callable[[Mapping[str, Any]], Any] = _rank
) -> dict[str, Mapping[str, Any]]:
    """The record of each task with the highest rank, the first if several are equal.

    The default rank is the longest measured length, then the median exact match there, then the shorter training.
    """
    leading: dict[str, Mapping[str, Any]] = {}
    for record in records:
        there = leading.get(record["task"])
        if there is None or rank(record) > rank(there):
            leading[record["task"]] = record
    return leading


def tried(records: Iterable[Mapping[str, Any]]) -> Table:
    """All entries and ideas, at 2 and 8 times the longest training length and at the longest measured length.

    Tries are the networks trained for each seed: 1 in records that are older than restarts.
    """
    header = ["task", "idea", "network", "seconds a seed", "tries", "2x", "8x", "goal"]
    rows = []
    for record in records:
        cells = dict(zip(FACTORS, _by_factor(record), strict=True))
        last = _cell(shares(record)[:, -1])
        name = record["idea"] or "(the entry)"
        tries = ", ".join(map(str, record.get("tries", [1] * len(record["alive"]))))
        seconds = f"{seconds_of(record):.0f}"
        rows.append([record["task"], name, record["network"], seconds, tries, cells[2], cells[8], last])
    return header, rows


def best(records: Iterable[Mapping[str, Any]]) -> Table:
    """The record table: for each task whose goal is met, the entry or idea with the shortest training."""
    header = ["task", "network", "seconds a seed", "goal", "commit", "command"]
    rows = [
        [task, record["network"], f"{seconds_of(record):.0f}", _goal(record), _commit(record), f"`{record['command']}`"]
        for task, record in _holders(records).items()
    ]
    return header, rows


def _holders(records: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """For each task whose goal is met, the record with the shortest training among those that meet it."""
    return best_records(filter(met, records), lambda record: -seconds_of(record))


def fastest(task: str, records: Iterable[Mapping[str, Any]]) -> Entry:
    """The entry or idea with the shortest training that meets the goal. Raises ValueError if none does."""
    holders = _holders(records)
    if task not in holders:
        raise ValueError(f"there is no record of {task} that meets its goal; measure one with lenmem beyond {task}")
    return entry_of(task, holders[task]["idea"])


def families(records: Iterable[Mapping[str, Any]]) -> Table:
    """The networks by the number of tasks whose goal they meet with the same fields of model and training."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        tasks = found.setdefault((record["network"], _fields(record)), [])
        if met(record) and record["task"] not in tasks:
            tasks.append(record["task"])
    rows = [
        [network, fields, str(len(tasks)), ", ".join(tasks)]
        for (network, fields), tasks in sorted(found.items(), key=lambda item: -len(item[1]))
        if tasks
    ]
    return ["network", "fields", "tasks met", "which"], rows


def _fields(record: Mapping[str, Any]) -> str:
    """The fields of the model that differ from their defaults, and the main settings of the training."""
    experiment: Experiment = from_plain(record["experiment"])
    model, training, rule = experiment.model, experiment.training, experiment.training.optimizer
    changed = [
        f"{field.name}={getattr(model, field.name)!r}"
        for field in dataclasses.fields(model)
        if field.name not in ("parent", "name", "spec") and getattr(model, field.name) != field.default
    ]
    rate = f" at {rule.learning_rate:g}" if isinstance(rule, Optimizer) else ""
    grows = f", lengths grow for {training.growing}" if training.growing else ""
    return "; ".join([*changed, f"{training.steps} steps of {training.batch_size}{rate}{grows}"])


def _by_factor(record: Mapping[str, Any]) -> list[str]:
    curve = LengthCurve.from_dict(record["curves"][0])
    places = {round(length / curve.train_lengths[1], 6): i for i, length in enumerate(curve.lengths.tolist())}
    return [_cell(shares(record)[:, places[factor]]) if factor in places else "" for factor in FACTORS]


def _cell(values: np.ndarray) -> str:
    """`100.0 / 98.4`: the median and the worst seed in percent; one number if they are equal."""
    median, worst = percent(float(np.median(values))), percent(float(values.min()))
    return median if median == worst else f"{median} / {worst}"


def _trained(record: Mapping[str, Any]) -> str:
    first, last = record["curves"][0]["train_lengths"]
    return f"{first} to {last}"


def _goal(record: Mapping[str, Any]) -> str:
    curve = record["curves"][0]
    return f"{curve['lengths'][-1]:,} {curve['unit']}"


def _commit(record: Mapping[str, Any]) -> str:
    environment = record["environment"]
    return (environment["commit"] or "unknown")[:7] + ("*" if environment["dirty"] else "")


def markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """The tables as a page."""
    records = list(records)
    count = sum(map(met, best_records(records).values()))
    parts = [
        "## The tasks",
        "",
        f"The goal is met on {count} of {len(task_names())} tasks ({WANTED} are wanted). Each task is shown with its",
        "best network. A cell has the exact match in percent: the median and the worst seed, or one number if they are",
        "the same. 2x is twice the longest training length.",
        "",
        *_lines(overview(records)),
        "",
        "## One set of fields",
        "",
        *_lines(families(records)),
        "",
        "## Everything tried",
        "",
        *_lines(tried(records)),
        "",
        "## The record table",
        "",
        f"The shortest training that reaches {100 * MET:.0f}% at the goal in the median: seconds of one processor for",
        "each seed, with compilation and validation (wall time, if the training was interrupted). `lenmem beyond TASK",
        "--record` repeats an entry. A star marks a commit with changes that were not committed.",
        "",
        *_lines(best(records)),
    ]
    return "\n".join(parts) + "\n"


def _lines(table: Table) -> list[str]:
    header, rows = table
    return [
        f"| {' | '.join(header)} |",
        "| --- |" + " --- |" * (len(header) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def save_page(results: Path) -> None:
    """Writes `README.md` in the directory of the records."""
    head = "<!-- Generated by `lenmem beyond` from the records beside it; do not edit. -->\n\n"
    write_whole(results / "README.md", (head + markdown(read_records(results))).encode())


def again(entry: Entry, runs: Path) -> Path:
    """The directory of runs for repeating an entry: the first `<runs>/again-<number>` without a finished run of it."""
    folders = (runs / f"again-{number}" for number in itertools.count(1))
    return next(folder for folder in folders if not finished(entry, folder / entry.name))


def finished(entry: Entry, run: Path) -> bool:
    """Whether the run and its further rounds (`lenmem.restarts`) were trained to the end, or all seeds diverged."""
    steps, folders = entry.experiment.training.steps, [run, *run.glob("round-*")]
    return all(checkpoint.latest(folder / CHECKPOINTS) == steps or all_diverged(folder) for folder in folders)
