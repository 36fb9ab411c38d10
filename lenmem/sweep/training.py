"""Training and measuring all combinations."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem import runs
from lenmem.evaluation.metrics import ApplyModel
from lenmem.experiment import Experiment
from lenmem.files import json_number, make_directory, read_json, write_json
from lenmem.runs import Report, without_dead
from lenmem.serialize import to_plain
from lenmem.sweep.combinations import PLAN, SCORE, Combination, JointTraining, Outcome, as_python, combine, plan
from lenmem.sweep.table import living, save_table
from lenmem.training import checkpoint
from lenmem.training.lanes import initial_lanes, lanes_program
from lenmem.training.loop import DivergedError, check_selection, run, validation_scores
from lenmem.training.resume import code_of, experiment_differences
from lenmem.training.run_directory import (
    CHECKPOINTS,
    SNAPSHOTS,
    Recorder,
    code_changed,
    holds_run,
    read_metrics,
    write_metrics,
)
from lenmem.training.step import State


def sweep(
    experiment: Experiment,
    over: Mapping[str, Sequence[Any]],
    directory: str | os.PathLike[str],
    *,
    say: Callable[[str], None] = lambda text: None,
    report: Callable[[Experiment], Report | None] = lambda experiment: None,
) -> list[Outcome]:
    """Trains and measures every combination, and writes the table and its picture.

    The same call continues an interrupted sweep; an Optax rule, which is not saved, is taken for the one of the first
    call. Raises ValueError for a directory with other contents, FileNotFoundError if the curve of a trained combination
    was deleted, and `DivergedError` if every seed of every combination diverged.

    Args:
        experiment: the common experiment.
        over: path of a field, such as `training.optimizer.learning_rate` -> its values, as a sequence or an array.
        directory: directory of the sweep.
        say: called with a line of text about each program.
        report: called with the experiment of a program before it is trained; returns the `report` of its training.
    """
    directory, over = Path(directory), {path: as_python(values) for path, values in over.items()}
    combinations = combine(experiment, over)
    for combination in combinations:  # errors before the training, not after it
        check_selection(combination.experiment)
        combination.experiment.evaluation.lengths_for(combination.experiment.task)
    _claim(directory, experiment, over, {c.name: c.experiment.task.data_hash for c in combinations})
    programs, remarks = plan(combinations)
    for remark in remarks:
        say(remark)
    for number, program in enumerate(programs, 1):
        group, first = program.combinations, program.combinations[0]
        if all((directory / c.name / SCORE).exists() for c in group):
            continue
        seeds = first.experiment.training.seeds
        what = first.name if len(group) == 1 else f"{len(group)} combinations at once"
        say(f"program {number} of {len(programs)}: {what}, {seeds} seed(s) each")
        if program.numbers:
            _train_jointly(program, directory, directory / "programs" / str(number), report(first.experiment))
        else:
            _train_alone(first, directory / first.name, report(first.experiment))
    shutil.rmtree(directory / "programs", ignore_errors=True)
    outcomes = [_outcome(combination, directory / combination.name) for combination in combinations]
    if not any(living(outcome) for outcome in outcomes):
        raise DivergedError(f"every seed of all {len(outcomes)} combinations met a non-finite loss, gradient or update")
    save_table(outcomes, directory)
    return outcomes


def _claim(
    directory: Path, experiment: Experiment, over: Mapping[str, Sequence[Any]], data: Mapping[str, str | None]
) -> None:
    """Writes the experiment, the values and the hashes of data files of the sweep, or checks that the directory has the
    same."""
    planned = {"experiment": to_plain(experiment), "over": [[path, to_plain(list(v))] for path, v in over.items()]}
    if (code := code_of(experiment)) is not None:
        planned["code"] = code
    if any(data.values()):
        planned["data"] = dict(data)
    path = directory / PLAN
    if path.exists():
        saved = read_json(path)
        if code_changed(saved, experiment):
            raise ValueError(f"{directory} holds a sweep with other code of your classes; choose another directory")
        if saved["over"] != planned["over"] or experiment_differences(saved["experiment"], experiment):
            raise ValueError(f"{directory} holds another sweep; choose another directory")
        if saved.get("data", data) != data:
            raise ValueError(f"{directory} holds a sweep of data that have changed since; choose another directory")
    elif directory.is_dir() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    else:
        make_directory(directory)
        write_json(path, planned)


def _train_alone(combination: Combination, where: Path, report: Report | None) -> None:
    experiment = combination.experiment
    try:
        result, curve = runs.train_and_measure(
            experiment, where, resume=holds_run(where), report=report, label=combination.name
        )
    except DivergedError as error:
        write_json(where / SCORE, {"diverged": str(error)})
        return
    if curve is None:
        raise KeyboardInterrupt(f"stopped while training {combination.name}; the same command continues")
    params = without_dead(result.params, result.alive)
    _write_scores(where, validation_scores(ApplyModel(experiment.bound_model), params, experiment, loss=True))


def _train_jointly(joint: JointTraining, directory: Path, where: Path, report: Report | None) -> None:
    group, numbers = joint.combinations, joint.numbers
    experiment = group[0].experiment
    key = jax.random.key(experiment.training.seed)
    program = lanes_program(experiment, numbers, key)
    about = {"numbers": {path: list(values) for path, values in numbers.items()}}

    def named(entry: dict[str, Any]) -> None:
        if report is not None:
            report(entry | {"died": [_of_combination(joint, death) for death in entry.get("died", [])]})

    try:
        result = run(program, experiment, Recorder(where, experiment, key, resume=holds_run(where), about=about), named)
    except DivergedError as error:
        _split(joint, where, directory)
        for combination in group:
            write_json(directory / combination.name / SCORE, {"diverged": str(error)})
        return
    if result.interrupted:
        raise KeyboardInterrupt(f"stopped at step {result.step} of a program; the same command continues")
    params = without_dead(result.params, result.alive)
    scores = validation_scores(program.apply, params, experiment, loss=True)
    curves = runs.measure(experiment, params, apply=program.apply)
    _split(joint, where, directory)
    for number, combination in enumerate(group):
        lanes = _lanes(joint, number)
        values = {metric: value[lanes] for metric, value in curves.values.items()}
        target = directory / combination.name
        runs.save_curves(target, [dataclasses.replace(curves, label=combination.name, values=values)])
        _write_scores(target, {metric: value[lanes] for metric, value in scores.items()})


def _of_combination(joint: JointTraining, death: dict[str, Any]) -> dict[str, Any]:
    """The death of a lane as that of a seed of a combination."""
    number, seed = divmod(death["seed"], joint.combinations[0].experiment.training.seeds)
    return death | {"combination": joint.combinations[number].name, "seed": seed}


def _lanes(joint: JointTraining, number: int) -> slice:
    """The lanes of a combination, one for each seed."""
    seeds = joint.combinations[0].experiment.training.seeds
    return slice(number * seeds, (number + 1) * seeds)


def _split(joint: JointTraining, where: Path, directory: Path) -> None:
    """Writes the run of each combination, as if `train` had written it for that combination alone."""
    group, experiment = joint.combinations, joint.combinations[0].experiment
    history = read_metrics(where)
    for number, combination in enumerate(group):
        make_directory(directory / combination.name)
        write_metrics(directory / combination.name, [_entry_of(entry, _lanes(joint, number)) for entry in history])
    keys = jax.random.split(jax.random.key(0), experiment.training.seeds)
    like = initial_lanes(experiment, joint.numbers, keys, abstract=True)
    state, manifest = checkpoint.restore(where / CHECKPOINTS, like)
    snapshots = {
        step: checkpoint.restore(where / SNAPSHOTS, {"params": like.members.params}, step)[0]
        for step in checkpoint.steps(where / SNAPSHOTS)
    }
    for number, combination in enumerate(group):
        lanes, target = _lanes(joint, number), directory / combination.name
        own = {"experiment": to_plain(combination.experiment), "environment": manifest.get("environment")}
        own |= {name: manifest[name] for name in ("data", "code") if name in manifest}
        # These parts are common to all combinations of the program; the others are this combination's lanes.
        shared = {name: value for name, value in manifest.items() if name not in ("experiment", "numbers")}
        cut = State(state.step, jax.tree.map(lambda x, lanes=lanes: x[lanes], state.members))
        checkpoint.save(target / CHECKPOINTS, int(state.step), cut, own | shared, keep=1)
        for step, snapshot in snapshots.items():
            params = jax.tree.map(lambda x, lanes=lanes: x[lanes], snapshot)
            checkpoint.save(target / SNAPSHOTS, step, params, own)


def _entry_of(entry: Mapping[str, Any], lanes: slice) -> dict[str, Any]:
    """The part of a metrics line that belongs to some lanes."""
    own = {name: value[lanes] if isinstance(value, list) else value for name, value in entry.items() if name != "died"}
    died = [
        death | {"seed": death["seed"] - lanes.start}
        for death in entry.get("died", [])
        if lanes.start <= death["seed"] < lanes.stop
    ]
    return own | ({"died": died} if died else {})


def _write_scores(where: Path, scores: Mapping[str, np.ndarray]) -> None:
    plain = {name: list(map(json_number, value)) for name, value in scores.items()}
    write_json(where / SCORE, {"scores": plain})


def _outcome(combination: Combination, where: Path) -> Outcome:
    kept = read_json(where / SCORE)
    if "diverged" in kept:
        return Outcome(combination, {}, None)
    curve = runs.read_curve(where)
    if curve is None:
        raise FileNotFoundError(f"{where} has scores and no curve; `lenmem evaluate {where} --save` measures it again")
    scores = {name: np.array(values, np.float64) for name, values in kept["scores"].items()}
    return Outcome(combination, scores, curve)
