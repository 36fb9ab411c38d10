"""The verb `compare`: networks side by side."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lenmem import configs, models, runs
from lenmem.cli.terminal import console, plain_report, say
from lenmem.cli.words import Modules, names_ahead
from lenmem.evaluation.lengths import Evaluation, LengthCurve
from lenmem.experiment import Experiment
from lenmem.files import make_directory
from lenmem.options import parse
from lenmem.subject import DEFAULT_TRAINING, ahead, is_task, stem
from lenmem.training import Training
from lenmem.training.environment import describe_environment, divide_processor
from lenmem.zoo import shelf


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train models on tasks and show their curves side by side.

    Forms:
      lenmem compare CONFIG                 the models of a configuration
      lenmem compare CONFIG --models NAME NAME ...
      lenmem compare --tasks NAME ... --models NAME ...
      lenmem compare RUN RUN ...            trained networks, measured again
    """

    models: tuple[str, ...] = ()
    """Names of models, or names that the configuration gives to models. None given: all models of the configuration."""
    tasks: tuple[str, ...] = ()
    """Names of tasks, or of configurations for their tasks, for a cross table. None given: the configuration's task."""
    training: Training = DEFAULT_TRAINING
    """Training of each model."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of each model."""
    directory: Path | None = None
    """Directory of the runs; pictures go to <directory>/comparison. None: runs/<name>."""


@dataclasses.dataclass(frozen=True)
class CompareOne(Compare):
    """Train models on a task and show their curves side by side."""

    task: Any = None
    """The task, if there is only one."""


@dataclasses.dataclass(frozen=True)
class CompareRuns:
    """Measure trained networks and show their curves side by side.

    Forms:
      lenmem compare RUN RUN ...            runs, files, or names of the zoo
    """

    lengths: tuple[int, ...] = ()
    """Lengths to measure. None given: those of each experiment."""
    samples: int | None = None
    """Examples per length. None: that of each experiment."""
    directory: Path | None = None
    """Where the picture goes, in a folder `comparison`. None: runs/compare."""
    modules: Modules = ()


def compare(arguments: list[str]) -> None:
    """`lenmem compare CONFIG [--models ...]`, `compare --tasks ... --models ...`, or `compare RUN RUN ...`."""
    first = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if first is not None and is_task(first):
        arguments, first = ["--tasks", *arguments], None
    elif first is not None and first not in configs.names() and runs.is_run(first):
        _compare_runs(arguments)
        return
    named = first is not None
    base = configs.load_config(first) if first is not None else None
    of_task: list[str] = ahead(arguments, tasks="+")[0].tasks or []
    default: dict[str, Any] = {"training": base.training, "evaluation": base.evaluation} if base else {}
    if base or len(of_task) == 1:
        default |= {"task": base.task if base else runs.task_named(of_task[0])}
    kind = CompareOne if "task" in default else Compare
    options = parse(kind, f"compare {first}" if named else "compare", arguments[named:], **default)
    if bool(options.tasks) == named:
        raise ValueError("give either a configuration or --tasks")
    divide_processor(options.training.devices)
    title = stem(first) if first is not None else "compare"
    root = options.directory or Path("runs") / title
    task_names = (title,) if named else options.tasks
    optimizers = configs.optimizers_of(first) if first is not None else {}
    own_models = configs.models_of(first) if first is not None else {}
    model_names = options.models or tuple(own_models)
    if not model_names:
        raise ValueError("give --models; only a configuration that defines `models` works without")
    made = options.task if isinstance(options, CompareOne) else None
    cells = runs.cross(
        task_names, model_names, options.training, base, optimizers, own_models, made, options.evaluation
    )

    def directory(task: str, model: str) -> Path:
        own = base is not None and model not in own_models and models.name_of(base.model) == model
        return root if own else root / model if named else root / f"{task.replace('/', '-')}-{model}"

    def report(task: str, model: str, experiment: Experiment) -> Callable[[dict[str, Any]], None]:
        console.print(f"training {model} on {task}")
        return plain_report(experiment.training.steps)

    environment = describe_environment()  # of the loaded code, as in `lenmem.reproduce`
    results = runs.compare(cells, directory, report=report)
    from lenmem.evaluation import plots
    from lenmem.evaluation.tables import cross_table

    command = shlex.join(["lenmem", "compare", *arguments])
    folder = runs.comparison_directory(root, command)
    make_directory(folder)
    runs.save_comparison(folder / "comparison.json", command, environment, cells, results)
    curves = [cell for cell in results.values() if isinstance(cell, LengthCurve)]
    if len(task_names) == 1 and curves:
        notes = [f"{model}: {cell}" for (_, model), cell in results.items() if isinstance(cell, str)]
        _show(curves, folder, notes)
        return
    console.print(cross_table(results))
    plots.plot_cross_table(results, folder / "cross_table.png")
    say(f"wrote {folder}/cross_table.png and comparison.json")


def _compare_runs(arguments: list[str]) -> None:
    """`lenmem compare RUN RUN ...`: their curves in one table and one picture."""
    given, rest = ahead(arguments, modules="+")
    names, rest = names_ahead(rest)
    names = list(dict.fromkeys(names))
    options = parse(CompareRuns, "compare RUN", rest)
    modules = configs.own_modules(given.modules or ())
    opened = [runs.open_run(name, modules=modules) for name in names]
    curves, experiments = [], []
    labels = [name.removeprefix(shelf.PREFIX) for name in names]
    labels = names if len(set(labels)) < len(set(names)) else labels
    for label, run in zip(labels, opened, strict=True):
        asked = run.experiment.evaluation
        samples = asked.samples if options.samples is None else options.samples
        asked = dataclasses.replace(asked, lengths=options.lengths or asked.lengths, samples=samples)
        experiment = dataclasses.replace(run.experiment, evaluation=asked)
        experiments.append(experiment)
        curves.append(runs.measure(experiment, run.params, alive=run.alive, label=label))
    command = shlex.join(["lenmem", "compare", *arguments])
    folder = runs.comparison_directory(options.directory or Path("runs/compare"), command)
    make_directory(folder)
    cells: dict[tuple[str, str], Any] = {(curve.task, curve.label): curve for curve in curves}
    of_cell = dict(zip(cells, experiments, strict=True))
    runs.save_comparison(folder / "comparison.json", command, describe_environment(), of_cell, cells)
    _show(curves, folder)


def _show(curves: Sequence[LengthCurve], folder: Path, notes: Sequence[str] = ()) -> None:
    """Prints the curves of a comparison with their remarks, and draws them into its folder."""
    from lenmem.evaluation import plots
    from lenmem.evaluation.tables import tables_that_fit

    for table in tables_that_fit(curves, console):
        console.print(table)
    for note in notes:
        console.print(note)
    plots.plot_curves(curves, folder / "curve.png")
    say(f"wrote {folder}/curve.png and comparison.json")
