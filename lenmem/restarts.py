"""Restarts of seeds whose validation is not exact.

The training of a discrete machine ends either with a perfect validation or in a bad optimum that more steps do not
leave. Seeds that are not exact are therefore trained again, from other initial parameters and with other data. A round
trains as many networks as there are seeds, as one program; the networks of later rounds are distributed among the seeds
that are not exact. For each seed, the network with the best validation is selected (in case of ties, that with the
lowest final loss).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem.experiment import Experiment
from lenmem.files import read_json, write_json
from lenmem.keys import namespaced
from lenmem.reproduce import trained
from lenmem.training import DivergedError
from lenmem.training.run_directory import read_metrics
from lenmem.training.step import where_seeds
from lenmem.types import PyTree

TIME = "processor_time.json"
"""File in the directory of a run with the processor time of its training."""


def trained_until_exact(
    experiment: Experiment,
    directory: str | os.PathLike[str],
    *,
    rounds: int,
    seconds: float,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[PyTree, dict[str, Any]]:
    """The parameters of all seeds, and the part of a record about the training, as in `lenmem.reproduce.trained`.

    The record also has `tries`, the number of networks that were trained for each seed, and `validation`, the best
    exact match of the selected network (None if it diverged), which should be selected by it. The first round is the
    run in `directory`, the others are in its folders `round-2`, ...; existing rounds are not trained again. No round is
    started after `seconds` of processor time for each seed, counted over all sessions that were not killed. Rounds
    differ only in their random key. Raises the same errors as `trained` for the first round; a later one may diverge.
    """
    training, directory = experiment.training, Path(directory)
    folders = [directory]
    with _timed(directory):
        params, facts = trained(experiment, directory, report)
    best, tries = _ranks(experiment, directory, facts), np.ones(training.seeds, int)
    for number in range(2, rounds + 1):
        stuck = np.flatnonzero(best[:, 0] < 1)
        folder = directory / f"round-{number}"
        late = sum(map(_seconds_in, folders)) >= seconds * training.seeds
        if not len(stuck) or (late and not folder.exists()):
            break
        key = namespaced(jax.random.key(training.seed), "round", number)
        folders.append(folder)
        its_seeds = [stuck[lane % len(stuck)] for lane in range(training.seeds)]
        np.add.at(tries, its_seeds, 1)
        try:
            with _timed(folder):
                more, found = trained(experiment, folder, report, key)
        except DivergedError:  # all networks of this round; those of earlier ones remain
            continue
        facts["wall_seconds"] = round(facts["wall_seconds"] + found["wall_seconds"], 1)
        ranks = _ranks(experiment, folder, found)
        for lane, seed in enumerate(its_seeds):
            if tuple(ranks[lane]) > tuple(best[seed]):
                best[seed] = ranks[lane]
                one = np.arange(training.seeds) == seed
                moved = jax.tree.map(lambda x, lane=lane: x[[lane] * training.seeds], more)
                params = jax.tree.map(np.asarray, where_seeds(one, moved, params))
                facts["alive"][seed] = found["alive"][lane]
    validation = [score if np.isfinite(score) else None for score in best[:, 0].tolist()]
    return params, facts | {"tries": tries.tolist(), "validation": validation}


@contextmanager
def _timed(directory: Path) -> Iterator[None]:
    """Adds the processor time of a training to that noted in its `directory`, unless it was only read again."""
    before, step, started = _seconds_in(directory), _step_in(directory), time.process_time()
    try:
        yield
    finally:
        if _step_in(directory) != step:
            write_json(directory / TIME, {"seconds": round(before + time.process_time() - started, 2)})


def _seconds_in(directory: Path) -> float:
    """Seconds of processor time that the training in `directory` took, in all sessions."""
    return read_json(directory / TIME)["seconds"] if (directory / TIME).exists() else 0.0


def _step_in(directory: Path) -> int:
    """The last step in the metrics of the training in `directory`, 0 if there are none."""
    return max((entry["step"] for entry in read_metrics(directory)), default=0)


def _ranks(experiment: Experiment, directory: Path, facts: dict[str, Any]) -> np.ndarray:
    """float[S, 2]: the best exact match of the validation, and minus the last loss; a diverged network is below all."""
    history = read_metrics(directory)
    name = f"{experiment.training.scored_split}/exact_match"
    scores = np.array([[float(x) for x in entry[name]] for entry in history if name in entry])
    # Without validations it is unknown which seeds are not exact.
    best = np.max(scores, axis=0) if len(scores) else np.ones(experiment.training.seeds)
    ranks = np.stack([best, -np.array([float(x) for x in history[-1]["loss"]])], axis=1)
    return np.where(np.array(facts["alive"])[:, None], ranks, -np.inf)
