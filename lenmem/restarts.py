"""Trainings that are begun again where the validation says that a seed is stuck.

A discrete machine is learned or it is not: a training ends with a validation without an error, or in a bad optimum from
which more steps do not lead. So seeds that are not exact are begun again, from other initial parameters and data. A
round trains as many networks as there are seeds, as one program; those of later rounds are shared out among the seeds
that are stuck. A seed keeps its network with the best validation (ties: with the lower loss at the end).
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

    Also `tries`, how many networks were trained for each seed, and `validation`, the best exact match of the one that
    is kept. The first round is the run in `directory`, the others are in its folders `round-2`, ...; rounds that are
    there are not trained again. No round is begun after `seconds` of the processor for each seed. A later
    round is drawn from another key, and nothing else is changed. Raises as `trained`.
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
    # Without validations nothing says that a seed is stuck.
    best = np.max(scores, axis=0) if len(scores) else np.ones(experiment.training.seeds)
    ranks = np.stack([best, -np.array([float(x) for x in history[-1]["loss"]])], axis=1)
    return np.where(np.array(facts["alive"])[:, None], ranks, -np.inf)
