"""Training: a function of an experiment and a key.

`train` runs compiled calls of `log_every` optimiser steps, writes a line of metrics after each, and saves checkpoints.
All seeds of a run are trained in one program.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from lenmem import progress, stopping
from lenmem.evaluation.metrics import evaluate
from lenmem.tasks.base import Task, namespaced
from lenmem.training import processes
from lenmem.training.configuration import TrainableExperiment
from lenmem.training.lanes import Numbers, advance_lanes, initial_lanes, measurable
from lenmem.training.run_directory import Recorder
from lenmem.training.step import (
    Record,
    State,
    device_mesh,
    initial_state,
    keep_best,
    make_advance,
    replicated,
    selected,
)
from lenmem.types import Batch, PyTree


@dataclasses.dataclass
class Result:
    """A trained experiment."""

    experiment: Any
    params: PyTree
    """Selected parameters, a leading axis S of seeds on every leaf."""
    history: list[dict[str, Any]]
    """One entry per compiled call: step, seconds, and loss, grad_norm, alive per seed."""
    alive: np.ndarray
    """bool[S]: seeds without a non-finite loss or gradient."""
    step: int
    """Optimiser steps done."""
    interrupted: bool
    """A signal stopped the run; it can be resumed."""
    seconds: float
    """Wall time of training, compilation included, over all sessions of the run."""
    updates_per_second: float
    """Median over the compiled calls after the first, of this session; NaN if there was only one."""
    directory: Path | None


class DivergedError(ValueError):
    """All seeds of a run have died of a non-finite loss or gradient."""


def train(
    experiment: TrainableExperiment,
    key: jax.Array | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    report: Callable[[dict[str, Any]], None] | None = None,
    tensorboard: bool = False,
    numbers: Numbers = MappingProxyType({}),
) -> Result:
    """Train all seeds of `experiment`.

    Args:
        experiment: task, model and training; see `lenmem.Experiment`.
        key: seed i is drawn from `namespaced(key, i)`; default `jax.random.key(experiment.training.seed)`.
        directory: where metrics and checkpoints go; None: nowhere.
        resume: continue from the latest checkpoint of the run in the directory, or start it again where it was killed
            before the first. The result equals that of an uninterrupted run.
        report: called with every entry of the history.
        tensorboard: also write TensorBoard events to the directory.
        numbers: train several combinations of these numbers at once, see `lenmem.training.lanes`; then S, wherever it
            stands below, counts lanes: all seeds of the first combination, all of the second, ...

    Raises ValueError for a model that does not support the task, for a directory that is in use, or holds a run (with
    `resume`: none), and for a checkpoint of another experiment, naming the fields that differ; `DivergedError` when the
    last seed dies.
    """
    task, training, model = experiment.task, experiment.training, experiment.bound_model
    if training.validate_every:
        task.lengths_of(training.scored_split)  # raises for an unknown split
    key = jax.random.key(training.seed) if key is None else key
    keys = jax.vmap(lambda i: namespaced(key, i))(np.arange(training.seeds))
    mesh = device_mesh(training.device_count(), training.batch_size)
    optimizer = training.transformation
    started = time.perf_counter()
    if numbers:
        state = initial_lanes(experiment, numbers, keys)
        advance = advance_lanes(experiment, numbers, mesh=mesh)
    else:
        state = initial_state(model, task, optimizer, keys, **training.kept)
        advance = make_advance(model, task, optimizer, **training.advanced, mesh=mesh)
    about = {"numbers": {path: list(values) for path, values in numbers.items()}} if numbers else {}
    recorder = Recorder(directory, experiment, key, resume=resume, tensorboard=tensorboard, about=about)
    with recorder, stopping.heeded() as stop:
        stop.alone = jax.process_count() == 1
        state, history, earlier = recorder.restore(state)
        state = replicated(state, mesh)
        step = int(state.step)
        alive = np.asarray(state.members.alive)
        speeds: list[float] = []
        pace = 0.0
        while step < training.steps and not processes.on_any(stop.is_set()):
            count = min(training.log_every, training.steps - step)
            validates = bool(training.validate_every) and (
                (step + count) % training.validate_every == 0 or step + count == training.steps
            )
            called = time.perf_counter()
            # The call takes the buffers of the state. Where it may be long, a copy is kept for those who cannot wait.
            long = stop.watched and (validates or pace > stopping.PATIENCE / 4)
            kept = jax.tree.map(np.array, state) if long else None
            stop.withdraw(kept and functools.partial(recorder.save, kept, earlier + called - started))
            with progress.of("compiling the training") if not speeds else nullcontext():
                state, record = advance(state, count)
                record = jax.tree.map(np.asarray, record)
            now = time.perf_counter()
            speeds.append(count / (now - called))
            entry = _entry(step, record, alive, earlier + now - started)
            step, alive = step + count, record.alive[-1]
            if validates:
                state, scores = _validate(experiment, state, numbers)
                entry |= scores
            history.append(entry)
            recorder.log(entry)
            if any(step - count < kept <= step for kept in training.keep_steps):
                with stop.lock:
                    recorder.snapshot(state, step)
            now = time.perf_counter()
            pace = now - called
            stop.offer(functools.partial(recorder.save, state, earlier + now - started))
            if report is not None:
                report(entry)
            if not alive.any():
                raise DivergedError(_obituary(history))
            if training.checkpoint_every and step % training.checkpoint_every == 0 and step < training.steps:
                with stop.writing():
                    recorder.save(state, earlier + time.perf_counter() - started)
        seconds = earlier + time.perf_counter() - started
        if step != recorder.start:
            with stop.writing():
                recorder.save(state, seconds)
    return Result(
        experiment=experiment,
        params=selected(state.members.params, state.members.best, state.members.best_score),
        history=history,
        alive=alive,
        step=step,
        interrupted=step < training.steps,
        seconds=seconds,
        updates_per_second=float(np.median(speeds[1:])) if len(speeds) > 1 else math.nan,
        directory=None if directory is None else Path(directory),
    )


def _entry(step: int, record: Record, were_alive: np.ndarray, seconds: float) -> dict[str, Any]:
    """A line of metrics: means over the steps of a call, and the seeds that died in it."""
    entry: dict[str, Any] = {
        "step": step + len(record.loss),
        "loss": [_number(x) for x in record.loss.mean(axis=0)],
        "grad_norm": [_number(x) for x in record.grad_norm.mean(axis=0)],
        "alive": record.alive[-1].tolist(),
        "seconds": round(seconds, 3),
    }
    died = []
    for seed in np.flatnonzero(were_alive & ~record.alive[-1]).tolist():
        at = int(np.argmin(record.alive[:, seed]))
        values = {"loss": _number(record.loss[at, seed]), "grad_norm": _number(record.grad_norm[at, seed])}
        died.append({"seed": seed, "step": step + at, **values})
    return entry | ({"died": died} if died else {})


def _number(value: Any) -> float | str:
    """A JSON number, or the name of one that JSON does not have."""
    return float(value) if math.isfinite(value) else str(float(value))


def _obituary(history: list[dict[str, Any]]) -> str:
    deaths = [death for entry in history for death in entry.get("died", [])]
    listed = "; ".join(
        f"seed {d['seed']} at step {d['step']} (loss {d['loss']}, gradient norm {d['grad_norm']})" for d in deaths
    )
    return f"every seed met a non-finite loss or gradient: {listed}. Try a lower learning rate or clip_norm"


def validation_scores(
    experiment: TrainableExperiment, params: PyTree, numbers: Numbers = MappingProxyType({}), *, loss: bool = False
) -> dict[str, np.ndarray]:
    """metric -> float[S] of one validation, with `loss` also that, which is the better the smaller it is."""
    training = experiment.training
    task = _WithLoss(experiment.task) if loss else experiment.task
    source = experiment.task.source(training.scored_split, training.batch_size, training.seed)
    model, params = measurable(experiment, numbers, params)
    return evaluate(model, params, task, source, training.validation_batches)


def _validate(
    experiment: TrainableExperiment, state: State, numbers: Numbers
) -> tuple[State, dict[str, list[float | str]]]:
    """Score the current parameters, and remember them where they are a seed's best."""
    training = experiment.training
    split, metric = training.scored_split, training.selection_metric
    scores = validation_scores(experiment, state.members.params, numbers, loss=metric == "loss")
    if training.selection != "last":
        if metric not in scores:
            raise ValueError(f"training.selection_metric is {metric!r}; the task has {', '.join(scores)}, and loss")
        state = keep_best(state, jax.numpy.asarray(scores[metric] * (-1 if metric == "loss" else 1)))
    return state, {f"{split}/{name}": [_number(x) for x in values] for name, values in scores.items()}


@dataclasses.dataclass(frozen=True)
class _WithLoss(Task):
    """A task whose metrics have the loss of the batch too."""

    task: Task

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The task's, and `loss`, the same for every example."""
        loss = self.task.loss(outputs, batch)
        return self.task.metrics(outputs, batch) | {"loss": jax.numpy.broadcast_to(loss, outputs.shape[:1])}
