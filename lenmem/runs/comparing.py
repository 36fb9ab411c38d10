"""Cross tables of tasks and networks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.linen as nn

from lenmem import configs, models, tasks
from lenmem.evaluation.lengths import Evaluation, LengthCurve
from lenmem.experiment import Experiment
from lenmem.files import read_json, write_json
from lenmem.runs.measuring import Report, finished, holds_same, read_curve, train_and_measure
from lenmem.serialize import to_plain
from lenmem.tasks.base import Task
from lenmem.training.configuration import Training
from lenmem.training.loop import DivergedError
from lenmem.training.optimizer import Optimizer
from lenmem.training.run_directory import fresh_directory, holds_run, numbered


def compare(
    experiments: Mapping[tuple[str, str], Experiment | str],
    directory: Callable[[str, str], Path],
    *,
    report: Callable[[str, str, Experiment], Report | None] = lambda task, model, experiment: None,
) -> dict[tuple[str, str], LengthCurve | str]:
    """Trains and measures every (task, model) cell. A cell that is a reason, not an experiment, is returned unchanged.

    The run of a cell is in `directory(task, model)`, possibly with -2, -3, ... appended. A finished run of the same
    experiment is not trained again, unless its optimiser is an Optax rule, which is not saved; an unfinished run is
    resumed. If every seed of a cell diverges, its value is that reason, and the other cells are trained. Raises
    `DivergedError` if no network is left.
    """
    cells: dict[tuple[str, str], LengthCurve | str] = {}
    ended: list[str] = []
    for (task, model), experiment in experiments.items():
        if isinstance(experiment, str):
            cells[task, model] = experiment
            continue
        where = directory(task, model)
        same = [place for place in itertools.takewhile(holds_run, numbered(where)) if holds_same(experiment, place)]
        done = next((place for place in same if finished(experiment, place)), None)
        if done is not None and (curve := read_curve(done)) is not None:
            cells[task, model] = dataclasses.replace(curve, label=model)
            continue
        resume = bool(same)
        where = same[0] if same else fresh_directory(where)
        told = report(task, model, experiment)
        try:
            _, curve = train_and_measure(experiment, where, resume=resume, report=told, label=model)
        except DivergedError as error:
            cells[task, model] = str(error)
            ended.append(f"{model} on {task}: {error}")
            continue
        if curve is None:
            raise KeyboardInterrupt(f"stopped while training {model} on {task}; the same command continues")
        cells[task, model] = curve
    if ended and not any(isinstance(cell, LengthCurve) for cell in cells.values()):
        raise DivergedError("; ".join(ended))
    return cells


def save_comparison(
    path: Path,
    command: str,
    environment: Mapping[str, Any],
    experiments: Mapping[tuple[str, str], Experiment | str],
    cells: Mapping[tuple[str, str], LengthCurve | str],
) -> None:
    """Writes the results of `compare` as JSON: every curve with its experiment, the command and the environment."""
    networks = [
        {"task": task, "model": model, "experiment": to_plain(experiments[task, model]), "curve": cell.to_dict()}
        for (task, model), cell in cells.items()
        if isinstance(cell, LengthCurve)
    ]
    write_json(path, {"command": command, "environment": environment, "networks": networks})


def comparison_directory(directory: Path, command: str) -> Path:
    """The output directory of `lenmem compare`: `directory`/comparison, or with -2, -3, ... appended.

    It never contains a run, or the comparison of another command.
    """

    def free(candidate: Path) -> bool:
        if holds_run(candidate):
            return False
        saved = candidate / "comparison.json"
        return not saved.exists() or read_json(saved).get("command") == command

    return next(filter(free, numbered(directory / "comparison")))


def cross(
    task_names: Sequence[str],
    model_names: Sequence[str],
    training: Training,
    base: Experiment | None = None,
    optimizers: Mapping[str, Optimizer] = MappingProxyType({}),
    named: Mapping[str, nn.Module] = MappingProxyType({}),
    made: Task | None = None,
    evaluation: Evaluation | None = None,
) -> dict[tuple[str, str], Experiment | str]:
    """The cells of a cross table: an experiment, or the reason why the pair cannot work.

    With `base`, all cells have its task (`task_names` then has a single name) and its evaluation, if `evaluation` is
    None. The cell with the name of its model has that model. `optimizers` maps model names to their optimisers, since
    no learning rate suits all models. `named` maps names to models, and takes precedence over other models with these
    names. `made` is a task that replaces the one in `task_names`.
    """
    cells: dict[tuple[str, str], Experiment | str] = {}
    measured = evaluation or (base.evaluation if base else Evaluation())
    if base is not None and training.optimizer != base.training.optimizer:
        optimizers = {}  # an option takes precedence
    for task_name in task_names:
        task: Task = made or (base.task if base else task_named(task_name))
        for model_name in model_names:
            own = base is not None and models.name_of(base.model) == model_name
            if model_name in named:
                model = named[model_name]
            else:
                model = base.model if base is not None and own else models.make(model_name)
            recipe = training
            if model_name in optimizers and not own:
                recipe = dataclasses.replace(training, optimizer=optimizers[model_name])
            try:
                cells[task_name, model_name] = Experiment(task, model, recipe, measured)
            except ValueError:
                reason = models.supports(model, task.spec)
                if reason is None:
                    raise
                cells[task_name, model_name] = reason
    return cells


def task_named(name: str) -> Task:
    """The task with that name, or the task of a named configuration."""
    return configs.load_config(name).task if name in configs.names() else tasks.make(name)
