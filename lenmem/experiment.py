"""Experiments (a task, a model, its training and its evaluation, as frozen dataclasses) and trained runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
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
from lenmem.nn.module import with_dtype
from lenmem.reuse import reused
from lenmem.serialize import FORGOTTEN, from_plain, to_plain
from lenmem.tasks.base import Task
from lenmem.training import checkpoint
from lenmem.training.configuration import Training
from lenmem.training.loop import Result
from lenmem.training.run_directory import (
    CHECKPOINTS,
    CURVE,
    abstract_parameters,
    abstract_state,
    alive_in,
    data_changed,
    folder_of,
    fresh_directory,
    holds_run,
    numbered,
    read_metrics,
    read_parameters,
    without_checkpoint,
    write_metrics,
)
from lenmem.types import PyTree
from lenmem.zoo import shelf

SUFFIX = ".safetensors"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A task, a model, and the settings of its training and evaluation.

    Raises ValueError, with the reason, if the model does not support the task or the precision.
    """

    task: Task
    """The task to learn."""
    model: nn.Module
    """The network: any Linen module with the model interface. If it has a field `spec`, the task's spec is set
    there."""
    training: Training = Training()
    """Settings of the training."""
    evaluation: Evaluation = Evaluation()
    """Settings of the evaluation."""

    def __post_init__(self) -> None:
        check_fields(self, "task", "model", "training", "evaluation")
        reason = supports(self.model, self.task.spec)
        if reason is not None:
            raise ValueError(f"{type(self.model).__name__} cannot take {type(self.task).__name__}: {reason}")
        if self.training.dtype is not None:
            if not self._has("dtype"):
                raise ValueError(f"training.precision is 'bf16', but {type(self.model).__name__} has no field `dtype`")
            own = self.model.dtype  # pyright: ignore[reportAttributeAccessIssue]
            if own is not None and np.dtype(own) != np.dtype(self.training.dtype):
                raise ValueError(
                    f"training.precision is 'bf16', but model.dtype is {np.dtype(own).name}; leave one out"
                )

    @property
    def bound_model(self) -> nn.Module:
        """The model with the task's spec and the training's precision."""
        model = self.model.clone(spec=self.task.spec) if self._has("spec") else self.model
        return model if self.training.dtype is None else with_dtype(model, self.training.dtype)

    def _has(self, name: str) -> bool:
        """Whether the model has this field."""
        return name in {field.name for field in dataclasses.fields(self.model)}


@dataclasses.dataclass(eq=False)
class Run:
    """A trained run, loaded from its directory or from a file."""

    experiment: Experiment
    params: PyTree
    """The selected parameters, with a leading axis S of seeds on every leaf. A diverged seed has those before it
    diverged."""
    step: int
    directory: Path
    manifest: dict[str, Any]
    alive: np.ndarray
    """bool[S]: whether a seed has had no non-finite loss, gradient or update up to this step."""
    preferred: int | None = None
    """The default seed. None: the first seed that did not diverge."""
    file: Path | None = None
    """The file it was loaded from, if any. Its `directory` is then only the place for pictures."""

    @property
    def name(self) -> str:
        """The name of its directory; of a file beside its directory, which may be numbered, that of the file."""
        beside = self.file is not None and self.file.parent == self.directory.parent
        return self.file.stem if self.file and beside else self.directory.absolute().name

    def is_from(self, path: str | os.PathLike[str]) -> bool:
        """Whether it was loaded from the file at this path."""
        return self.file is not None and self.file.exists() and Path(path).exists() and self.file.samefile(path)

    @classmethod
    def of(cls, trained: Run | Result) -> Run:
        """The result of a training as a run; a run is returned as it is.

        Without a directory, its pictures go to `runs/result`, with a number if that holds a run.
        """
        if isinstance(trained, Run):
            return trained
        experiment, where = trained.experiment, trained.directory
        if where is not None:
            manifest = checkpoint.read_manifest(folder_of(where, trained.step), trained.step)
        else:
            data = experiment.task.data_hash
            manifest = {"experiment": to_plain(experiment)} | ({} if data is None else {"data": data})
        where = where or fresh_directory(Path("runs/result"))
        return cls(experiment, trained.params, trained.step, where, manifest, trained.alive)

    def apply(self, inputs: Any, input_mask: Any, target_mask: Any, *, seed: int | None = None, **options: Any) -> Any:
        """The outputs of one seed's network. `seed=None`: `preferred`, or the first seed that did not diverge.

        Compiled once for each shape; with `options` of the network, such as `targets`, it is not compiled.
        """
        model, params = self.experiment.bound_model, self.seed_params(seed)
        apply = model.apply if options else _known_apply(model, self.experiment.task.spec.shapes)
        with parameters_fit():
            # Waits, since the conversion of an array that did not fit the memory ends the process.
            return jax.block_until_ready(apply({"params": params}, inputs, input_mask, target_mask, **options))

    def seed_params(self, seed: int | None = None) -> PyTree:
        """The parameters of `chosen_seed(seed)`, without the seed axis."""
        chosen = self.chosen_seed(seed)
        return jax.tree.map(lambda x: x[chosen], self.params)

    def chosen_seed(self, seed: int | None = None) -> int:
        """`seed`; None: `preferred`, or the first seed that did not diverge. Raises ValueError for a diverged seed."""
        seed = self.preferred if seed is None else seed
        seeds, living = self.experiment.training.seeds, np.flatnonzero(self.alive).tolist()
        if seed is not None and not 0 <= seed < seeds:
            raise ValueError(f"seed is {seed}; the run has seeds 0 to {seeds - 1}")
        if not living or seed not in (None, *living):
            who = "every seed" if not living else f"seed {seed}"
            rest = f"; alive are {', '.join(map(str, living))}" if living else ""
            raise ValueError(
                f"{who} of {self.directory} diverged in training: non-finite loss, gradient or update{rest}"
            )
        return living[0] if seed is None else seed


_known_apply = reused(lambda model, shapes: jax.jit(model.apply), 4)
"""Specs with other `shapes` compare equal, but the interface may depend on them."""


def load(
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    modules: Iterable[type | ModuleType] = (),
    optimizer: optax.GradientTransformation | None = None,
) -> Run:
    """Loads a run from its directory, at the latest checkpoint or at the checkpoint or snapshot of `step`; or from a
    file that `export_run` wrote; or a network of the zoo, `zoo:lantm/reverse` (`lenmem zoo` lists them), whose best
    seed becomes `preferred`.

    No code is executed: the manifest is plain data, whose classes are looked up inside lenmem and in `modules`, the
    classes or Python modules of the user's models and tasks. A custom Optax transformation is not saved with a run.
    Pass it again as `optimizer` to continue training; nothing else needs it. Raises ValueError (`CheckpointError` if
    the checkpoint is missing or damaged), also if the data file of the task has changed.
    """
    if shelf.is_name(directory):
        return _load_entry(shelf.find(directory), step, modules, optimizer)
    directory = Path(directory)
    if directory.suffix == SUFFIX and not directory.is_dir():
        return _load_file(directory, step, modules, optimizer)
    manifest = checkpoint.read_manifest(folder_of(directory, step), step)
    experiment = _experiment_in(manifest, directory, modules, optimizer)
    _check_data(manifest, experiment, directory)
    params, alive, step = read_parameters(experiment, directory, step)
    return Run(experiment, params, step, directory, manifest, alive)


def experiment_in(directory: str | os.PathLike[str], modules: Iterable[type | ModuleType] = ()) -> Experiment:
    """The experiment of the run in a directory, as in `load`, without reading the parameters.

    Raises ValueError if there is no run, or no checkpoint.
    """
    saved = Path(directory) / CHECKPOINTS
    if not holds_run(Path(directory)):
        file = os.fspath(directory).endswith(".safetensors")
        hint = f"; lenmem import {directory} makes a run of the file" if file else ""
        raise ValueError(f"{directory} holds no run that could be resumed{hint}")
    if checkpoint.latest(saved) is None:
        if (Path(directory) / CURVE).exists():
            raise ValueError(f"the checkpoints of {directory}, a finished run, are gone; it cannot be resumed")
        raise ValueError(without_checkpoint(Path(directory)))
    return _experiment_in(checkpoint.read_manifest(saved), Path(directory), modules, None)


def export_run(run: Run | Result, path: str | os.PathLike[str], *, with_optimizer: bool = False) -> None:
    """Writes a run, or the result of a training, to one safetensors file, which `load` accepts.

    `with_optimizer` adds what is needed to continue training: the state of the optimiser and of the selection, and the
    metrics so far. `import_run` turns such a file back into a directory. Raises ValueError for a run at a snapshot,
    which has parameters only, for a name that `load` would not take for a file, and for a run that was loaded from a
    file, if that file would be replaced or the optimiser is wanted.
    """
    if Path(path).suffix != SUFFIX:
        raise ValueError(f"the name of the file must end with {SUFFIX}, got {path}")
    run = Run.of(run)
    if run.is_from(path):
        raise ValueError(f"{path} is the file that is exported; choose another name for its copy")
    if run.file is not None and with_optimizer:
        raise ValueError(f"{run.file} is a file, of which only the parameters are exported; import it first")
    # As it is now: networks of the zoo may have other fields than in training.
    metadata = {"experiment": to_plain(run.experiment), "step": run.step, "alive": run.alive.tolist()}
    if "data" in run.manifest:
        metadata["data"] = run.manifest["data"]
    state = None
    if with_optimizer:
        if folder_of(run.directory, run.step).name != CHECKPOINTS:
            only = f"has only the parameters of step {run.step}"
            raise ValueError(f"{run.directory} {only}, without the state of the optimiser")
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
    """Turns a file that `export_run` wrote `with_optimizer` into a new run directory, where training can be resumed.

    Raises ValueError for a file without the optimiser state, and for a directory that holds a run. No code is executed.
    `optimizer` is the custom Optax transformation of the run, if it has one (see `load`).
    """
    path, directory = shelf.find(path).file() if shelf.is_name(path) else Path(path), Path(directory)
    if holds_run(directory):
        raise ValueError(f"{directory} already holds a run; choose another directory")
    if (directory / CURVE).exists():
        raise ValueError(f"{directory} holds the curve of another network; choose another directory")
    run = _load_file(path, None, modules, optimizer)
    state = share.import_state(path, abstract_state(run.experiment))
    manifest, metrics = run.manifest.get("run"), run.manifest.get("metrics")
    if not isinstance(manifest, dict) or not isinstance(metrics, list):
        raise ValueError(f"{path} has an optimiser state but no training that belongs to it")
    checkpoint.save(directory / CHECKPOINTS, run.step, state, manifest, keep=run.experiment.training.keep_checkpoints)
    write_metrics(directory, metrics)
    return dataclasses.replace(run, directory=directory, manifest=manifest, file=None)


def _load_file(
    path: Path,
    step: int | None,
    modules: Iterable[type | ModuleType],
    optimizer: optax.GradientTransformation | None,
) -> Run:
    """The run in a safetensors file.

    Its pictures are written to a directory with the file's name, without suffix; with a number if that holds a run.
    """
    params, metadata = share.import_params(path)
    if "experiment" not in metadata:
        raise ValueError(f"{path} holds parameters but no experiment; read it with import_params")
    for name, kind in (("run", dict), ("alive", list), ("step", int), ("metrics", list)):
        if not isinstance(metadata.get(name, kind()), kind):
            raise ValueError(f"{path} is damaged: its {name} is {json.dumps(metadata[name])[:40]}")
    experiment = _experiment_in(metadata, path, modules, optimizer)
    at = metadata.get("step", experiment.training.steps)
    if step not in (None, at):
        raise ValueError(f"{path} has nothing at step {step}; it has {at}")
    _check_data(metadata | metadata.get("run", {}), experiment, path)
    wanted = abstract_parameters(experiment)
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(params, wanted)
    except AssertionError as error:
        raise ValueError(f"the parameters in {path} do not fit its experiment") from error
    # Older files have this only in their metrics, or not at all.
    alive = metadata.get("alive") or alive_in(metadata.get("metrics"), at, experiment.training.seeds)
    if len(alive) != experiment.training.seeds:
        raise ValueError(f"{path} says which of {len(alive)} seeds diverged; it has {experiment.training.seeds}")
    params = jax.tree.map(np.asarray, params)
    directory = next(place for place in numbered(path.with_suffix("")) if not holds_run(place))
    return Run(experiment, params, at, directory, metadata, np.array(alive, bool), file=path)


def _load_entry(
    entry: shelf.Entry,
    step: int | None,
    modules: Iterable[type | ModuleType],
    optimizer: optax.GradientTransformation | None,
) -> Run:
    """A network of the zoo, with the fields with which it was measured. Its pictures are written to `runs/zoo`."""
    run = _load_file(entry.file(), step, modules, optimizer)
    changed = entry.record.get("after_training", {})
    model = run.experiment.model.clone(**changed) if changed else run.experiment.model
    experiment = dataclasses.replace(run.experiment, model=model)
    directory = Path("runs") / "zoo" / entry.name
    return dataclasses.replace(run, experiment=experiment, directory=directory, preferred=entry.best_seed)


def _check_data(manifest: Mapping[str, Any], experiment: Experiment, where: Path) -> None:
    if data_changed(manifest, experiment):
        raise ValueError(f"the data file of {where} has changed since its training, and with it the ids of tokens")


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
        raise ValueError(f"{where} was trained with {experiment.training.optimizer}; leave out the argument optimizer")
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, optimizer=optimizer))
