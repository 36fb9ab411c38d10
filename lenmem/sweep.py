"""Sweeps: an experiment with all combinations of given values for some of its fields.

Combinations that differ only in numbers are trained by one program, together with all their seeds (`training.lanes`).
Combinations that differ in other ways, such as in shapes, are trained one after another. Each becomes a run of its own,
as if trained alone.

    <directory>/sweep.json          the experiment and the values
    <directory>/<combination>/      a run, and score.json, which is written last
    <directory>/programs/<number>/  checkpoints of a program with several combinations, until they are finished
    <directory>/sweep.csv, .png     the table and its picture
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
import shutil
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.markup import escape
from rich.table import Table

from lenmem import runs
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.metrics import ApplyModel
from lenmem.evaluation.statistics import summarise
from lenmem.evaluation.tables import percent
from lenmem.experiment import Experiment
from lenmem.runs import Report, without_dead
from lenmem.serialize import to_plain, write_json
from lenmem.tasks.base import draw
from lenmem.training import checkpoint
from lenmem.training.lanes import TRACEABLE, Numbers, initial_lanes, lanes_program, owner_of, replaced, untraceable
from lenmem.training.loop import DivergedError, run, validation_scores
from lenmem.training.resume import same_experiment
from lenmem.training.run_directory import CHECKPOINTS, SNAPSHOTS, Recorder, holds_run, read_metrics, write_metrics
from lenmem.training.step import State

SCORE, PLAN = "score.json", "sweep.json"


@dataclasses.dataclass(frozen=True)
class Combination:
    """One experiment of a sweep."""

    name: str
    """Name of its directory: `learning_rate=0.01,hidden_size=50`."""
    values: Mapping[str, Any]
    """Path of each swept field -> its value."""
    experiment: Experiment


@dataclasses.dataclass(frozen=True)
class JointTraining:
    """Combinations that are trained by one program."""

    combinations: tuple[Combination, ...]
    numbers: Numbers
    """The numbers in which they differ; empty for a single combination."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a combination."""

    combination: Combination
    scores: Mapping[str, np.ndarray]
    """metric -> float[S], and `loss`, on the selection split; NaN for diverged seeds; empty if all diverged early."""
    curve: LengthCurve | None


def combine(experiment: Experiment, over: Mapping[str, Sequence[Any]]) -> tuple[Combination, ...]:
    """All combinations of the values; the last field changes fastest. Raises ValueError for invalid values."""
    if not over:
        raise ValueError("nothing to sweep over: give fields with their values")
    for path, values in over.items():
        owner_of(experiment, path)
        if not values:
            raise ValueError(f"no values for {path}: give at least one")
        if any(isinstance(value, optax.GradientTransformation) for value in values):
            raise ValueError(
                f"values of {path} cannot be an optax.GradientTransformation: a saved sweep cannot tell two of them "
                "apart; sweep over the fields of lenmem.Optimizer, or train an experiment for each"
            )
    names = short_names(over)
    combinations = []
    for values in itertools.product(*over.values()):
        chosen = dict(zip(over, values, strict=True))
        name = ",".join(f"{names[path]}={_text(value)}" for path, value in chosen.items())
        combinations.append(Combination(re.sub(r"[^\w.=+,-]+", "_", name), chosen, replaced(experiment, chosen)))
    twice = [name for name in {c.name for c in combinations} if sum(c.name == name for c in combinations) > 1]
    if twice:
        raise ValueError(f"{twice[0]} occurs twice: give each value once")
    return tuple(combinations)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """path -> its last part, or the whole path if two have the same last part."""
    paths = list(paths)
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def plan(combinations: Sequence[Combination]) -> tuple[tuple[JointTraining, ...], tuple[str, ...]]:
    """(programs, remarks): the groups of combinations that are trained together, and why some numbers are not."""
    paths = combinations[0].values
    numbers = [path for path in paths if all(_is_number(path, c.values[path]) for c in combinations)]
    programs, remarks = [], {}
    for alike in _grouped(combinations, lambda c: _structure(c, numbers)):
        varying = [path for path in numbers if len({c.values[path] for c in alike}) > 1]
        reasons = {}
        if varying and untraceable(alike[0].experiment, *varying):
            reasons = {path: untraceable(alike[0].experiment, path) for path in varying}
        fixed = [path for path, reason in reasons.items() if reason]
        remarks |= {
            path: f"values of {path} are trained one after another, since it cannot be traced: {reasons[path]}"
            for path in fixed
        }
        for group in _grouped(alike, lambda c, fixed=fixed: tuple(c.values[path] for path in fixed)):
            shared = {path: tuple(c.values[path] for c in group) for path in varying if path not in fixed}
            programs.append(JointTraining(tuple(group), shared if len(group) > 1 else {}))
    return tuple(programs), tuple(remarks.values())


def _is_number(path: str, value: Any) -> bool:
    """Whether the field may be traced. In a model only floats may be: integers are sizes."""
    kinds = (int, float) if path.startswith("training.optimizer.") else (float,)
    return path.startswith(TRACEABLE) and isinstance(value, kinds) and not isinstance(value, bool)


def _structure(combination: Combination, numbers: Sequence[str]) -> Hashable:
    """What combinations of one program must share. A zero optimiser number is kept apart: it may remove a part."""
    values = combination.values
    zeros = tuple(values[path] == 0 for path in numbers if path.startswith("training."))
    return zeros, tuple(repr(values[path]) for path in values if path not in numbers)


def _grouped(
    combinations: Iterable[Combination], key: Callable[[Combination], Hashable]
) -> Iterable[list[Combination]]:
    groups: dict[Hashable, list[Combination]] = {}
    for combination in combinations:
        groups.setdefault(key(combination), []).append(combination)
    return groups.values()


def sweep(
    experiment: Experiment,
    over: Mapping[str, Sequence[Any]],
    directory: Path,
    *,
    say: Callable[[str], None] = lambda text: None,
    report: Callable[[Experiment], Report | None] = lambda experiment: None,
) -> list[Outcome]:
    """Trains and measures every combination, and writes the table and its picture.

    The same call continues an interrupted sweep. Raises ValueError for a directory with another sweep, and
    `DivergedError` if every seed of every combination diverged.

    Args:
        experiment: the common experiment.
        over: path of a field, such as `training.optimizer.learning_rate` -> its values.
        directory: directory of the sweep.
        say: called with a line of text about each program.
        report: called with the experiment of a program before it is trained; returns the `report` of its training.
    """
    combinations = combine(experiment, over)
    for combination in combinations:
        _check_selection(combination.experiment)
    _claim(directory, experiment, over)
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
    if not any(_living(outcome) for outcome in outcomes):
        raise DivergedError(f"every seed of all {len(outcomes)} combinations met a non-finite loss or gradient")
    save_table(outcomes, directory)
    return outcomes


def _check_selection(experiment: Experiment) -> None:
    """Raises ValueError, before hours of training, if the task lacks the split or the metric to select by."""
    task, training = experiment.task, experiment.training
    _, longest = task.lengths_of(training.scored_split)

    def metrics() -> dict[str, jax.Array]:
        batch = draw(task, jax.random.key(0), jnp.array([longest]), longest)
        return task.metrics(jnp.zeros((*batch.target_mask.shape, task.spec.output_size)), batch)

    known = [*jax.eval_shape(metrics), "loss"]
    if training.selection_metric not in known:
        raise ValueError(f"training.selection_metric is {training.selection_metric!r}; allowed are {', '.join(known)}")


def _claim(directory: Path, experiment: Experiment, over: Mapping[str, Sequence[Any]]) -> None:
    """Writes what is swept, or checks that it is the same as before."""
    planned = {"experiment": to_plain(experiment), "over": [[path, to_plain(list(v))] for path, v in over.items()]}
    path = directory / PLAN
    if path.exists():
        saved = json.loads(path.read_text())
        if saved["over"] != planned["over"] or not same_experiment(saved["experiment"], experiment):
            raise ValueError(f"{directory} holds another sweep; choose another directory")
    elif directory.is_dir() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    else:
        directory.mkdir(parents=True, exist_ok=True)
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
    try:
        result = run(
            program, experiment, Recorder(where, experiment, key, resume=holds_run(where), about=about), report
        )
    except DivergedError as error:
        for combination in group:
            (directory / combination.name).mkdir(exist_ok=True)
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


def _lanes(joint: JointTraining, number: int) -> slice:
    """The lanes of a combination."""
    seeds = joint.combinations[0].experiment.training.seeds
    return slice(number * seeds, (number + 1) * seeds)


def _split(joint: JointTraining, where: Path, directory: Path) -> None:
    """Writes the run of each combination, as if `train` had written it for that combination alone."""
    group, experiment = joint.combinations, joint.combinations[0].experiment
    keys = jax.random.split(jax.random.key(0), experiment.training.seeds)
    like = initial_lanes(experiment, joint.numbers, keys, abstract=True)
    state, manifest = checkpoint.restore(where / CHECKPOINTS, like)
    snapshots = {
        step: checkpoint.restore(where / SNAPSHOTS, {"params": like.members.params}, step)[0]
        for step in checkpoint.steps(where / SNAPSHOTS)
    }
    history = read_metrics(where)
    for number, combination in enumerate(group):
        lanes, target = _lanes(joint, number), directory / combination.name
        own = {"experiment": to_plain(combination.experiment), "environment": manifest.get("environment")}
        # The common part was saved with the program; the rest is cut out of it.
        shared = {name: value for name, value in manifest.items() if name not in ("experiment", "numbers")}
        cut = State(state.step, jax.tree.map(lambda x, lanes=lanes: x[lanes], state.members))
        checkpoint.save(target / CHECKPOINTS, int(state.step), cut, own | shared, keep=1)
        for step, snapshot in snapshots.items():
            params = jax.tree.map(lambda x, lanes=lanes: x[lanes], snapshot)
            checkpoint.save(target / SNAPSHOTS, step, params, own)
        write_metrics(target, [_entry_of(entry, lanes) for entry in history])


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
    plain = {name: [None if np.isnan(x) else float(x) for x in value] for name, value in scores.items()}
    write_json(where / SCORE, {"scores": plain})


def _outcome(combination: Combination, where: Path) -> Outcome:
    kept = json.loads((where / SCORE).read_text())
    if "diverged" in kept:
        return Outcome(combination, {}, None)
    curve = LengthCurve.from_dict(json.loads((where / "curve.json").read_text()))
    return Outcome(combination, {name: np.array(v, np.float64) for name, v in kept["scores"].items()}, curve)


# --- the table --------------------------------------------------------------------------------------------------------


def rule(experiment: Experiment) -> str:
    """The rule by which the best combination is chosen, in words."""
    training = experiment.training
    metric, split = training.selection_metric.replace("_", " "), training.scored_split
    if training.selection_metric == "loss":
        return f"the smallest loss on the split {split}, median over seeds"
    return f"the highest {metric} on the split {split}, median over seeds; ties by the smallest loss"


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The best outcome by `rule`. A diverged seed counts as the worst possible value."""
    metric = outcomes[0].combination.experiment.training.selection_metric

    def median(outcome: Outcome, name: str, worst: float) -> float:
        values = outcome.scores.get(name)
        return worst if values is None else float(np.median(np.where(np.isnan(values), worst, values)))

    def rank(outcome: Outcome) -> tuple[float, float]:
        loss = -median(outcome, "loss", np.inf)
        return (loss, loss) if metric == "loss" else (median(outcome, metric, -np.inf), loss)

    return max(outcomes, key=rank)


def columns(outcome: Outcome) -> dict[str, np.ndarray]:
    """The columns of an outcome in a table: title -> float[S]."""
    experiment, curve = outcome.combination.experiment, outcome.curve
    found = {f"{experiment.training.scored_split} {name}": values for name, values in outcome.scores.items()}
    if curve is None:
        return found
    first, last = curve.train_lengths
    for title, where in (
        ("at training lengths", (first <= curve.lengths) & (curve.lengths <= last)),
        ("beyond", curve.lengths > last),
    ):
        if where.any():
            found |= {f"{name} {title}": values[:, where].mean(axis=1) for name, values in curve.values.items()}
    return found


def save_table(outcomes: Sequence[Outcome], directory: Path) -> None:
    """Writes `sweep.csv`, a line per combination with medians over its alive seeds, and `sweep.png`, a dot per seed."""
    from lenmem.evaluation.plots import plot_sweep

    chosen = best(outcomes)
    cells = [columns(outcome) for outcome in outcomes]
    titles = list(dict.fromkeys(title for row in cells for title in row))
    with open(directory / "sweep.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = short_names(outcomes[0].combination.values)
        writer.writerow([*names.values(), "run", "best", "seeds alive", *(title.replace(" ", "_") for title in titles)])
        for outcome, row in zip(outcomes, cells, strict=True):
            values = [_text(value) for value in outcome.combination.values.values()]
            medians = [f"{float(summarise(row[title]).median):.6g}" if title in row else "nan" for title in titles]
            writer.writerow([*values, outcome.combination.name, int(outcome is chosen), _alive(outcome), *medians])
    seeds = outcomes[0].combination.experiment.training.seeds
    dead = np.full(seeds, np.nan)
    panels = {
        title: [row.get(title, dead) for row in cells]
        for title in titles
        if not title.endswith("token_accuracy beyond")
    }
    labels = [outcome.combination.name for outcome in outcomes]
    plot_sweep(labels, panels, directory / "sweep.png", best=outcomes.index(chosen))


def sweep_table(outcomes: Sequence[Outcome]) -> Table:
    """The combinations with medians over their alive seeds in percent; the best is marked."""
    chosen = best(outcomes)
    cells = [columns(outcome) for outcome in outcomes]
    titles = list(dict.fromkeys(title for row in cells for title in row))
    table = Table(caption=f"best: {rule(outcomes[0].combination.experiment)}", caption_justify="left")
    for name in short_names(outcomes[0].combination.values).values():
        table.add_column(escape(name), justify="right")
    for title in titles:
        table.add_column(escape(title.replace("_", " ") + ("" if title.endswith("loss") else " %")), justify="right")
    table.add_column("alive", justify="right")
    table.add_column("")
    for outcome, row in zip(outcomes, cells, strict=True):
        medians = []
        for title in titles:
            value = float(summarise(row[title]).median) if title in row else np.nan
            loss = title.endswith("loss") and not np.isnan(value)
            medians.append(f"{value:.4g}" if loss else percent(value))
        values = [escape(_text(value)) for value in outcome.combination.values.values()]
        table.add_row(*values, *medians, _alive(outcome), "best" if outcome is chosen else "")
    return table


def _living(outcome: Outcome) -> int:
    """Number of alive seeds."""
    return int(np.sum(~np.isnan(outcome.scores.get("loss", np.nan))))


def _alive(outcome: Outcome) -> str:
    return f"{_living(outcome)}/{outcome.combination.experiment.training.seeds}"


def _text(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, tuple | list):
        return " ".join(map(_text, value))
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    plain = to_plain(value)
    return str(plain.get("name") or plain["class"].rpartition(".")[2])
