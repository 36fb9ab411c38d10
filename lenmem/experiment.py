"""An experiment: a task, a model, how it is trained and how it is measured, as plain frozen data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import chex
import flax.linen as nn
import jax
import numpy as np
import optax

from lenmem import share
from lenmem.errors import parameters_fit
from lenmem.evaluation.lengths import Evaluation
from lenmem.fields import check_fields
from lenmem.models import supports
from lenmem.serialize import FORGOTTEN, from_plain
from lenmem.tasks.base import Task
from lenmem.training import checkpoint
from lenmem.training.configuration import Training
from lenmem.training.run_directory import (
    CHECKPOINTS,
    abstract_parameters,
    abstract_state,
    alive_in,
    folder_of,
    holds_run,
    read_metrics,
    read_parameters,
    write_metrics,
)
from lenmem.types import PyTree

SUFFIX = ".safetensors"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One task put to one model. `bound_model` is the model that knows the task's spec.

    Raises ValueError where the model cannot take the task, with the model's own reason.
    """

    task: Task
    """What is learned."""
    model: nn.Module
    """Who learns it: any Linen module with the model call. Its field `spec`, if it has one, is filled by the task."""
    training: Training = Training()
    """How it is trained."""
    evaluation: Evaluation = Evaluation()
    """How it is measured."""

    def __post_init__(self) -> None:
        check_fields(self, "task", "model", "training", "evaluation")
        reason = supports(self.model, self.task.spec)
        if reason is not None:
            raise ValueError(f"{type(self.model).__name__} cannot take {type(self.task).__name__}: {reason}")

    @property
    def bound_model(self) -> nn.Module:
        """The model with the task's spec."""
        if "spec" in {field.name for field in dataclasses.fields(self.model)}:
            return self.model.clone(spec=self.task.spec)
        return self.model


@dataclasses.dataclass
class Run:
    """A trained run, loaded from its directory or a file."""

    experiment: Experiment
    params: PyTree
    """Selected parameters, a leading axis S of seeds on every leaf; of a seed that died its last good ones."""
    step: int
    directory: Path
    manifest: dict[str, Any]
    alive: np.ndarray
    """bool[S]: seeds whose training met no non-finite loss or gradient up to this step."""

    def apply(self, inputs: Any, input_mask: Any, target_mask: Any, *, seed: int | None = None, **options: Any) -> Any:
        """The outputs of one seed's network; None: of the first that lives."""
        params = self.seed_params(seed)
        with parameters_fit():
            return self.experiment.bound_model.apply({"params": params}, inputs, input_mask, target_mask, **options)

    def seed_params(self, seed: int | None = None) -> PyTree:
        """The parameters of a living seed, without the seed axis; None: of the first. ValueError for a dead one."""
        seeds, living = self.experiment.training.seeds, np.flatnonzero(self.alive).tolist()
        if seed is not None and not 0 <= seed < seeds:
            raise ValueError(f"seed is {seed}; the run has seeds 0 to {seeds - 1}")
        if not living or seed not in (None, *living):
            who = "every seed" if not living else f"seed {seed}"
            rest = f"; alive are {', '.join(map(str, living))}" if living else ""
            raise ValueError(f"{who} of {self.directory} died in training, of a non-finite loss or gradient{rest}")
        chosen = living[0] if seed is None else seed
        return jax.tree.map(lambda x: x[chosen], self.params)


def load(
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    modules: Iterable[type | ModuleType] = (),
    optimizer: optax.GradientTransformation | None = None,
) -> Run:
    """The run in `directory`, at its latest checkpoint, or at `step` of its checkpoints and snapshots; or the run in a
    file that `export_run` wrote.

    Nothing is executed: the manifest is plain data, whose classes are looked up inside lenmem and among `modules`, the
    classes or Python modules of a user's own models and tasks. An Optax transformation that a run was trained with is
    not saved: it is passed again as `optimizer` where training is to go on, and nothing else needs it. Raises
    ValueError (`CheckpointError` where the checkpoint is missing or damaged).
    """
    directory = Path(directory)
    if directory.suffix == SUFFIX and not directory.is_dir():
        return _load_file(directory, step, modules, optimizer)
    manifest = checkpoint.read_manifest(folder_of(directory, step), step)
    experiment = _experiment_in(manifest, directory, modules, optimizer)
    params, alive, step = read_parameters(experiment, directory, step)
    return Run(experiment, params, step, directory, manifest, alive)


def experiment_in(directory: str | os.PathLike[str], modules: Iterable[type | ModuleType] = ()) -> Experiment:
    """The experiment of the run in a directory, as `load` reads it, without its parameters.

    ValueError where there is no run, or none that has a checkpoint yet.
    """
    saved = Path(directory) / CHECKPOINTS
    if not holds_run(Path(directory)):
        raise ValueError(f"{directory} holds no run that could be resumed")
    if checkpoint.latest(saved) is None:
        raise ValueError(
            f"the run in {directory} was cut off before its first checkpoint, which would say what it is; start it "
            f"again with its configuration: lenmem train CONFIG --resume --directory {directory}"
        )
    return _experiment_in(checkpoint.read_manifest(saved), Path(directory), modules, None)


def export_run(run: Run, path: str | os.PathLike[str], *, with_optimizer: bool = False) -> None:
    """Write a run to one safetensors file, which `load` takes.

    `with_optimizer` adds what training goes on with: the state of the optimiser and of the selection, and the metrics
    so far. `import_run` makes a directory of it again. A run at a snapshot has parameters only: ValueError.
    """
    metadata = {"experiment": run.manifest["experiment"], "step": run.step, "alive": run.alive.tolist()}
    state = None
    if with_optimizer:
        if folder_of(run.directory, run.step).name != CHECKPOINTS:
            only = f"keeps the parameters of step {run.step} only"
            raise ValueError(f"{run.directory} {only}, and no state of the optimiser")
        state, manifest = checkpoint.restore(run.directory / CHECKPOINTS, abstract_state(run.experiment), run.step)
        metadata |= {"run": manifest, "metrics": read_metrics(run.directory, run.step)}
    share.export_params(path, run.params, metadata, state=state)


def import_run(
    path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    modules: Iterable[type | ModuleType] = (),
    optimizer: optax.GradientTransformation | None = None,
) -> Run:
    """The run that `export_run` wrote `with_optimizer`, as a new run directory, where its training can be resumed.

    ValueError for a file without the state, and for a directory that holds a run; nothing is executed, and `optimizer`
    is an Optax transformation that the run was trained with (see `load`).
    """
    path, directory = Path(path), Path(directory)
    if holds_run(directory):
        raise ValueError(f"{directory} already holds a run; choose another directory")
    run = _load_file(path, None, modules, optimizer)
    state = share.import_state(path, abstract_state(run.experiment))
    manifest, metrics = run.manifest.get("run"), run.manifest.get("metrics")
    if not isinstance(manifest, dict) or not isinstance(metrics, list):
        raise ValueError(f"{path} says nothing of the training that its state is of")
    checkpoint.save(directory / CHECKPOINTS, run.step, state, manifest, keep=run.experiment.training.keep_checkpoints)
    write_metrics(directory, metrics)
    return dataclasses.replace(run, directory=directory, manifest=manifest)


def _load_file(
    path: Path,
    step: int | None,
    modules: Iterable[type | ModuleType],
    optimizer: optax.GradientTransformation | None,
) -> Run:
    """The run in a safetensors file. Its pictures would go to a folder beside it."""
    params, metadata = share.import_params(path)
    if "experiment" not in metadata:
        raise ValueError(f"{path} holds parameters, but does not say of which experiment; read it with import_params")
    experiment = _experiment_in(metadata, path, modules, optimizer)
    at = metadata.get("step", experiment.training.steps)
    if step not in (None, at):
        raise ValueError(f"{path} has nothing of step {step}; it has {at}")
    wanted = abstract_parameters(experiment)
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(params, wanted)
    except AssertionError as error:
        raise ValueError(f"the parameters in {path} are not those of its experiment") from error
    # Older files say who lives in their metrics at most.
    alive = metadata.get("alive") or alive_in(metadata.get("metrics"), at, experiment.training.seeds)
    if len(alive) != experiment.training.seeds:
        raise ValueError(f"{path} says of {len(alive)} seeds whether they live; it has {experiment.training.seeds}")
    params = jax.tree.map(np.asarray, params)
    return Run(experiment, params, at, path.with_suffix(""), metadata, np.array(alive, bool))


def _experiment_in(
    manifest: dict[str, Any],
    where: Path,
    modules: Iterable[type | ModuleType],
    optimizer: optax.GradientTransformation | None,
) -> Experiment:
    experiment = from_plain(manifest["experiment"], modules)
    if not isinstance(experiment, Experiment):
        raise ValueError(f"the manifest of {where} holds a {type(experiment).__name__}, not an Experiment")
    if optimizer is None:
        return experiment
    if experiment.training.optimizer is not FORGOTTEN:
        raise ValueError(f"{where} says what it was trained with, {experiment.training.optimizer}; leave out optimizer")
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, optimizer=optimizer))
