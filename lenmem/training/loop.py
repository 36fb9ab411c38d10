"""Training: a function of an experiment and a key.

`train` runs compiled calls of `log_every` optimiser steps, writes a line of metrics after each, and saves checkpoints.
All seeds of a run are trained in one program.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import numpy as np
import optax

from lenmem import progress, stopping
from lenmem.evaluation.metrics import evaluate
from lenmem.fields import Count, Positive, check_fields
from lenmem.serialize import to_plain, write_whole
from lenmem.tasks.base import Split, Task, namespaced
from lenmem.training import checkpoint, processes
from lenmem.training.lanes import Numbers, advance_lanes, initial_lanes, measurable
from lenmem.training.optimizer import Optimizer, with_plain_state
from lenmem.training.resume import experiment_differences
from lenmem.training.step import (
    Record,
    State,
    device_mesh,
    initial_state,
    keep_best,
    make_advance,
    per_seed,
    replicated,
)
from lenmem.types import Batch, PyTree

CHECKPOINTS, SNAPSHOTS, METRICS = "checkpoints", "snapshots", "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Training:
    """How a network is trained."""

    steps: Count = 10_000
    """Optimiser steps."""
    batch_size: Positive = 32
    """Examples of a step."""
    seeds: Positive = 1
    """Seeds trained in one program; each has its own parameters and data."""
    seed: int = 0
    """The key everything is drawn from."""
    optimizer: Optimizer | optax.GradientTransformation = Optimizer()
    """The update rule. An Optax transformation works too, but is not saved: to resume, it has to be passed again."""
    selection: Literal["last", "validation", "running_ood"] = "last"
    """Parameters that are kept: the last; those of the best validation (ties to the latest); or those of the best score
    on the *test* range seen during training. The last rule selects on test lengths and is printed as such."""
    selection_metric: str = "exact_match"
    """Metric that selects: the largest is best; or `loss`, of which the smallest is."""
    selection_window: Positive = 1
    """The score is the mean over this many latest validations, once there are as many."""
    validation_split: str = "validation"
    """Split of the task that a validation scores; under `running_ood` it is `test`."""
    validate_every: Count = 0
    """Steps between two validations; 0: never (selection needs some)."""
    validation_batches: Positive = 10
    """Batches of a validation."""
    log_every: Positive = 100
    """Steps of one compiled call, and between two lines of metrics."""
    checkpoint_every: Count = 1000
    """Steps between two checkpoints, beside the one at the end; a multiple of log_every. 0: only at the end."""
    keep_checkpoints: Positive = 2
    """Checkpoints kept."""
    keep_steps: tuple[int, ...] = ()
    """Steps whose parameters are kept for good (under `snapshots/`), to look at a network in the middle of training."""
    devices: Positive | None = None
    """Devices that batches are spread over, and seeds where batches do not divide evenly. None: as many as can be."""
    seeds_at_once: Positive | None = None
    """Seeds whose steps are one computation, a divisor of `seeds`; the others wait. None: all. Few need less memory,
    and on a CPU less time where a network is so large that its matrix products take nearly all of it."""
    widths: Positive = 1
    """Widths a training step is compiled for, evenly spaced: a batch takes the narrowest that holds its longest input.
    For batches of inputs of about one length; each width is compiled by itself."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("validate_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"training.{name} must be a multiple of log_every={self.log_every}, got {getattr(self, name)}"
                )
        if self.seeds % self.together:
            raise ValueError(f"training.seeds_at_once={self.seeds_at_once} does not divide seeds={self.seeds}")
        if self.selection != "last" and not self.validate_every:
            raise ValueError(f"training.selection={self.selection!r} needs validate_every > 0")
        if self.selection_window > 1 and self.selection_window * self.validate_every > self.steps:
            raise ValueError(
                f"training.selection_window={self.selection_window} validations, one each {self.validate_every} steps, "
                f"are more than {self.steps} steps have"
            )

    @property
    def together(self) -> int:
        """Seeds whose steps are one computation."""
        return self.seeds_at_once or self.seeds

    @property
    def scored_split(self) -> Split:
        """The split that is scored while training."""
        return "test" if self.selection == "running_ood" else self.validation_split

    @property
    def rule(self) -> str:
        """In words, which parameters are kept."""
        if self.selection == "last":
            return "the parameters after the last step"
        score = "score" if self.selection_window == 1 else f"mean score of {self.selection_window} validations in a row"
        if self.scored_split != "validation":
            return f"the parameters with the best {score} on the split {self.scored_split} seen during training"
        return "the parameters of the best validation" if self.selection_window == 1 else f"those of the best {score}"

    @property
    def kept(self) -> dict[str, Any]:
        """What a `State` has to have room for."""
        return {"keep_best": self.selection != "last", "window": self.selection_window}

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The update rule, made for this many steps."""
        rule = self.optimizer
        return rule.build(self.steps) if isinstance(rule, Optimizer) else with_plain_state(rule)

    @property
    def advanced(self) -> dict[str, Any]:
        """How `make_advance` computes a step."""
        return {"batch_size": self.batch_size, "at_once": self.seeds_at_once, "widths": self.widths}

    def device_count(self) -> int:
        """Devices that batches and seeds are spread over, equally many of each process."""
        available, shared_by = jax.device_count(), jax.process_count()
        work = self.batch_size * self.together
        shared = f"batch_size={self.batch_size} times seeds={self.together}"
        if self.devices is None:
            usable = [n for n in range(shared_by, available + 1, shared_by) if work % n == 0]
            if not usable:
                raise ValueError(f"{shared_by} processes do not divide {shared}")
            return usable[-1]
        if self.devices > available:
            raise ValueError(f"training.devices is {self.devices}, but there are {available}")
        if self.devices % shared_by:
            raise ValueError(f"training.devices={self.devices} is not a multiple of the {shared_by} processes")
        if work % self.devices:
            raise ValueError(f"training.devices={self.devices} does not divide {shared}")
        return self.devices


class TrainableExperiment(Protocol):
    """What `train` needs of an experiment."""

    @property
    def task(self) -> Task: ...
    @property
    def training(self) -> Training: ...
    @property
    def bound_model(self) -> nn.Module: ...


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
    with _Run(directory, resume, experiment, key, tensorboard, numbers) as run, stopping.heeded() as stop:
        stop.alone = jax.process_count() == 1
        state, history, earlier = run.restore(state)
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
            stop.withdraw(kept and functools.partial(run.save, kept, earlier + called - started))
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
            run.log(entry)
            if any(step - count < kept <= step for kept in training.keep_steps):
                with stop.lock:
                    run.snapshot(state, step)
            now = time.perf_counter()
            pace = now - called
            stop.offer(functools.partial(run.save, state, earlier + now - started))
            if report is not None:
                report(entry)
            if not alive.any():
                raise DivergedError(_obituary(history))
            if training.checkpoint_every and step % training.checkpoint_every == 0 and step < training.steps:
                with stop.writing():
                    run.save(state, earlier + time.perf_counter() - started)
        seconds = earlier + time.perf_counter() - started
        with stop.writing():
            run.save(state, seconds)
    return Result(
        experiment=experiment,
        params=selected(state),
        history=history,
        alive=alive,
        step=step,
        interrupted=step < training.steps,
        seconds=seconds,
        updates_per_second=float(np.median(speeds[1:])) if len(speeds) > 1 else math.nan,
        directory=None if directory is None else Path(directory),
    )


def selected(state: State) -> PyTree:
    """The parameters that the selection rule keeps, [S, ...] on the host; a seed never scored has its last ones."""
    members = state.members
    params = members.params
    if members.best != ():
        params = per_seed(np.isfinite(members.best_score), members.best, params)
    return jax.tree.map(np.asarray, params)


def holds_run(directory: Path) -> bool:
    """A run was begun in the directory."""
    return (directory / METRICS).exists() or (directory / CHECKPOINTS).exists()


def read_metrics(directory: Path, step: int | None = None) -> list[dict[str, Any]]:
    """The history of the run in a directory, to `step`; the last line may have been cut short, and is left out then."""
    history: list[dict[str, Any]] = []
    lines = (directory / METRICS).read_text().splitlines() if (directory / METRICS).exists() else []
    for line in lines:
        try:
            history.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return [entry for entry in history if step is None or entry["step"] <= step]


def write_metrics(directory: Path, history: list[dict[str, Any]]) -> None:
    """Write what `read_metrics` reads, whole or not at all."""
    write_whole(directory / METRICS, "".join(json.dumps(entry) + "\n" for entry in history).encode())


def saved_in(directory: str | os.PathLike[str], step: int | None = None) -> Path:
    """The folder of a run that holds `step`: its checkpoints, or its snapshots from the middle of training.

    Raises ValueError where there is no run, or nothing of that step.
    """
    checkpoints, snapshots = Path(directory) / CHECKPOINTS, Path(directory) / SNAPSHOTS
    if not checkpoints.is_dir() and not snapshots.is_dir():
        raise ValueError(f"{directory} is no run: it has no folder {CHECKPOINTS}")
    if step is None or step in checkpoint.steps(checkpoints):
        return checkpoints
    if step in checkpoint.steps(snapshots):
        return snapshots
    known = sorted({*checkpoint.steps(checkpoints), *checkpoint.steps(snapshots)})
    raise ValueError(f"{directory} has nothing of step {step}; it has {', '.join(map(str, known))}")


def abstract_state(experiment: TrainableExperiment, *, with_optimizer: bool = True) -> State:
    """Structure, shapes and dtypes of the state that a checkpoint of the experiment holds."""
    training = experiment.training
    return initial_state(
        experiment.bound_model,
        experiment.task,
        training.transformation if with_optimizer else optax.identity(),
        jax.random.split(jax.random.key(0), training.seeds),
        **training.kept,
        abstract=True,
    )


def restore_params(
    experiment: TrainableExperiment, directory: str | os.PathLike[str], step: int | None = None
) -> tuple[PyTree, np.ndarray, int]:
    """(params [S, ...], alive bool[S], step) from a checkpoint (the selected ones) or a snapshot of a run directory.

    Raises `checkpoint.CheckpointError` where it is missing or damaged.
    """
    folder, like = saved_in(directory, step), abstract_state(experiment, with_optimizer=False)
    if folder.name == SNAPSHOTS:
        snapshot, _ = checkpoint.restore(folder, {"params": like.members.params}, step)
        at = int(step or 0)
        alive = alive_in(read_metrics(Path(directory), at), at, experiment.training.seeds)
        return jax.tree.map(np.asarray, snapshot["params"]), np.array(alive, bool), at
    state, _ = checkpoint.restore(folder, like, step, partial=True)
    return selected(state), np.asarray(state.members.alive), int(state.step)


def alive_in(history: Any, step: int, seeds: int) -> list[bool]:
    """Which seeds were alive at a step, by the lines of metrics; all, where these do not say."""
    known = [entry["alive"] for entry in history or () if entry["step"] <= step and "alive" in entry]
    return known[-1] if known else [True] * seeds


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


class _Run:
    """The files of a run: metrics, checkpoints, and a lock against a second run. Without a directory: nothing."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        resume: bool,
        experiment: Any,
        key: jax.Array,
        tensorboard: bool,
        numbers: Numbers,
    ):
        self.path = None if directory is None else Path(directory)
        self.resume = resume
        self.experiment = experiment
        self.training: Training = experiment.training
        self.manifest = {} if directory is None else {"experiment": to_plain(experiment)}
        if numbers:
            self.manifest["numbers"] = {path: list(values) for path, values in numbers.items()}
        self.key_data = np.asarray(jax.random.key_data(key)).tolist()
        self.tensorboard = tensorboard
        self.lock: Any = None
        self.writer: Any = None
        if resume and directory is None:
            raise ValueError("resume needs the directory of a run")

    def __enter__(self) -> _Run:
        if self.path is not None:
            self.start = processes.on_first(self._claim)
            checkpoint.prepare()
        return self

    def _claim(self) -> int:
        """Take the directory, and say from which step to go on; -1: from the start."""
        assert self.path is not None
        if self.resume and not holds_run(self.path):
            raise ValueError(f"{self.path} holds no run that could be resumed")
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.path / ".lock", "w")  # noqa: SIM115  (`__exit__` closes it)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise ValueError(f"{self.path} is in use by another run; wait for it or choose another directory") from None
        try:
            found = checkpoint.latest(self.path / CHECKPOINTS)
            if not self.resume and (found is not None or self._metrics.exists()):
                raise ValueError(f"{self.path} already holds a run; resume it, or choose another directory")
            if found is None:  # Killed before its first checkpoint.
                self._metrics.unlink(missing_ok=True)
            if self.tensorboard:
                try:
                    from tensorboardX import SummaryWriter
                except ImportError:
                    raise ValueError("TensorBoard events need: pip install 'lenmem[tensorboard]'") from None
                self.writer = SummaryWriter(str(self.path))
        except ValueError:
            self.lock.close()
            raise
        return -1 if found is None else found

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()
        if self.writer is not None:
            self.writer.close()

    @property
    def _metrics(self) -> Path:
        assert self.path is not None
        return self.path / METRICS

    def restore(self, state: State) -> tuple[State, list[dict[str, Any]], float]:
        """(state, history, seconds) to start from: fresh, or those of the latest checkpoint."""
        if self.path is None or self.start < 0:
            return state, [], 0.0
        return processes.on_all(lambda: self._restored(state))

    def _restored(self, state: State) -> tuple[State, list[dict[str, Any]], float]:
        assert self.path is not None
        saved = checkpoint.read_manifest(self.path / CHECKPOINTS, self.start)
        different = experiment_differences(saved["experiment"], self.experiment)
        if not different and saved.get("key") != self.key_data:
            different = ["it was begun with another key"]
        if saved.get("numbers") != self.manifest.get("numbers"):
            different.append("it trains another set of combinations")
        if different:
            raise ValueError(f"{self.path} cannot go on so, and nothing was changed: {'; '.join(different)}")
        state, manifest = checkpoint.restore(self.path / CHECKPOINTS, state, self.start)
        # Lines after the checkpoint will be written again.
        history = read_metrics(self.path, int(state.step))
        if processes.is_first():
            write_metrics(self.path, history)
        return state, history, float(manifest["seconds"])

    def log(self, entry: dict[str, Any]) -> None:
        if self.path is None or not processes.is_first():
            return
        with open(self._metrics, "a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.writer is not None:
            for name, values in entry.items():
                if isinstance(values, list) and name != "died":
                    for seed, value in enumerate(values):
                        self.writer.add_scalar(f"{name}/seed{seed}", float(value), entry["step"])

    def save(self, state: State, seconds: float) -> None:
        if self.path is None:
            return
        manifest = self.manifest | {"key": self.key_data, "seconds": round(seconds, 3)}
        checkpoint.save(self.path / CHECKPOINTS, int(state.step), state, manifest, keep=self.training.keep_checkpoints)

    def snapshot(self, state: State, step: int) -> None:
        if self.path is not None:
            checkpoint.save(self.path / SNAPSHOTS, step, {"params": state.members.params}, self.manifest, keep=1000)
