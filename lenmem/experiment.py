"""An experiment: a task, a model, how it is trained and how it is measured, as plain frozen data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax

from lenmem.evaluation.lengths import Evaluation
from lenmem.models import supports
from lenmem.serialize import from_plain
from lenmem.tasks.base import Task
from lenmem.training import checkpoint
from lenmem.training.loop import Training, restore_params, saved_in
from lenmem.types import PyTree


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
    """A trained run, loaded from its directory."""

    experiment: Experiment
    params: PyTree
    """Selected parameters, a leading axis S of seeds on every leaf."""
    step: int
    directory: Path
    manifest: dict[str, Any]

    def apply(self, inputs: Any, input_mask: Any, target_mask: Any, *, seed: int = 0, **options: Any) -> Any:
        """The outputs of one seed's network."""
        params = self.seed_params(seed)
        return self.experiment.bound_model.apply({"params": params}, inputs, input_mask, target_mask, **options)

    def seed_params(self, seed: int = 0) -> PyTree:
        """The parameters of one seed, without the seed axis."""
        seeds = self.experiment.training.seeds
        if not 0 <= seed < seeds:
            raise ValueError(f"seed is {seed}; the run has seeds 0 to {seeds - 1}")
        return jax.tree.map(lambda x: x[seed], self.params)


def load(
    directory: str | os.PathLike[str], *, step: int | None = None, modules: Iterable[type | ModuleType] = ()
) -> Run:
    """The run in `directory`, at its latest checkpoint, or at `step` of its checkpoints and snapshots.

    Nothing is executed: the manifest is plain data, whose classes are looked up inside lenmem and among `modules`, the
    classes or Python modules of a user's own models and tasks. Raises ValueError (`CheckpointError` where the
    checkpoint is missing or damaged).
    """
    directory = Path(directory)
    manifest = checkpoint.read_manifest(saved_in(directory, step), step)
    experiment = from_plain(manifest["experiment"], modules)
    if not isinstance(experiment, Experiment):
        raise ValueError(f"the manifest of {directory} holds a {type(experiment).__name__}, not an Experiment")
    params, step = restore_params(experiment, directory, step)
    return Run(experiment, params, step, directory, manifest)
