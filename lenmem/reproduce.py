"""Measuring the rows of a paper's tables, and keeping what was measured.

A configuration may define `rows: dict[str, Row]`. `reproduce` trains a row, scores it as the paper does, follows the
curve far beyond, and writes `results/<paper>/<row>.json`. Such a file is never written by hand.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem import papers
from lenmem.evaluation.lengths import LengthCurve, length_curve
from lenmem.evaluation.metrics import score
from lenmem.evaluation.statistics import summarise
from lenmem.experiment import Experiment
from lenmem.serialize import to_plain
from lenmem.share import export_params
from lenmem.training.checkpoint import describe_environment, latest
from lenmem.training.loop import CHECKPOINTS, train

FAR_SAMPLES = 16
"""Examples per length beyond four times the training length, where sequences are long."""
SHARED_PARAMETERS = 500_000
"""Parameters (all seeds together) up to which they are kept beside the results."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One printed row of a paper's table, and the experiment that measures it."""

    experiment: Experiment
    """What is run."""
    table: str
    """The table's name in `lenmem/papers/<paper>.json`."""
    where: Mapping[str, Any]
    """Columns that identify the row in the table."""
    metrics: Mapping[str, str]
    """Our metric -> the paper's column."""


def reproduce(
    paper: str,
    name: str,
    row: Row,
    *,
    results: Path,
    runs: Path,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train (or resume), score and record one row; returns the record.

    The run lives in `runs/<paper>/<name>` and is resumed if it was cut off. The record goes to
    `results/<paper>/<name>.json`, and the parameters of small networks beside it.
    """
    experiment = row.experiment
    directory = runs / paper / name
    resume = latest(directory / CHECKPOINTS) is not None
    result = train(experiment, directory=directory, resume=resume, report=report)
    if result.interrupted:
        raise KeyboardInterrupt(f"stopped at step {result.step}; the same command resumes it")
    evaluation, task, model = experiment.evaluation, experiment.task, experiment.bound_model
    params = jax.tree.map(lambda x: np.where(_per_leaf(result.alive, x), x, np.nan), result.params)
    scores = score(model, params, task, evaluation.scored, evaluation.batch_size, evaluation.seed)
    curves = [curve.to_dict() for curve in far_curves(experiment, params)]
    printed = papers.find(paper, row.table, **row.where)
    record = {
        "paper": paper,
        "row": name,
        "table": row.table,
        "where": dict(row.where),
        "selection": experiment.training.selection,
        "measured": {
            metric: {
                "seeds": [round(100 * float(x), 3) for x in values],
                "median": round(100 * float(summarise(values).median), 3),
                "best": round(100 * float(summarise(values).best), 3),
                "paper": printed[row.metrics[metric]] if metric in row.metrics else None,
            }
            for metric, values in scores.items()
        },
        "alive": result.alive.tolist(),
        "samples": evaluation.scored,
        "curves": curves,
        "steps": result.step,
        "wall_seconds": round(result.seconds, 1),
        "experiment": to_plain(experiment),
        "environment": describe_environment(),
        "command": "lenmem " + " ".join(sys.argv[1:]),
    }
    target = results / paper / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    if sum(x.size for x in jax.tree.leaves(result.params)) <= SHARED_PARAMETERS:
        export_params(target.with_suffix(".safetensors"), result.params, {"experiment": record["experiment"]})
    target.write_text(json.dumps(record, indent=1) + "\n")
    return record


def far_curves(experiment: Experiment, params: Any) -> list[LengthCurve]:
    """Curves from within the training range to 16 times its end: up to 4 times, then beyond with fewer examples."""
    task, evaluation = experiment.task, experiment.evaluation
    longest = task.train_lengths[1]
    near = {max(task.train_lengths[0], round(longest * f)) for f in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 3, 4)}
    far = [longest * f for f in (8, 16)]
    key = jax.random.key(evaluation.seed)
    model = experiment.bound_model
    return [
        length_curve(model, params, task, lengths, samples, key, batch_size=min(samples, evaluation.batch_size))
        for lengths, samples in ((sorted(near), evaluation.samples), (far, FAR_SAMPLES))
    ]


def _per_leaf(alive: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """The seeds' flags, shaped to select among the rows of a leaf."""
    return alive.reshape(-1, *[1] * (leaf.ndim - 1))
