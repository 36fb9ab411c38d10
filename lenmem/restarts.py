"""Restarts of seeds whose validation is not exact.

The training of a discrete machine ends either with a perfect validation or in a bad optimum that more steps do not
leave. Seeds that are not exact are therefore trained again, from other initial parameters and with other data. A round
trains as many networks as there are seeds, as one program; the networks of later rounds are distributed among the seeds
that are not exact. For each seed, the network with the best validation is selected (in case of ties, that with the
lowest final loss).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem.experiment import Experiment
from lenmem.keys import namespaced
from lenmem.reproduce import trained
from lenmem.training.run_directory import read_metrics
from lenmem.training.step import where_seeds
from lenmem.types import PyTree


def trained_until_exact(
    experiment: Experiment,
    directory: Path,
    *,
    rounds: int,
    seconds: float,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[PyTree, dict[str, Any]]:
    """Every seed's parameters, and what a record says of the training, as `lenmem.reproduce.trained`.

    The record also has `tries`, the number of networks that were trained for each seed, and `validation`, the best
    exact match of the selected network. The first round is the run in `directory`, the others are in its folders
    `round-2`, ...; existing rounds are not trained again. No round is started after `seconds` of processor time for
    each seed. Rounds differ only in their random key. Raises the same errors as `trained`.
    """
    training, started = experiment.training, time.process_time()
    params, facts = trained(experiment, directory, report)
    best, tries = _ranks(experiment, directory, facts), np.ones(training.seeds, int)
    for number in range(2, rounds + 1):
        stuck = np.flatnonzero(best[:, 0] < 1)
        if not len(stuck) or time.process_time() - started > seconds * training.seeds:
            break
        key = namespaced(jax.random.key(training.seed), "round", number)
        folder = directory / f"round-{number}"
        more, found = trained(experiment, folder, report, key)
        facts["wall_seconds"] = round(facts["wall_seconds"] + found["wall_seconds"], 1)
        ranks = _ranks(experiment, folder, found)
        for lane in range(training.seeds):
            seed = stuck[lane % len(stuck)]
            tries[seed] += 1
            if tuple(ranks[lane]) > tuple(best[seed]):
                best[seed] = ranks[lane]
                one = np.arange(training.seeds) == seed
                moved = jax.tree.map(lambda x, lane=lane: x[[lane] * training.seeds], more)
                params = jax.tree.map(np.asarray, where_seeds(one, moved, params))
                facts["alive"][seed] = found["alive"][lane]
    return params, facts | {"tries": tries.tolist(), "validation": best[:, 0].tolist()}


def _ranks(experiment: Experiment, directory: Path, facts: dict[str, Any]) -> np.ndarray:
    """float[S, 2]: the best exact match of the validation, and minus the last loss; a diverged network is below all."""
    history = read_metrics(directory)
    name = f"{experiment.training.scored_split}/exact_match"
    scores = np.array([[float(x) for x in entry[name]] for entry in history if name in entry])
    # Without validations it is unknown which seeds are not exact.
    best = np.max(scores, axis=0) if len(scores) else np.ones(experiment.training.seeds)
    ranks = np.stack([best, -np.array([float(x) for x in history[-1]["loss"]])], axis=1)
    return np.where(np.array(facts["alive"])[:, None], ranks, -np.inf)
