"""Training as a function of an experiment and a key.

`train` runs compiled calls of `log_every` optimiser steps, writes a line of metrics after each, and saves checkpoints.
All seeds of a run are trained in one program.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem import progress, stopping
from lenmem.evaluation.metrics import SMALLER_IS_BETTER, Apply, TaskMetrics, evaluate
from lenmem.keys import bits
from lenmem.serialize import is_foreign
from lenmem.tasks.base import draw
from lenmem.tasks.contract import require_task
from lenmem.training import processes
from lenmem.training.configuration import TrainableExperiment
from lenmem.training.program import Program, seeds_program
from lenmem.training.run_directory import Recorder
from lenmem.training.step import Record, State, keep_best, on_one_device, selected
from lenmem.types import PyTree


@dataclasses.dataclass(eq=False)
class Result:
    """The result of a training."""

    experiment: Any
    params: PyTree
    """Selected parameters, with a leading axis S of seeds on every leaf."""
    history: list[dict[str, Any]]
    """One entry per compiled call: step, seconds, and loss, grad_norm, alive per seed."""
    alive: np.ndarray
    """bool[S]: seeds without a non-finite loss, gradient or update."""
    step: int
    """Number of optimiser steps done."""
    interrupted: bool
    """Whether a signal asked for a stop. If there are steps left, the run can be resumed."""
    seconds: float
    """Wall time of training, including compilation, over all sessions of the run that did steps."""
    updates_per_second: float
    """Median over the compiled calls of `log_every` steps of this session, without the first, which compiles. If there
    is none, over those of earlier sessions, with validations; NaN if there is none at all."""
    directory: Path | None
    best_scores: np.ndarray
    """float[S]: the scores by which the parameters were selected (a loss is negative); NaN for a diverged seed, and if
    the last parameters are kept."""


class DivergedError(ValueError):
    """All seeds of a run have diverged: each met a non-finite loss, gradient or update."""


def train(
    experiment: TrainableExperiment,
    key: jax.Array | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    report: Callable[[dict[str, Any]], None] | None = None,
    tensorboard: bool = False,
) -> Result:
    """Trains all seeds of `experiment`.

    Args:
        experiment: task, model and training; see `lenmem.Experiment`.
        key: seed i is drawn from `namespaced(key, i)`; default `jax.random.key(experiment.training.seed)`.
        directory: where to write metrics and checkpoints; None: nowhere.
        resume: continue from the latest checkpoint of the run in the directory, or start it again if it was killed
            before the first, but after it wrote metrics. The result equals that of an uninterrupted run.
        report: called with every entry of the history. If it raises, a run of one process saves its state first.
        tensorboard: also write TensorBoard events to the directory.

    Raises ValueError for a model that does not support the task, for a directory that is in use or holds a run (with
    `resume`: no run), for a checkpoint of another experiment, naming the fields that differ, and for a task of your own
    whose examples break a rule (`lenmem.tasks.contract`); `DivergedError` when the last seed diverges.
    """
    if not hasattr(experiment, "bound_model"):
        raise ValueError(f"train takes an Experiment(task, model), got a {type(experiment).__name__}")
    if is_foreign(type(experiment.task)):
        require_task(experiment.task)
    key = jax.random.key(experiment.training.seed) if key is None else key
    recorder = Recorder(directory, experiment, key, resume=resume, tensorboard=tensorboard)
    return run(seeds_program(experiment, key), experiment, recorder, report)


def run(
    program: Program,
    experiment: TrainableExperiment,
    recorder: Recorder,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Runs a program to the last step of an experiment, as `train` does; S is the number of its networks."""
    training = experiment.training
    if training.validate_every:
        check_selection(experiment)
    started = time.perf_counter()
    state = program.init()
    with recorder, stopping.heeded() as stop:
        stop.alone = jax.process_count() == 1
        state, history, earlier = recorder.restore(state)
        step = int(state.step)
        alive = np.asarray(state.members.alive)
        if not alive.any():
            raise DivergedError(_obituary(history))
        speeds: list[float] = []
        pace = 0.0
        while step < training.steps and not processes.on_any(stop.is_set()):
            count = min(training.log_every, training.steps - step)
            validates = bool(training.validate_every) and (
                (step + count) % training.validate_every == 0 or step + count == training.steps
            )
            called = time.perf_counter()
            # The call donates the buffers of the state. If it may take long, a copy is saved in case of an early stop.
            compiles = bool(speeds) and count < training.log_every  # the last call, which is shorter
            long = stop.watched and (validates or compiles or pace > stopping.PATIENCE / 4)
            copy = jax.tree.map(np.array, bits(state)) if long else None
            stop.withdraw(copy and functools.partial(recorder.save, copy, earlier + called - started))
            with progress.track("compiling the training") if not speeds else nullcontext():
                state, record = program.advance(state, count)
                record = jax.tree.map(np.asarray, record)
            now = time.perf_counter()
            if not compiles:
                speeds.append(count / (now - called))
            entry = _entry(step, record, alive, earlier + now - started)
            step, alive = step + count, record.alive[-1]
            if validates:
                state, scores = _validate(program, experiment, state, alive)
                entry |= scores
            history.append(entry)
            recorder.log(entry)
            if any(step - count < kept <= step for kept in training.keep_steps):
                with stop.lock:
                    recorder.snapshot(state, step)
            now = time.perf_counter()
            pace = now - called
            save = functools.partial(recorder.save, state, earlier + now - started)
            stop.offer(save)
            if report is not None:
                try:
                    report(entry)
                except BaseException:  # the caller's code failed, not the training
                    if stop.alone:  # several processes save together
                        with stop.lock:
                            save()
                    raise
            if not alive.any():
                if not recorder.has_checkpoint:  # one stores the experiment, too
                    with stop.lock:
                        save()
                raise DivergedError(_obituary(history))
            if training.checkpoint_every and step % training.checkpoint_every == 0 and step < training.steps:
                with stop.lock:
                    recorder.save(state, earlier + time.perf_counter() - started, wait=False)
        seconds = earlier if step == recorder.start else earlier + time.perf_counter() - started
        interrupted = step < training.steps or processes.on_any(stop.is_set())
        if step != recorder.start:
            with stop.writing():
                recorder.save(state, seconds)
    scores = np.asarray(state.members.best_score)
    return Result(
        experiment=experiment,
        params=selected(state.members.params, state.members.best, state.members.best_score),
        history=history,
        alive=alive,
        step=step,
        interrupted=interrupted,
        seconds=seconds,
        updates_per_second=float(np.median(speeds[1:] or _speeds(history, training.log_every) or [math.nan])),
        directory=recorder.path,
        best_scores=np.where(alive & np.isfinite(scores), scores, np.nan),
    )


def _speeds(history: list[dict[str, Any]], count: int) -> list[float]:
    """Steps per second between entries of the history that are `count` steps apart."""
    pairs = [(new["step"] - old["step"], new["seconds"] - old["seconds"]) for old, new in itertools.pairwise(history)]
    return [count / seconds for steps, seconds in pairs if steps == count and seconds > 0]


def _entry(step: int, record: Record, were_alive: np.ndarray, seconds: float) -> dict[str, Any]:
    """A line of metrics: means over the steps of a call, and the seeds that diverged in it."""
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
    """A JSON number, or the name of a float that JSON lacks."""
    return float(value) if math.isfinite(value) else str(float(value))


def _obituary(history: list[dict[str, Any]]) -> str:
    deaths = [death for entry in history for death in entry.get("died", [])]
    listed = "; ".join(
        f"seed {d['seed']} at step {d['step']} (loss {d['loss']}, gradient norm {d['grad_norm']})" for d in deaths
    )
    advice = "Try a lower learning rate or clip_norm"
    in_network = [not all(math.isfinite(float(d[name])) for name in ("loss", "grad_norm")) for d in deaths]
    if deaths and all(in_network) and all(death["step"] == 0 for death in deaths):
        advice = "This is before the first update: look for the cause in the network or its data, not in the rate"
    return f"every seed met a non-finite loss, gradient or update: {listed}. {advice}"


def validation_scores(
    apply: Apply, params: PyTree, experiment: TrainableExperiment, *, loss: bool = False
) -> dict[str, np.ndarray]:
    """metric -> float[S] of one validation; with `loss` also the loss, for which smaller is better."""
    training, task = experiment.training, experiment.task
    source, key = task.source(training.scored_split, training.batch_size), jax.random.key(training.seed)
    return evaluate(apply, params, TaskMetrics(task, loss), source, key, training.validation_batches)


def check_selection(experiment: TrainableExperiment) -> None:
    """Raises ValueError before the training if the task lacks the split or the metric for selection."""
    task, training = experiment.task, experiment.training
    _, longest = task.lengths_of(training.scored_split)
    source = task.source(training.scored_split, training.batch_size)  # raises for a split without examples
    jax.eval_shape(source.batch, jax.random.key(0), 0)  # or with fewer than a batch

    def metrics() -> dict[str, jax.Array]:
        batch = draw(task, jax.random.key(0), jnp.array([longest]), longest)
        return task.metrics(jnp.zeros((*batch.target_mask.shape, task.spec.output_size)), batch)

    known = [*jax.eval_shape(metrics), *(["perplexity"] if task.forced else []), "loss"]
    if training.selection_metric not in known:
        raise ValueError(f"training.selection_metric is {training.selection_metric!r}; allowed are {', '.join(known)}")


def _validate(
    program: Program, experiment: TrainableExperiment, state: State, alive: np.ndarray
) -> tuple[State, dict[str, list[float | str]]]:
    """Scores the current parameters, and stores them for the seeds for which they are the best."""
    training = experiment.training
    split, metric = training.scored_split, training.selection_metric
    scores = validation_scores(program.apply, on_one_device(state.members.params), experiment, loss=metric == "loss")
    scores = {name: np.where(alive, values, np.nan) for name, values in scores.items()}
    if training.selection != "last":
        state = keep_best(state, jnp.asarray(scores[metric] * (-1 if metric in SMALLER_IS_BETTER else 1)))
    return state, {f"{split}/{name}": [_number(x) for x in values] for name, values in scores.items()}
