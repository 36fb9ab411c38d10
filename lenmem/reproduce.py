"""Measures the rows of a paper's tables, and records the results.

A configuration may define `rows: dict[str, Row]`. `reproduce` trains a row, scores it as in the paper, measures a curve
far beyond the training lengths, and writes `results/<paper>/<row>.json`. `lenmem.records.results_table` compares
records with the numbers of the paper.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem import configs, papers
from lenmem.errors import choices, nearest
from lenmem.evaluation.lengths import Evaluation, LengthCurve, length_curve
from lenmem.evaluation.metrics import is_share, score
from lenmem.evaluation.sets import set_scores
from lenmem.evaluation.statistics import longest_length, mean_over_lengths, summarise
from lenmem.experiment import Experiment
from lenmem.files import json_number
from lenmem.records import origin_of, recorded, save_record
from lenmem.runs import examples_scored, without_dead
from lenmem.serialize import to_plain
from lenmem.share import import_params
from lenmem.tasks.base import occurring
from lenmem.training import checkpoint
from lenmem.training.environment import describe_environment
from lenmem.training.loop import train
from lenmem.training.run_directory import CHECKPOINTS, METRICS, code_changed
from lenmem.types import PyTree

FAR_SAMPLES = 16
"""Examples per length beyond four times the longest training length, where sequences are long."""


@dataclasses.dataclass(frozen=True)
class ByLength:
    """Scores computed from a curve of accuracy by length (Ofner & Kern 2021), instead of those of a split.

    `longest_length` is the longest length with an accuracy of at least `threshold`, for each seed and for the median
    over seeds. `mean_accuracy` is the mean over the lengths `mean_over`.
    """

    lengths: tuple[int, ...]
    """Lengths of the curve."""
    samples: int = 640
    """Examples per length."""
    metric: str = "token_accuracy"
    """The metric of the curve."""
    threshold: float = 0.95
    """Accuracy at which a length counts as mastered."""
    mean_over: tuple[int, int] = (2, 45)
    """First and last length of the mean, which the curve must include."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One printed row of a paper's table, and the experiment that measures it."""

    experiment: Experiment
    """The experiment."""
    table: str
    """The table's name in `lenmem/papers/<paper>.json`."""
    where: Mapping[str, Any]
    """Columns that identify the row in the table."""
    metrics: Mapping[str, str]
    """Our metric -> the paper's column. `exact_match` is measured on the split `test`, `od_easy/exact_match` on the
    split `od_easy`. With `by_length`, the metrics are its scores."""
    lengths: tuple[int, ...] = ()
    """Lengths of the recorded curve, in addition to multiples of the longest training length."""
    by_length: ByLength | None = None
    """Compute the scores from a curve. None: measure them on splits."""
    after_training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the model that are changed after training, such as the number of memory slots or of steps."""
    trained_as: str | None = None
    """Another row with the same experiment, whose parameters are scored: those next to its record, if there are any, or
    else those of its run. None: the row is trained."""

    @property
    def cell(self) -> dict[str, Any]:
        """What it measures in the paper, as in its record."""
        return {"table": self.table, "where": dict(self.where), "metrics": dict(self.metrics)}

    def record(self, path: Path) -> dict[str, Any] | None:
        """The record at this path if it is exactly of this row, else None (`lenmem.records.recorded`)."""
        return recorded(path, self.experiment, self.after_training, self.cell)


def select(rows: Mapping[str, Row], names: Iterable[str] | None = None) -> dict[str, Row]:
    """The rows with these names, in this order. None: all rows. Raises ValueError for an unknown name."""
    if names is None:
        return dict(rows)
    chosen = {}
    for name in names:
        if name not in rows:
            raise ValueError(f"there is no row {name!r}.{choices(name, rows, every=True)}")
        chosen[name] = rows[name]
    return chosen


def reproduce(
    paper: str,
    name: str,
    row: Row,
    *,
    results: Path,
    runs: Path,
    report: Callable[[dict[str, Any]], None] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Trains (or resumes), scores and records one row; returns the record.

    The run is in `runs/<paper>/<name>` and is resumed if it was interrupted; a finished run is scored again. The record
    is `results/<paper>/<name>.json`. The parameters of small networks are saved next to it; if only `after_training`
    has changed since, they are scored again, without a run.

    Args:
        paper: the paper's name in `lenmem.papers`.
        name: the row's name.
        row: the experiment, and the cell of the table that it measures.
        results: directory of the records.
        runs: directory of the runs.
        report: called with every entry of the training's history.
        command: the command to record; default: that of this process.

    Raises ValueError, before the training, if the paper has no such cell, `DivergedError` if every seed diverges, and
    KeyboardInterrupt if a signal stopped the training. In these cases nothing is recorded.
    """
    experiment = row.experiment
    printed = _printed(paper, row)
    splits = [metric.rpartition("/")[0] or "test" for metric in row.metrics]
    for split in splits:
        experiment.task.lengths_of(split)  # raises for an unknown one
    measured_as = dataclasses.replace(experiment, model=experiment.model.clone(**row.after_training))
    environment = describe_environment()  # of the loaded code; the working tree may change during a long training
    directory = runs / paper / (row.trained_as or name)
    params, training = _stored_training(name, row, results / paper) or trained(experiment, directory, report)
    living = without_dead(params, np.array(training["alive"]))
    if row.by_length:
        curves = curves_by_length(measured_as, living, row.by_length)
        measured = scores_by_length(curves[0], row.by_length)
    else:
        curves = far_curves(measured_as, living, row.lengths)
        scores = split_scores(measured_as, living, splits)
        measured = {metric: _cell(metric, values) for metric, values in scores.items()}
    missing = [metric for metric in row.metrics if metric not in measured]
    if missing:
        raise ValueError(f"row {name!r} needs the metric {missing[0]!r}; there are {', '.join(measured)}")
    record = {
        "paper": paper,
        "row": name,
        **row.cell,
        "selection": experiment.training.selection,
        "measured": {
            metric: cell | {"paper": printed[row.metrics[metric]] if metric in row.metrics else None}
            for metric, cell in measured.items()
        },
        "samples": row.by_length.samples if row.by_length else examples_scored(experiment),
        "curves": [curve.to_dict() for curve in curves],
        **training,
        "experiment": to_plain(experiment),
        "after_training": dict(row.after_training),
        **origin_of(experiment),
        "environment": environment,
        "command": command or shlex.join(["lenmem", *sys.argv[1:]]),
    }
    save_record(results / paper / f"{name}.json", record, params if row.trained_as is None else None)
    return record


def trained(
    experiment: Experiment,
    directory: Path,
    report: Callable[[dict[str, Any]], None] | None = None,
    key: jax.Array | None = None,
) -> tuple[PyTree, dict[str, Any]]:
    """Trains or resumes the run in a directory: (the parameters of all seeds, the part of a record about the training).

    `key` as in `lenmem.train`. Raises KeyboardInterrupt if a signal stopped the training.
    """
    latest = checkpoint.latest(directory / CHECKPOINTS)
    if latest is not None and code_changed(checkpoint.read_manifest(directory / CHECKPOINTS, latest), experiment):
        raise ValueError(f"{directory} was trained with other code of your classes; delete it, or give another --runs")
    resume = (directory / METRICS).exists()  # without a checkpoint, `train` starts from the beginning
    result = train(experiment, key, directory=directory, resume=resume, report=report)
    if result.interrupted:
        raise KeyboardInterrupt(f"stopped at step {result.step}; the same command resumes it")
    rate = result.updates_per_second
    facts = {
        "alive": result.alive.tolist(),
        "steps": result.step,
        "wall_seconds": round(result.seconds, 1),
        "updates_per_second": round(rate, 2) if math.isfinite(rate) else None,
        "parameters": sum(x.size for x in jax.tree.leaves(result.params)) // len(result.alive),
    }
    if experiment.training.selection == "validation":
        facts["validation"] = list(map(json_number, result.best_scores.tolist()))
    return result.params, facts


def _stored_training(name: str, row: Row, results: Path) -> tuple[PyTree, dict[str, Any]] | None:
    """The same for a training whose parameters are stored and were not scored in this way; else None.

    It is that of the row `trained_as`, or of this row before its `after_training` was changed.
    """
    source = results / f"{row.trained_as or name}.json"
    record = recorded(source, row.experiment, None)
    params = source.with_suffix(".safetensors")
    if record is None or not params.exists():
        return None
    if row.trained_as is None and record.get("after_training", {}) == dict(row.after_training):
        return None
    facts = ("alive", "steps", "wall_seconds", "updates_per_second", "parameters", "validation")
    return import_params(params)[0], {fact: record[fact] for fact in facts if fact in record}


def split_scores(experiment: Experiment, params: Any, splits: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """metric -> float[S] on the split `test`, and `<split>/<metric>` on each of `splits`.

    No example of a fixed set is scored twice.
    """
    evaluation, task, model = experiment.evaluation, experiment.task, experiment.bound_model
    scores = {}
    for split in dict.fromkeys(["test", *splits]):
        examples, rows = examples_scored(experiment, split), evaluation.batch_size
        of_split = score(model, params, task, examples, rows, evaluation.seed, split=split)
        if task.scores_sets:
            whole = set_scores(model, params, task, examples, split=split, batch_size=rows)
            of_split |= {name: of_seeds.values for name, of_seeds in whole.items()}
        prefix = "" if split == "test" else f"{split}/"
        scores |= {f"{prefix}{metric}": values for metric, values in of_split.items()}
    return scores


def curves_by_length(experiment: Experiment, params: Any, how: ByLength) -> list[LengthCurve]:
    """The curve for `how`, and one at 4, 8 and 16 times the longest training length with fewer examples.

    If the task has no even lengths, the odd ones before them are measured.
    """
    task = experiment.task
    far = set(occurring(task, (task.train_lengths[1] * factor for factor in (4, 8, 16)))) - set(how.lengths)
    return _curves(experiment, params, [(how.lengths, how.samples), (far, FAR_SAMPLES)])


def scores_by_length(curve: LengthCurve, how: ByLength) -> dict[str, dict[str, Any]]:
    """The scores of `ByLength`, each with the values of all seeds, the median and the best."""
    if how.metric not in curve.values:
        raise ValueError(f"the curve needs the metric {how.metric!r}; the task has {', '.join(curve.values)}")
    shares = curve.values[how.metric]
    dead = np.any(np.isnan(shares), axis=1).tolist()
    first, last = how.mean_over
    means = mean_over_lengths(curve.lengths, shares, first=first, last=last)
    reached = [
        None if gone else longest_length(curve.lengths, seed[None], threshold=how.threshold)
        for seed, gone in zip(shares, dead, strict=True)
    ]
    longest = {
        "seeds": reached,
        "median": longest_length(curve.lengths, shares, threshold=how.threshold),
        "best": max((length for length in reached if length is not None), default=None),
    }
    return {"longest_length": longest, "mean_accuracy": _cell("mean_accuracy", means)}


def rows_of(config: str | os.PathLike[str]) -> dict[str, Row]:
    """The rows of a configuration. If it defines none, raises ValueError with the configurations that do."""
    rows = getattr(configs.module_of(config), "rows", None)
    if not rows:
        # For a hint it is enough to read the files; running all of them takes seconds.
        texts = {name: configs.find(name).read_text() for name in configs.names()}
        others = [name for name, text in texts.items() if re.search(r"^(\w+, )*rows\b.*=", text, re.MULTILINE)]
        hint = nearest(os.fspath(config), others) or f" {len(others)} others do, such as {', '.join(others[:3])}"
        raise ValueError(f"{os.fspath(config)} defines no rows of a paper's table.{hint}")
    return rows


def rows_of_paper(paper: str) -> dict[str, Row]:
    """All rows of the configurations of a paper."""
    named = [name for name in configs.names() if name.startswith(f"{paper}/")]
    return {name: row for config in named for name, row in getattr(configs.module_of(config), "rows", {}).items()}


def reproduce_config(
    config: str | os.PathLike[str],
    names: Iterable[str] = (),
    *,
    results: Path,
    runs: Path,
    again: bool = False,
    report: Callable[[str, Experiment], Callable[[dict[str, Any]], None] | None] | None = None,
) -> list[dict[str, Any]]:
    """The records of rows of a configuration, in the order of `names`. Rows without a record are measured.

    Args:
        config: name or path of the configuration. The name of its directory is the name of its paper.
        names: names of rows; none: the row with the configuration's `experiment` (all rows, if there is no such row).
        results: directory of the records.
        runs: directory of the runs.
        again: also measure rows that have a record of the same experiment.
        report: called with name and experiment before a row is measured; returns the `report` of its training.
    """
    rows = rows_of(config)
    own = to_plain(configs.load_config(config))
    chosen = tuple(names) or tuple(name for name, row in rows.items() if to_plain(row.experiment) == own)[:1]
    paper = configs.find(config).resolve().parent.name
    records = []
    for name, row in select(rows, chosen or None).items():
        record = None if again else row.record(results / paper / f"{name}.json")
        if record is None:
            told = None if report is None else report(name, row.experiment)
            command = shlex.join(["lenmem", "reproduce", os.fspath(config), "--rows", name])
            record = reproduce(paper, name, row, results=results, runs=runs, report=told, command=command)
        records.append(record)
    return records


def far_curves(experiment: Experiment, params: Any, lengths: Iterable[int] = ()) -> list[LengthCurve]:
    """Two curves: up to 4 times the longest training length, and at 8 and 16 times it with fewer examples.

    `lengths` are measured in addition. If the task has no example of a length, the one before it is measured. A task
    that is not `endless` has one curve, over its `curve_lengths`.
    """
    task, evaluation = experiment.task, experiment.evaluation
    longest = task.train_lengths[1]
    near = {max(task.train_lengths[0], round(longest * f)) for f in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 3, 4)}
    far = {longest * f for f in (8, 16)}
    for length in lengths:
        (near if length <= 4 * longest else far).add(length)
    parts = [(occurring(task, near), evaluation.samples), (occurring(task, far), FAR_SAMPLES)]
    if not task.endless:
        parts = [(Evaluation().lengths_for(task), evaluation.samples)]
    return _curves(experiment, params, parts)


def _curves(experiment: Experiment, params: Any, parts: Iterable[tuple[Iterable[int], int]]) -> list[LengthCurve]:
    """A curve for each part (lengths, examples per length) that has lengths."""
    evaluation, model, task = experiment.evaluation, experiment.bound_model, experiment.task
    key = jax.random.key(evaluation.seed)
    return [
        length_curve(model, params, task, sorted(part), samples, key, batch_size=min(samples, evaluation.batch_size))
        for part, samples in parts
        if part
    ]


def _printed(paper: str, row: Row) -> dict[str, Any]:
    """The row as printed in the paper. Raises ValueError if it lacks a column of `row.metrics`."""
    printed = papers.find(paper, row.table, **row.where)
    for column in row.metrics.values():
        if column not in printed:
            raise ValueError(f"{paper} {row.table} has no column {column!r}; it has {', '.join(printed)}")
    return printed


def _cell(metric: str, values: np.ndarray) -> dict[str, Any]:
    """A metric, float[S], for a record: the values of all seeds, the median and the best. Fractions are in percent."""
    share = is_share(metric)
    summary = summarise(values)
    best = summary.high if share else summary.low

    def number(value: float | np.ndarray) -> float | None:
        # Four decimals, so that one wrong token in 3,200 long answers is visible.
        return json_number(round((100 if share else 1) * float(value), 4))

    return {
        "seeds": [number(value) for value in values],
        "median": number(summary.median),
        "best": number(best),
    }
