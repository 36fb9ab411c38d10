"""Training and measuring, and the scores of the complete test split."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.evaluation.lengths import LengthCurve, length_curve
from lenmem.evaluation.metrics import Apply, score
from lenmem.evaluation.sets import set_scores
from lenmem.experiment import Experiment, Run
from lenmem.files import make_directory, read_json, write_whole
from lenmem.training import checkpoint, processes
from lenmem.training.loop import Result, train
from lenmem.training.resume import same_experiment
from lenmem.training.run_directory import CHECKPOINTS, CURVE, code_changed, data_changed
from lenmem.types import PyTree

Report = Callable[[dict[str, Any]], None]


def without_dead(params: PyTree, alive: np.ndarray) -> PyTree:
    """The parameters [S, ...] with NaN for diverged seeds (`alive` bool[S] is False), whose scores are then NaN."""

    def masked(x: jax.Array) -> Any:
        nan = np.array(np.nan, x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x
        return np.where(alive.reshape(-1, *[1] * (x.ndim - 1)), x, nan)

    return jax.tree.map(masked, params)


def measure(
    trained: Run | Result | Experiment,
    params: PyTree = None,
    *,
    label: str = "",
    alive: np.ndarray | None = None,
    apply: Apply | None = None,
) -> LengthCurve:
    """The length curve of trained parameters: `measure(result)`, `measure(run)`, or `measure(experiment, params)`.

    Diverged seeds (`alive` is False) are NaN. `apply` replaces the experiment's model.
    """
    if isinstance(trained, Experiment):
        experiment = trained
        if params is None:
            raise ValueError("to measure an experiment, pass its parameters: measure(experiment, params)")
    else:
        experiment = trained.experiment
        params, alive = (trained.params if params is None else params), trained.alive if alive is None else alive
    if alive is not None:
        params = without_dead(params, alive)
    evaluation = experiment.evaluation
    return length_curve(
        apply or experiment.bound_model,
        params,
        experiment.task,
        evaluation.lengths_for(experiment.task),
        evaluation.samples,
        jax.random.key(evaluation.seed),
        label=label or type(experiment.model).__name__,
        batch_size=evaluation.batch_size,
        smallest_capacity=evaluation.smallest_capacity,
    )


def examples_scored(experiment: Experiment, split: str = "test") -> int:
    """The number of examples of a split that are scored: `test_examples`, or all of a smaller fixed set."""
    wanted = experiment.evaluation.test_examples
    return min(wanted, experiment.task.examples_of(split) or wanted)


def whole_scores(experiment: Experiment, params: PyTree, alive: np.ndarray) -> list[str]:
    """The scores and the perplexity of the test split, of up to `test_examples` examples, for every seed, as lines of
    text. Empty for tasks without them."""
    task, evaluation = experiment.task, experiment.evaluation
    if not (task.forced or task.scores_sets):
        return []
    params, size, model = without_dead(params, alive), evaluation.batch_size, experiment.bound_model
    samples = examples_scored(experiment)
    lines = []
    if task.forced:
        perplexity = score(model, params, task, samples, size, evaluation.seed)["perplexity"]
        told = f"{samples} answers, per {task.unit.removesuffix('s')}"
        lines.append(f"perplexity on the test: {_two_places(perplexity)} ({told})")
    try:
        found = set_scores(model, params, task, samples, batch_size=size) if task.scores_sets else {}
    except ValueError as missing:
        return [*lines, str(missing)]
    for name, of_seeds in found.items():
        lines.append(f"{name.upper()} on the test: {_two_places(100 * of_seeds.values)} ({of_seeds.told})")
    return lines


def _two_places(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def save_curves(directory: Path, curves: Sequence[LengthCurve], name: str = "curve") -> None:
    """Writes `<name>.png` with all curves, and `<name>.csv` and `<name>.json` of the first.

    `curve.json` is written last, and atomically, so a run that has it is finished.
    """
    from lenmem.evaluation.plots import plot_curves

    make_directory(directory)
    curves[0].save_csv(directory / f"{name}.csv")
    plot_curves(curves, directory / f"{name}.png")
    write_whole(directory / f"{name}.json", (json.dumps(curves[0].to_dict()) + "\n").encode())


def read_curve(directory: Path) -> LengthCurve | None:
    """The saved curve of a finished run; None if there is none. ValueError if the file is damaged."""
    saved = directory / CURVE
    if not saved.exists():
        return None
    try:
        return LengthCurve.from_dict(read_json(saved))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{saved} is not a curve; measure it again: lenmem evaluate {directory} --save") from error


def own_curve(run: Run) -> LengthCurve:
    """The saved curve of a run. It is measured if there is none, or if the run was loaded at an earlier step or from a
    file, beside which the curve of another run may lie."""
    final = run.step == run.experiment.training.steps and run.file is None
    return (read_curve(run.directory) if final else None) or measure(run)


def train_and_measure(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool = False,
    report: Report | None = None,
    tensorboard: bool = False,
    label: str = "",
) -> tuple[Result, LengthCurve | None]:
    """Trains in `directory`, and measures unless the run was interrupted."""
    experiment.evaluation.lengths_for(experiment.task)  # raises before the training, not after it
    result = train(experiment, directory=directory, resume=resume, report=report, tensorboard=tensorboard)
    if result.interrupted:
        return result, None
    curve = measure(result, label=label)
    if processes.is_first():
        save_curves(directory, [curve])
    return result, curve


def finished(experiment: Experiment, directory: Path) -> bool:
    """Whether `directory` contains a finished run of exactly this experiment."""
    if checkpoint.latest(directory / CHECKPOINTS) != experiment.training.steps:
        return False
    return (directory / CURVE).exists() and holds_same(experiment, directory)


def holds_same(experiment: Experiment, directory: Path) -> bool:
    """Whether `directory` contains a checkpoint of exactly this experiment, with the same data and the same code of the
    user's own classes."""
    saved = directory / CHECKPOINTS
    if checkpoint.latest(saved) is None:
        return False
    manifest = checkpoint.read_manifest(saved)
    same = same_experiment(manifest["experiment"], experiment) and not data_changed(manifest, experiment)
    return same and not code_changed(manifest, experiment)
