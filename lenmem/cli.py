"""The command line. tyro generates the options from the dataclasses of the experiment.

This module only connects: the work is done in `lenmem.runs`, `lenmem.reproduce` and `lenmem.training`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import platform
import re
import shlex
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import flax.linen as nn
import jax
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lenmem import __version__, configs, drawing, models, progress, runs, stopping, tasks
from lenmem import map as maps
from lenmem.bars import Bars
from lenmem.errors import nearest
from lenmem.evaluation.lengths import Evaluation, LengthCurve
from lenmem.experiment import Experiment, Run, export_run, import_run
from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.models import supports
from lenmem.options import HELP, value_of
from lenmem.options import parse as _options
from lenmem.subject import DEFAULT_TRAINING, Subject, ahead, fields_of, is_task, resuming, stem, subject
from lenmem.tasks.base import Task
from lenmem.training import DivergedError, Optimizer, Result, Training, checkpoint, processes
from lenmem.training.environment import describe_environment
from lenmem.training.lanes import owner_of, replaced
from lenmem.training.run_directory import CHECKPOINTS
from lenmem.zoo import shelf

console = Console()
bars = Bars(console)


_OWN = (
    "Files *.py (or Python modules) with your own classes that the run uses. These files are executed; code in a run "
    "is not."
)
Modules = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py", help=_OWN)]
"""Files with the user's own classes."""


@dataclasses.dataclass(frozen=True)
class _Asked(Experiment):
    """The options of an experiment. They are checked when the experiment is built from them."""

    def __post_init__(self) -> None:
        """No check here: the default task and model may not fit together."""


@dataclasses.dataclass(frozen=True)
class Train(_Asked):
    """Train a network, print and plot its accuracy by length.

    Common options:
      --task NAME --model NAME                any task with any model
      --model NAME                            another model for a configuration
      --training.steps N                      number of optimiser steps
      --training.seeds N                      number of networks, trained at once
      --training.optimizer.learning-rate R    learning rate
      --training.batch-size N                 examples per step
      --task.train-lengths N N                shortest and longest training length
      --evaluation.lengths N N N ...          lengths to measure after training
      --directory D                           directory of the run
      --resume RUN                            continue a run
      --modules FILE.py                       your classes, for a run that uses them
    """

    directory: Path | None = None
    """Directory of the run. None: runs/<name of the configuration>, with a number if that holds a run."""
    resume: Path | None = None
    """Continue this run, with its experiment. With a configuration: the run in the directory, or the run given here."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    distributed: bool = False
    """This is one of several processes that train the run together, each started with the same command: on a TPU pod,
    under Slurm or Open MPI, or with JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID set."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Measured:
    """The options for measuring a run: those of its experiment without the training."""

    task: Task
    """The task."""
    model: nn.Module
    """The model."""
    evaluation: Evaluation = Evaluation()
    """The evaluation."""


@dataclasses.dataclass(frozen=True)
class Evaluate(Measured):
    """Measure a trained run by length, with its own sizes or other ones.

    Common options:
      --lengths N N N ...                     lengths to measure
      --samples N                             examples per length
      --step N                                an earlier checkpoint or snapshot
      --save                                  write curve.png and curve.csv to the run
    Options of the task and the model change sizes, such as the number of slots.
    """

    lengths: tuple[int, ...] = ()
    """Lengths to measure. None given: those of the experiment."""
    samples: int | None = None
    """Examples per length. None: that of the experiment."""
    save: bool = False
    """Write curve.png and curve.csv to the run."""
    step: int | None = None
    """A checkpoint or snapshot other than the latest."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Predict:
    """Apply a trained network to your own input or to an example."""

    input: str | None = None
    """Tokens, separated by spaces (floats: steps separated by semicolons)."""
    length: int | None = None
    """Length of an example of the task, instead of `input`."""
    example: int = 0
    """Number of the example among those of that length."""
    seed: int | None = None
    """Seed whose network is used. None: the first seed that did not diverge; of a network of the zoo, its best one."""
    answers: int | None = None
    """Number of answer slots. None: as many as the task has for such an input."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train models on tasks and show their curves side by side."""

    models: tuple[str, ...] = ()
    """Names of models, or names that the configuration gives to models. None given: all models of the configuration."""
    tasks: tuple[str, ...] = ()
    """Names of tasks, or of configurations for their tasks, for a cross table. None given: the configuration's task."""
    training: Training = DEFAULT_TRAINING
    """Training of each model."""
    directory: Path | None = None
    """Directory of the runs; pictures go to <directory>/comparison. None: runs/<name>."""


@dataclasses.dataclass(frozen=True)
class CompareOne(Compare):
    """Train models on a task and show their curves side by side."""

    task: Any = None
    """The task, if there is only one."""


@dataclasses.dataclass(frozen=True)
class Sweep(_Asked):
    """Train every combination of values of some fields.

    Combinations that differ only in numbers are trained in one program.

    Common options:
      --over FIELD VALUE VALUE ...            repeat for each field
      --over seed N                           seeds of each combination
      --task NAME --model NAME                any task with any model
      --training.steps N                      number of optimiser steps
      --directory D                           directory of the sweep
    """

    over: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """A field and its values, as in `--over training.optimizer.learning_rate 0.005 0.01`; repeat for each field.
    `seed 5` means five seeds of every combination. None given: `over` of the configuration."""
    directory: Path | None = None
    """Directory of the sweep; an interrupted sweep there continues. None: runs/sweeps/<name of the configuration>."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileAll:
    """Compile every configuration at a paper's scale, and keep what the compiler says of each in a file."""

    topologies: tuple[str, ...] = ("v5e:2x2", "v6e:2x2", "h100")
    """What to compile for."""
    all: bool = False
    """In place of a configuration: every configuration but the small presets."""
    json: Path = Path("results/accelerators.json")
    """Where the records of `--all` go. What the file has is not compiled again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compile(_Asked, CompileAll):
    """Compile a training for a TPU or GPU, which need not be there.

    Common options:
      --topologies NAME NAME ...              v5e:2x2, v6e:2x2, h100, cpu and others
      --dump DIR                              keep the optimised programs
      --task NAME --model NAME                any task with any model
      --all                                   every configuration at a paper's scale
      --json FILE                             where what is said of all goes
    It prints what the compiler says: memory, operations, collectives. The compilers come with `pip install
    'lenmem[aot]'`. Exit status 1: a program does not compile, or does not fit.
    """

    topologies: tuple[str, ...] = ("v5e:2x2",)
    """What to compile for."""
    dump: Path | None = None
    """Where the optimised programs go, in a folder for each topology."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw a run: training, curve, traces; or a figure of a paper."""

    figure: str | None = None
    """Draw only this figure of a paper, such as lantm-2 or dnc-4; docs/figures.md has all of them."""
    output: Path = Path("figures")
    """Directory of such a figure."""
    trace: bool = False
    """Draw only the traces of an example, including the attention of each head."""
    states: bool = False
    """Draw only the controller states of a DNC: maps by phase and symbol, and its modes of reading and writing."""
    tsne: bool = False
    """Draw the maps of `states` by t-SNE instead of principal components; needs scikit-learn."""
    input: str | None = None
    """The example, as for `predict`. None: one of the task."""
    length: int | None = None
    """Length of the example. None: the longest training length."""
    seed: int | None = None
    """Seed whose network is used. None: the first seed that did not diverge; of a network of the zoo, its best one."""
    example: int = 0
    """Which example."""
    step: int | None = None
    """A checkpoint or snapshot other than the latest, to look at a network in the middle of training. A `figure` is
    then drawn at both."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Measure rows of a paper's table, and print them beside the paper's.

    Rows that were measured before are printed, not run again.
    """

    queue: str | None = None
    """Instead of a configuration: all rows of a paper, or of a file with a configuration and its rows on each line.
    Each row runs in a process with one thread; the same command continues after an interruption."""
    workers: PositiveInt = 2
    """Number of rows of a queue that run at the same time."""
    rows: tuple[str, ...] = ()
    """Names of rows. None given: the row of the configuration's own experiment."""
    results: Path = Path("results")
    """Directory of the records."""
    runs: Path = Path("runs")
    """Directory of the runs; interrupted runs are resumed."""
    again: bool = False
    """Run rows again that were measured before."""


@dataclasses.dataclass(frozen=True)
class Map:
    """Train networks on tasks with one budget; draw how far each goes.

    Cells trained before are kept: the same command continues the map.
    """

    networks: tuple[str, ...] = ()
    """Names of models. None given: those of the map."""
    tasks: tuple[str, ...] = ()
    """Headings of the map's tasks, or names of tasks. None given: those of the map."""
    budget: maps.Budget = maps.Budget()
    """What each cell is given."""
    results: Path = Path("results/map")
    """Directory of the records, the table and the picture."""
    workers: NonNegativeInt = 2
    """Number of cells that are trained at the same time, each in a process with one thread. 0: in this process."""
    quick: bool = False
    """A small map in a few minutes, with its own budget, in runs/map."""


@dataclasses.dataclass(frozen=True)
class Beyond:
    """Train on lengths up to 16, measure up to 1,024.

    Forms:
      lenmem beyond                         the tables of all records
      lenmem beyond TASK                    train and measure a task's entry
      lenmem beyond TASK --idea NAME        another network, or an ablation
      lenmem beyond --record                the record table
      lenmem beyond TASK --record           repeat a record in a new run
    A task that was measured before is printed, not trained again. An interrupted training continues.
    """

    idea: str | None = None
    """Another experiment of the task's configuration. None: the task's own entry."""
    record: bool = False
    """The record table; with a task, train the holder of its record once more."""
    again: bool = False
    """Train again what was measured before."""
    results: Path = Path("results/beyond")
    """Directory of the records."""
    runs: Path = Path("runs/beyond")
    """Directory of the runs."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run to one safetensors file, which every verb accepts."""

    output: Path | None = None
    """The file. None: <run>.safetensors."""
    with_optimizer: bool = False
    """Include the optimiser state and the metrics, so that training can continue where the file is imported."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Import:
    """Turn a file that was exported with its optimiser back into a run."""

    directory: Path | None = None
    """Directory of the run. None: runs/<name of the file>, with a number if that holds a run."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class CompareRuns:
    """Measure trained networks (runs, files, or names of the zoo) and show their curves side by side."""

    lengths: tuple[int, ...] = ()
    """Lengths to measure. None given: those of each experiment."""
    samples: int | None = None
    """Examples per length. None: that of each experiment."""
    directory: Path | None = None
    """Where the picture goes, in a folder `comparison`. None: runs/compare."""


@dataclasses.dataclass(frozen=True)
class Zoo:
    """List the trained networks that all verbs take; add or share one.

    Forms:
      lenmem zoo [WORD]                     networks, of one paper or task
      lenmem zoo card NAME                  what is known of a network
      lenmem zoo add RUN [options]          put a run into zoo/, with a card
      lenmem zoo push NAME TARGET           to owner/name on Hugging Face,
                                            or to ./directory
      lenmem zoo pull SOURCE [--name NAME]  fetch one into zoo/
    """

    name: str | None = None
    """Name of the new network, such as own/copy-gru. None: own/<name of the run>, or that of the source."""
    licence: str = shelf.LICENCE
    """`add`: licence of the parameters, as Hugging Face calls it."""
    notes: str = ""
    """`add`: what else its card is to say of its limits."""
    command: str = ""
    """`add`: the command that trained it, for its card."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Data:
    """Say where a data set is published, and check the files there.

    Nothing is downloaded. Without a name, all data sets are listed.
    """

    directory: Path | None = None
    """A directory to check: names, sizes, hashes where they are published, and every line."""


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Write a static site that shows networks at work, step by step.

    The site needs no server and no network: open index.html.

    Forms:
      lenmem gallery                     networks of the zoo, of many memories
      lenmem gallery RUN zoo:NAME ...    runs, files and names of the zoo
    """

    output: Path = Path("site")
    """The folder, which must be new or empty."""
    lengths: tuple[int, ...] = ()
    """Lengths of the examples. None given: up to four times the longest training length."""
    example: int = 0
    """Number of the example of each length; networks of one task get the same."""
    seed: int | None = None
    """Seed whose network is shown. None: the one that reaches furthest."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class List:
    """List the configurations, tasks and models."""

    markdown: bool = False
    """Print models and tasks as two Markdown tables, as in the README."""


def main(arguments: Sequence[str] | None = None) -> None:
    """`lenmem VERB ...`. An error that a user can cause prints one message and exits with status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        _usage()
        return
    if arguments[0] in ("-V", "--version"):
        console.print(_version(), highlight=False)
        return
    verb, rest = arguments[0], arguments[1:]
    try:
        if verb not in VERBS:
            raise ValueError(f"there is no verb {verb!r}.{nearest(verb, VERBS)} Verbs: {', '.join(VERBS)}")
        if verb in ("compare", "sweep", "reproduce", "map"):
            again = f"stopped; finished work is kept, continue with\n  {shlex.join(['lenmem', *arguments])}"
            stopping.advise(lambda: again)
        with progress.listened(bars.shown):
            VERBS[verb][0](rest)
    except DivergedError as error:
        _fail(str(error), 1)
    except (ValueError, OSError) as error:
        _fail(str(error), 2)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _fail(_out_of_memory(str(error)), 1)
    except KeyboardInterrupt as stopped:
        console.print(str(stopped) or "stopped")
        raise SystemExit(stopping.status()) from None


def train(arguments: list[str]) -> None:
    """`lenmem train CONFIG [options]`, `lenmem train TASK --model MODEL`, or `lenmem train --resume RUN`."""
    if "--distributed" in arguments:  # before the configuration, which may run computations
        processes.join()
        console.quiet = not processes.is_first()
    about = _about(arguments, "train", "CONFIG | TASK --model MODEL | --resume RUN", Train)
    options = _options(Train, f"train {about.name}", about.options, **about.experiment)
    experiment = _experiment(options)
    directory = about.directory(options.directory)
    if options.training == DEFAULT_TRAINING:
        console.print(f"default training: {_recipe(options.training)}; --training.* changes it", highlight=False)
    stopping.advise(lambda: _how_to_go_on(arguments, directory, about.resuming(directory, experiment)))
    with _progress(experiment.training.steps) as report:
        result, curve = runs.train_and_measure(
            experiment, directory, resume=about.resume, report=report, tensorboard=options.tensorboard
        )
    _say_trained(result, directory)
    if curve is None:
        said = _how_to_go_on(arguments, directory, about.resuming(directory, experiment))
        _say(said)
        raise SystemExit(stopping.status())
    from lenmem.evaluation.tables import curve_table

    console.print(curve_table([curve]))
    console.print(f"{directory}/: metrics.jsonl, checkpoints/, curve.csv, curve.png")


def evaluate(arguments: list[str]) -> None:
    """`lenmem evaluate RUN [options]`."""
    name, rest, modules = _of_run(arguments, "evaluate", "RUN", Evaluate)
    run = runs.open_run(name, modules=modules)
    of_run = {field.name: getattr(run.experiment, field.name) for field in dataclasses.fields(Measured)}
    options = _options(Evaluate, f"evaluate {name}", rest, **of_run)
    if options.step is not None:
        run = runs.open_run(name, options.step, modules)
    asked = dataclasses.replace(
        options.evaluation,
        lengths=options.lengths or options.evaluation.lengths,
        samples=options.evaluation.samples if options.samples is None else options.samples,
    )
    experiment = dataclasses.replace(run.experiment, task=options.task, model=options.model, evaluation=asked)
    from lenmem.evaluation.tables import curve_table

    curve = runs.measure(experiment, run.params, alive=run.alive)
    console.print(curve_table([curve], rows=max(20, len(options.lengths))))
    for line in runs.text_scores(experiment, run.params, run.alive):
        _say(line)
    if options.save:
        runs.save_curves(run.directory, [curve])
        console.print(f"wrote {run.directory}/curve.csv and curve.png")


def predict(arguments: list[str]) -> None:
    """`lenmem predict RUN --input "..."`, or `lenmem predict RUN --length N`."""
    name, rest, modules = _of_run(arguments, "predict", "RUN", Predict)
    options = _options(Predict, f"predict {name}", rest)
    run = runs.open_run(name, modules=modules)
    if options.input is not None and options.length is None:
        print(" ".join(runs.predict(run, options.input, seed=options.seed, answers=options.answers)))
        return
    if options.input is not None or options.length is None:
        raise ValueError("give either --input or --length")
    answer = runs.answer_example(run, options.length, seed=options.seed, example=options.example)
    print("input ", *answer.inputs)
    columns = zip(answer.right, answer.given, answer.hits, strict=True)
    cells = [(right, given, "" if hit else "^" * max(len(given), 1)) for right, given, hit in columns]
    widths = [max(map(len, cell)) for cell in cells]
    for title, row in zip(("right ", "answer", "      "), zip(*cells, strict=True), strict=True):
        print(" ".join([title, *(f"{text:{width}}" for text, width in zip(row, widths, strict=True))]).rstrip())
    print(f"{sum(answer.hits)} of {len(answer.hits)} right")


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
    default: dict[str, Any] = {"training": base.training} if base else {}
    if base or len(of_task) == 1:
        default |= {"task": base.task if base else runs.task_named(of_task[0])}
    kind = CompareOne if "task" in default else Compare
    options = _options(kind, f"compare {first}" if named else "compare", arguments[named:], **default)
    if bool(options.tasks) == named:
        raise ValueError("give either a configuration or --tasks")
    title = stem(first) if first is not None else "compare"
    root = options.directory or Path("runs") / title
    task_names = (title,) if named else options.tasks
    optimizers = configs.optimizers_of(first) if first is not None else {}
    own_models = configs.models_of(first) if first is not None else {}
    model_names = options.models or tuple(own_models)
    if not model_names:
        raise ValueError("give --models; only a configuration that defines `models` works without")
    made = options.task if isinstance(options, CompareOne) else None
    cells = runs.cross(task_names, model_names, options.training, base, optimizers, own_models, made)

    def directory(task: str, model: str) -> Path:
        own = base is not None and model not in own_models and models.name_of(base.model) == model
        return root if own else root / model if named else root / f"{task.replace('/', '-')}-{model}"

    def report(task: str, model: str, experiment: Experiment) -> Callable[[dict[str, Any]], None]:
        console.print(f"training {model} on {task}")
        return _plain_report(experiment.training.steps)

    environment = describe_environment()  # of the loaded code, as in `lenmem.reproduce`
    results = runs.compare(cells, directory, report=report)
    from lenmem.evaluation import plots
    from lenmem.evaluation.tables import cross_table

    command = shlex.join(["lenmem", "compare", *arguments])
    folder = runs.comparison_directory(root, command)
    folder.mkdir(parents=True, exist_ok=True)
    runs.save_comparison(folder / "comparison.json", command, environment, cells, results)
    curves = [cell for cell in results.values() if isinstance(cell, LengthCurve)]
    if len(task_names) == 1 and curves:
        notes = [f"{model}: {cell}" for (_, model), cell in results.items() if isinstance(cell, str)]
        _show_curves(curves, folder, notes)
        return
    console.print(cross_table(results))
    plots.plot_cross_table(results, folder / "cross_table.png")
    console.print(f"wrote {folder}/cross_table.png and comparison.json")


def _compare_runs(arguments: list[str]) -> None:
    """`lenmem compare RUN RUN ...`: their curves in one table and one picture."""
    names, rest = _names_ahead(arguments)
    options = _options(CompareRuns, "compare RUN", rest)
    opened = [runs.open_run(name) for name in names]
    curves = []
    for name, run in zip(names, opened, strict=True):
        asked = run.experiment.evaluation
        asked = dataclasses.replace(
            asked, lengths=options.lengths or asked.lengths, samples=options.samples or asked.samples
        )
        experiment = dataclasses.replace(run.experiment, evaluation=asked)
        label = name.removeprefix(shelf.PREFIX)
        curves.append(runs.measure(experiment, run.params, alive=run.alive, label=label))
    command = shlex.join(["lenmem", "compare", *arguments])
    folder = runs.comparison_directory(options.directory or Path("runs/compare"), command)
    folder.mkdir(parents=True, exist_ok=True)
    cells: dict[tuple[str, str], Any] = {(curve.task, curve.label): curve for curve in curves}
    of_cell = {(c.task, c.label): run.experiment for c, run in zip(curves, opened, strict=True)}
    runs.save_comparison(folder / "comparison.json", command, describe_environment(), of_cell, cells)
    _show_curves(curves, folder)


def _show_curves(curves: Sequence[LengthCurve], folder: Path, notes: Sequence[str] = ()) -> None:
    """Prints the curves of a comparison and what is to be said beside them, and draws them into its folder."""
    from lenmem.evaluation import plots
    from lenmem.evaluation.tables import tables_that_fit

    for table in tables_that_fit(curves, console):
        console.print(table)
    for note in notes:
        console.print(note)
    plots.plot_curves(curves, folder / "curve.png")
    console.print(f"wrote {folder}/curve.png and comparison.json")


def zoo(arguments: list[str]) -> None:
    """`lenmem zoo [WORD]`, and `lenmem zoo card | add | push | pull ...`."""
    what, *rest = arguments or [""]
    takes = {"card": ("NAME",), "add": ("RUN",), "push": ("NAME", "TARGET"), "pull": ("SOURCE",)}
    if what not in takes:
        words, rest = _names_ahead(arguments)
        _options(Zoo, "zoo [WORD]", rest)
        _say_zoo(words)
        return
    given, rest = ahead(rest, modules="+")
    words, rest = _names_ahead(rest)
    options = _options(Zoo, f"zoo {what}", rest)
    if len(words) != len(takes[what]):
        raise ValueError(f"usage: lenmem zoo {what} {' '.join(takes[what])}; lenmem zoo --help says more")
    from lenmem.zoo import cards, hub

    if what == "card":
        _say(cards.card(shelf.find(words[0])))
    elif what == "add":
        run = runs.open_run(words[0], modules=configs.own_modules(given.modules or ()))
        name = options.name or f"own/{run.directory.name}"
        folder = cards.add(run, name, licence=options.licence, notes=options.notes, command=options.command)
        _say(f"wrote {folder}: {', '.join(cards.FILES)}; every verb takes {shelf.PREFIX}{name}")
    elif what == "push":
        _say(f"sent to {hub.push(words[0], words[1])}")
    else:
        _say(f"fetched; every verb takes {shelf.PREFIX}{hub.pull(words[0], options.name)}")


def show(arguments: list[str]) -> None:
    """`lenmem gallery [RUN|zoo:NAME ...] --output site/`."""
    from lenmem import gallery

    given, rest = ahead(arguments, modules="+")
    names, rest = _names_ahead(rest)
    options = _options(Gallery, "gallery [RUN ...]", rest)
    modules = configs.own_modules(given.modules or ())
    chosen = {"lengths": options.lengths, "example": options.example, "seed": options.seed}
    page = gallery.write(options.output, names, modules=modules, say=_say, **chosen)
    _say(f"wrote {page}; open it in a browser")


def _say_zoo(words: Sequence[str]) -> None:
    """The networks whose name contains all words, as a table."""
    known = shelf.entries()
    short = {entry.name for entry in shelf.short_names(known.values()).values()}
    chosen = [entry for name, entry in known.items() if all(word.removeprefix(shelf.PREFIX) in name for word in words)]
    if not chosen:
        raise ValueError(f"no network of the zoo is called {' '.join(words)}.{nearest(' '.join(words), known)}")
    table = Table(box=None, pad_edge=False)
    for title in ("network", "", "trained", "95% up to", "kB", ""):
        table.add_column(title, no_wrap=True, justify="left" if title in ("network", "") else "right")
    for entry in chosen:
        table.add_row(
            escape(entry.name),
            "*" if entry.name in short else "",
            "{}-{}".format(*entry.train_lengths),
            str(entry.reach) if entry.reach else "none",
            f"{entry.size / 1000:.0f}",
            "" if entry.path else "elsewhere",
        )
    console.print(table)
    if any(entry.path is None for entry in chosen):
        _say(
            "\nelsewhere: not on this machine; LENMEM_ZOO says where, the results/ of a clone or its address (https://...)"
        )
    _say(
        f"\n{len(chosen)} networks. Use one as zoo:NAME, as in: lenmem predict zoo:lantm/reverse --length 70\n"
        "95% up to: the longest measured length with at least 95% exact match, of the best seed.\n"
        "* is meant by a short name, such as lantm/reverse: it reaches furthest beyond its training lengths."
    )


def _names_ahead(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first option, and the rest."""
    count = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def sweep(arguments: list[str]) -> None:
    """`lenmem sweep CONFIG --over FIELD VALUE ... [--over ...]`."""
    from lenmem import sweep as sweeps

    about = _about(arguments, "sweep", "CONFIG | TASK --model MODEL", Sweep)
    if about.resume:
        raise ValueError("an interrupted sweep continues with the command that started it, without --resume")
    options = _options(Sweep, f"sweep {about.name}", about.options, **about.experiment)
    experiment, over = _over(_experiment(options), options.over)
    directory = options.directory or Path("runs") / "sweeps" / about.name
    outcomes = sweeps.sweep(
        experiment,
        over or (configs.sweep_of(about.config) if about.config else {}),
        directory,
        say=_say,
        report=lambda experiment: _plain_report(experiment.training.steps),
    )
    console.print(sweeps.sweep_table(outcomes))
    console.print(f"{directory}/: sweep.csv, sweep.png, and a run for each combination")
    console.print(f"best: {directory}/{sweeps.best(outcomes).combination.name}", markup=False, highlight=False)


def _over(experiment: Experiment, options: Sequence[Sequence[str]]) -> tuple[Experiment, dict[str, list[Any]]]:
    """The experiment with the number of seeds asked for, and the values of the other fields, parsed as their types."""
    over: dict[str, list[Any]] = {}
    for option in options:
        if not option:
            raise ValueError("--over takes a field and its values, got nothing")
        path, words = option[0].replace("-", "_"), option[1:]
        if path in over:
            raise ValueError(f"--over {path} is given twice; give all its values at once")
        if path == "seed":
            if len(words) != 1 or not words[0].isdecimal():
                raise ValueError(f"--over seed takes one number of seeds, got {' '.join(words) or 'nothing'}")
            experiment = replaced(experiment, {"training.seeds": int(words[0])})
        else:
            owner, field = owner_of(experiment, path)
            kind = typing.get_type_hints(type(owner), include_extras=True)[field]
            over[path] = [value_of(path, kind, word.split()) for word in words]
    return experiment, over


def compile_ahead(arguments: list[str]) -> None:
    """`lenmem compile CONFIG --topologies v5e:2x2 ...` or `lenmem compile --all --topologies ... --json FILE`."""
    from lenmem import aot

    jax.config.update("jax_platforms", "cpu")  # libtpu and the CUDA plugin compile; they are not to look for devices.
    if "--all" in arguments:
        chosen = _options(CompileAll, "compile", arguments)
        aot.compile_all(aot.at_paper_scale(), chosen.topologies, chosen.json, _say)
        return
    arguments = ["--topologies" if word == "--topology" else word for word in arguments]
    about = _about(arguments, "compile", "CONFIG | TASK --model MODEL", Compile)
    options = _options(Compile, f"compile {about.name}", about.options, **about.experiment)
    targets = {name: aot.target_named(name) for name in options.topologies}
    fit = True
    for name, target in targets.items():
        dump = None if options.dump is None else options.dump / name.replace(":", "-")
        with progress.track(f"compiling for {name}"):
            compiled = aot.compile_experiment(_experiment(options), target, dump=dump)
        _say(aot.described(name, compiled))
        fit &= all(one.fits for one in compiled.values())
    if not fit:
        _fail("a program needs more memory than a device has", 1)


def plot(arguments: list[str]) -> None:
    """`lenmem plot RUN [options]` or `lenmem plot RUN ... --figure NAME [options]`."""
    name, rest, modules = _of_run(arguments, "plot", "RUN", Plot)
    more, rest = _names_ahead(rest)
    names = [name, *more]
    options = _options(Plot, f"plot {' '.join(names)}", rest)
    if options.figure is not None:
        from lenmem import figures

        for path in figures.draw_figure(
            options.figure,
            names,
            output=options.output,
            step=options.step,
            length=options.length,
            seed=options.seed,
            example=options.example,
            text=options.input,
            tsne=options.tsne,
            modules=modules,
        ):
            console.print(f"wrote {path}")
        return
    if len(names) > 1:
        raise ValueError(f"got {len(names)} runs; without --figure, plot draws one")
    run = runs.open_run(name, options.step, modules)
    if options.states or options.tsne:
        for path in drawing.draw_states(run, length=options.length, seed=options.seed, tsne=options.tsne):
            console.print(f"wrote {path}")
        return
    for path in drawing.draw_run(
        run,
        length=options.length,
        seed=options.seed,
        example=options.example,
        text=options.input,
        only_trace=options.trace,
    ):
        console.print(f"wrote {path}")


def reproduce(arguments: list[str]) -> None:
    """`lenmem reproduce CONFIG [--rows ...]` or `lenmem reproduce --queue FILE|PAPER [--workers 2]`."""
    from lenmem import reproduce as rows

    if "--queue" in arguments:
        _run_queue(_options(Reproduce, "reproduce", arguments))
        return
    name, rest = _subject(arguments, "reproduce", "CONFIG", Reproduce)
    options = _options(Reproduce, f"reproduce {name}", rest)
    console.print(
        rows.results_table(
            rows.reproduce_config(
                name,
                options.rows,
                results=options.results,
                runs=options.runs,
                again=options.again,
                report=lambda row, experiment: (
                    console.print(f"measuring {row}"),
                    _plain_report(experiment.training.steps),
                )[1],
            )
        )
    )


def _run_queue(options: Reproduce) -> None:
    from lenmem import queue

    if options.rows or options.again:
        raise ValueError("--rows and --again go with a configuration, not with --queue")
    failed = queue.run_queue(
        queue.read_queue(options.queue or ""),
        workers=options.workers,
        results=options.results,
        runs=options.runs,
        say=_say,
    )
    if failed:
        _fail(f"{len(failed)} rows failed: {', '.join(failed)}", 1)


def draw_map(arguments: list[str]) -> None:
    """`lenmem map [--networks ...] [--tasks ...]` or `lenmem map --quick`."""
    options = _options(Map, "map", arguments)
    networks, headings, budget, results = options.networks, options.tasks, options.budget, options.results
    if options.quick:
        networks, headings = networks or maps.QUICK_NETWORKS, headings or maps.QUICK_TASKS
        budget = maps.QUICK if budget == maps.Budget() else budget
        results = Path("runs/map") if results == Map.results else results
    chosen = maps.cells(networks, headings)
    if options.workers == 0:
        for cell in chosen:
            if cell.refusal is None and maps.read(cell, budget, results) is None:
                maps.run_cell(cell, budget, results, _say)
        return
    failed = maps.run_map(chosen, budget, results, workers=options.workers, say=_say)
    found = maps.outcomes(chosen, results)
    maps.save_map(found, results)
    _say_map(found)
    _say(f"{results}/: README.md, map.png, and a record for each cell")
    if failed:
        _fail(f"{len(failed)} cells failed: {', '.join(job.name for job in failed)}", 1)


def _say_map(found: maps.Outcomes) -> None:
    """The map as a table, and each cell in a line."""
    table = Table("network", *(escape(task) for task in found.tasks), box=None, pad_edge=False)
    for network, texts in found.rows():
        table.add_row(escape(network), *(escape(text) for text in texts))
    console.print(table)
    for line in found.lines():
        _say(line)


def go_beyond(arguments: list[str]) -> None:
    """`lenmem beyond [TASK] [--idea NAME] [--record]`."""
    from lenmem import beyond

    task = arguments[0] if arguments and not arguments[0].startswith("-") else None
    options = _options(Beyond, "beyond", arguments[1:] if task else arguments)
    results, runs = options.results, options.runs
    if task is None:
        if options.idea or options.again:
            raise ValueError("--idea and --again go with a task, as in lenmem beyond copy --again")
        records = beyond.read_records(results)
        for table in [beyond.best] if options.record else [beyond.overview, beyond.best]:
            _say_lines(*table(records))
        if records and not options.record:
            beyond.save_page(results)
        return
    entry = beyond.entry_of(task, options.idea)
    if options.record:
        entry = beyond.fastest(task, beyond.read_records(results))
        results = runs = beyond.again(entry, runs)
    record = None if options.again or options.record else entry.record(results)
    if record is None:
        if options.again and (runs / entry.name).exists():
            runs = beyond.again(entry, runs)
        _say(f"training {models.name_of(entry.experiment.model)} on {entry.name}")
        told = _plain_report(entry.experiment.training.steps)
        record = beyond.run_entry(entry, results=results, runs=runs, report=told)
        beyond.save_page(results)
    _say_lines(*beyond.tried([record]))
    _say(f"{results / entry.name}.json")


def _say_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A wide table, a line for each row, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(line.rstrip(), soft_wrap=True, markup=False, highlight=False)
    console.print()


def export(arguments: list[str]) -> None:
    """`lenmem export RUN [--output FILE] [--with-optimizer]`."""
    name, rest, modules = _of_run(arguments, "export", "RUN", Export)
    options = _options(Export, f"export {name}", rest)
    run: Run = runs.open_run(name, modules=modules)
    output = options.output or Path(f"{run.directory.name}.safetensors")
    export_run(run, output, with_optimizer=options.with_optimizer)
    console.print(f"wrote {output}")


def import_file(arguments: list[str]) -> None:
    """`lenmem import FILE [--directory D]`."""
    name, rest, modules = _of_run(arguments, "import", "FILE", Import)
    options = _options(Import, f"import {name}", rest)
    directory = options.directory or runs.fresh_directory(Path("runs") / Path(name).stem)
    run = import_run(name, directory, modules=modules)
    console.print(f"{directory} is at step {run.step} of {run.experiment.training.steps}; continue with")
    given = ahead(arguments, modules="+")[0].modules or ()
    _say(f"  {resuming(directory, run.experiment, given)}")


def data(arguments: list[str]) -> None:
    """`lenmem data`, `lenmem data NAME` or `lenmem data NAME --directory D`."""
    from lenmem import catalogue

    if not arguments or arguments[0].startswith("-"):
        if _options(Data, "data", arguments).directory is not None:
            raise ValueError(f"say which data set is in the directory: {', '.join(catalogue.names())}")
        for name in catalogue.names():
            _say(f"{name:12} {catalogue.find(name).title}")
        for name, text in catalogue.DRAWN.items():
            _say(f"{name}: {text}")
        return
    name, options = arguments[0], _options(Data, f"data {arguments[0]}", arguments[1:])
    if options.directory is None:
        _say(catalogue.described(name))
        return
    with progress.track(f"reading {name}"):
        lines = catalogue.checked(name, options.directory)
    use = catalogue.find(name).use.replace("DIRECTORY", str(options.directory))
    _say("\n".join([*lines, f"{options.directory} can be used: {use}"]))


def list_names(arguments: list[str]) -> None:
    """`lenmem list [--markdown]`: configurations, tasks, models, and the pairs that do not fit together."""
    if _options(List, "list", arguments).markdown:
        _say(markdown_tables())
        return
    console.print("[bold]configurations[/] " + ", ".join(configs.names()), highlight=False)
    for title, about in (("task", tasks.ABOUT), ("model", models.ABOUT)):
        table = Table(title, "what it is" if title == "model" else "the answer", box=None, pad_edge=False)
        for names, text in about.items():
            text = text if isinstance(text, str) else f"{text[0]} ({text[1]})"
            table.add_row("\n".join(names), escape(text.replace("`", "")))
        console.print()
        console.print(table)
    refused = _refused(
        {name: models.make(name) for name in models.names()}, {name: tasks.make(name) for name in tasks.names()}
    )
    console.print("\nEvery model takes every task" + (", except:" if refused else "."))
    for line in refused:
        console.print(line, highlight=False)


def markdown_tables() -> str:
    """All models and all tasks as two Markdown tables, as in the README."""
    lines = ["| model | what it is | from |", "|---|---|---|"]
    lines += [f"| {_quoted(names)} | {what} | {source} |" for names, (what, source) in models.ABOUT.items()]
    lines += ["", "| task | the answer |", "|---|---|"]
    lines += [f"| {_quoted(names)} | {answer} |" for names, answer in tasks.ABOUT.items()]
    return "\n".join(lines)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _refused(made_models: dict[str, Any], made_tasks: dict[str, Any]) -> list[str]:
    """`model: tasks (reason)` for the tasks that a model cannot take."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for model_name, model in made_models.items():
        for task_name, task in made_tasks.items():
            if reason := supports(model, task.spec):
                reasons.setdefault((model_name, reason), []).append(task_name)
    return [f"{model}: {', '.join(names)} ({reason})" for (model, reason), names in reasons.items()]


VERBS: dict[str, tuple[Callable[[list[str]], None], type]] = {
    "train": (train, Train),
    "evaluate": (evaluate, Evaluate),
    "predict": (predict, Predict),
    "compare": (compare, Compare),
    "sweep": (sweep, Sweep),
    "plot": (plot, Plot),
    "compile": (compile_ahead, Compile),
    "reproduce": (reproduce, Reproduce),
    "map": (draw_map, Map),
    "beyond": (go_beyond, Beyond),
    "export": (export, Export),
    "import": (import_file, Import),
    "zoo": (zoo, Zoo),
    "data": (data, Data),
    "gallery": (show, Gallery),
    "list": (list_names, List),
}


# --- options ----------------------------------------------------------------------------------------------------------


def _subject(arguments: list[str], verb: str, what: str, kind: type) -> tuple[str, list[str]]:
    """The configuration or run that a verb is applied to, and the other arguments."""
    if not set(HELP).isdisjoint(arguments[:1]):
        _help_of(verb, what, kind)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(_usage_of(verb, what))
    return arguments[0], arguments[1:]


def _of_run(arguments: list[str], verb: str, what: str, kind: type) -> tuple[str, list[str], list[ModuleType]]:
    """The run or file that a verb is applied to, the other arguments, and the user's modules that it may use."""
    given, rest = ahead(arguments, modules="+")
    name, rest = _subject(rest, verb, what, kind)
    return name, rest, configs.own_modules(given.modules or ())


def _about(arguments: list[str], verb: str, what: str, kind: type) -> Subject:
    """What a verb trains."""
    if not set(HELP).isdisjoint(arguments[:1]):
        _help_of(verb, what, kind)
    return subject(arguments, _usage_of(verb, what))


def _usage_of(verb: str, what: str) -> str:
    return f"usage: lenmem {verb} {what} [options]; lenmem {verb} --help says more"


def _help_of(verb: str, what: str, kind: type) -> NoReturn:
    """Prints what a verb does, with its options if they do not depend on the configuration or run."""
    if not issubclass(kind, Experiment | Measured):
        _options(kind, f"{verb} {what}", ["--help"])
    console.print(f"usage: lenmem {verb} {what} [options]\n\n{inspect.getdoc(kind)}\n", markup=False, highlight=False)
    name = "quickstart" if "CONFIG" in what else "runs/quickstart"
    console.print(f"lenmem {verb} {name} --help lists all options.", highlight=False)
    raise SystemExit(0)


def _experiment(options: Experiment) -> Experiment:
    """The experiment without the options of the verb."""
    return Experiment(**fields_of(options))


def _how_to_go_on(arguments: list[str], directory: Path, command: str) -> str:
    """The message after a training was stopped; `command` continues it."""
    saved = checkpoint.latest(directory / CHECKPOINTS)
    if saved is None:
        again = [*ahead(arguments, resume="?", directory=None)[1], "--directory", str(directory)]
        return f"stopped; nothing was saved yet, start again with\n  {shlex.join(['lenmem', 'train', *again])}"
    return f"stopped; step {saved} is saved, continue with\n  {command}"


# --- what is printed --------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _usage() -> None:
    console.print("usage: lenmem VERB ... [options]\n", markup=False, highlight=False)
    for verb, (_, kind) in VERBS.items():
        console.print(f"  {verb:10} {(kind.__doc__ or '').splitlines()[0]}", highlight=False, markup=False)
    console.print("\nlenmem VERB --help describes a verb, lenmem --version the installed packages.", highlight=False)


def _version() -> str:
    """The versions that a bug report needs."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax"))
    return f"lenmem {__version__} ({packages}, Python {platform.python_version()})"


def _out_of_memory(said: str) -> str:
    """In words what XLA says if an array does not fit."""
    asked = re.search(r"allocat\w* (\d+) bytes", said)
    size = f" {int(asked[1]) / 2**30:,.1f} GiB" if asked else " more"
    return f"out of memory: a step needs{size}; try a smaller batch, network or memory, or fewer seeds"


def _fail(message: str, status: int) -> None:
    # Lines are not wrapped, so that paths can be copied.
    Console(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(status)


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _plain_report(steps)
        return
    with bars.bar("training", total=steps, more="compiling") as bar:

        def report(entry: dict[str, Any]) -> None:
            title = f"training {entry['step']}/{steps}"
            bars.progress.update(bar, completed=entry["step"], description=title, more=_losses(entry))
            _say_deaths(entry)

        yield report


def _plain_report(steps: int) -> Callable[[dict[str, Any]], None]:
    """Prints a line for about every tenth of the training."""
    printed = 0

    def report(entry: dict[str, Any]) -> None:
        nonlocal printed
        if entry["step"] - printed >= steps / 10 or entry["step"] >= steps:
            printed = entry["step"]
            console.print(f"step {entry['step']}/{steps}  {_losses(entry)}  {entry['seconds']:.0f} s", highlight=False)
        _say_deaths(entry)

    return report


def _losses(entry: dict[str, Any]) -> str:
    losses = [float(loss) for loss in entry["loss"]]
    if len(losses) > 8:
        low, median, high = np.nanquantile(losses, [0, 0.5, 1])
        return f"loss {median:.4f} ({low:.4f} - {high:.4f}, {len(losses)} lanes)"
    return "loss " + " ".join(f"{loss:.4f}" for loss in losses)


def _say_deaths(entry: dict[str, Any]) -> None:
    for death in entry.get("died", []):
        console.print(
            f"seed {death['seed']} diverged at step {death['step']}: loss {death['loss']}, gradient norm "
            f"{death['grad_norm']}; its last good parameters are kept and the other seeds continue"
        )


def _recipe(training: Training) -> str:
    """The training settings in words."""
    optimizer = training.optimizer
    amount = f"{training.steps} steps of {training.batch_size} examples, {training.seeds} seeds"
    if not isinstance(optimizer, Optimizer):
        return amount
    clipped = "" if optimizer.clip_norm is None else f", gradients clipped to a norm of {optimizer.clip_norm:g}"
    return f"{amount}, {optimizer.name} at {optimizer.learning_rate:g}{clipped}"


def _say_trained(result: Result, directory: Path) -> None:
    training = result.experiment.training
    cost = f"{result.step} steps in {result.seconds:.0f} s on {training.device_count()} device(s)"
    console.print(f"{training.seeds} seed(s), {cost}; kept: {training.rule}", highlight=False)
