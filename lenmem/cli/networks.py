"""The verbs for a trained network: `evaluate`, `predict`, `plot`, `export` and `import`."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import sys
from pathlib import Path

import flax.linen as nn

from lenmem import drawing, runs
from lenmem.cli.terminal import console, say
from lenmem.cli.words import Modules, names_ahead, run_ahead
from lenmem.evaluation.lengths import Evaluation
from lenmem.experiment import SUFFIX, Run, export_run, import_run
from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.options import parse
from lenmem.subject import ahead, resuming
from lenmem.tasks.base import Task


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
      --save                                  write the curve to the run

    Options of the task and the model change sizes, such as the number of slots.
    """

    lengths: tuple[int, ...] = ()
    """Lengths to measure. None given: those of the experiment."""
    samples: int | None = None
    """Examples per length. None: that of the experiment."""
    save: bool = False
    """Write curve.png and curve.csv to the run; measured otherwise than the run, evaluation.png and evaluation.csv."""
    step: int | None = None
    """A checkpoint or snapshot other than the latest."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Predict:
    """Apply a trained network to your own input or to an example."""

    input: str | None = None
    """Tokens, separated by spaces (floats: steps separated by semicolons)."""
    length: PositiveInt | None = None
    """Length of an example of the task, instead of `input`."""
    example: NonNegativeInt = 0
    """Number of the example among those of that length."""
    seed: int | None = None
    """Seed whose network is used. None: the first seed that did not diverge; of a network of the zoo, its best one."""
    answers: PositiveInt | None = None
    """Number of answer slots for an `input`. None: as many as the task has for such an input."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw a run: training, curve, traces; or a figure of a paper.

    Where pictures are written:
      RUN                 to the run
      FILE.safetensors    to FILE, or FILE-2 and so on if that is a run
      zoo:NAME            to runs/zoo/NAME
    """

    figure: str | None = None
    """Draw only this figure of a paper, such as lantm-2 or dnc-4; docs/figures.md has all of them."""
    output: Path | None = None
    """Directory of such a figure. None: figures."""
    trace: bool = False
    """Draw only the traces of an example, including the attention of each head."""
    states: bool = False
    """Draw only the controller states of a DNC: maps by phase and symbol, and its modes of reading and writing."""
    tsne: bool = False
    """Draw the maps of `states` by t-SNE instead of principal components; needs scikit-learn."""
    input: str | None = None
    """The example, as for `predict`. None: one of the task."""
    length: PositiveInt | None = None
    """Length of the example. None: the longest training length."""
    seed: int | None = None
    """Seed whose network is used. None: the first seed that did not diverge; of a network of the zoo, its best one."""
    example: NonNegativeInt = 0
    """Which example."""
    step: int | None = None
    """A checkpoint or snapshot other than the latest, to look at a network in the middle of training. A `figure` is
    then drawn at both."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run to one safetensors file, which verbs take like a run."""

    output: Path | None = None
    """The file, which is replaced if it exists. None: a new file <run>.safetensors."""
    with_optimizer: bool = False
    """Include the optimiser state and the metrics, so that training can continue where the file is imported."""
    modules: Modules = ()


@dataclasses.dataclass(frozen=True)
class Import:
    """Turn a file that was exported with its optimiser back into a run."""

    directory: Path | None = None
    """Directory of the run. None: runs/<name of the file>, with a number if that holds a run."""
    modules: Modules = ()


def evaluate(arguments: list[str]) -> None:
    """`lenmem evaluate RUN [options]`."""
    name, rest, modules = run_ahead(arguments, "evaluate", "RUN", Evaluate)
    step = ahead(rest, step=None)[0].step  # the latest checkpoint may be damaged, or gone
    run = runs.open_run(name, int(step) if step and step.isdecimal() else None, modules)
    of_run = {field.name: getattr(run.experiment, field.name) for field in dataclasses.fields(Measured)}
    options = parse(Evaluate, f"evaluate {shlex.quote(name)}", rest, **of_run)
    _check_tokens(run.experiment.task, options.task)
    asked = dataclasses.replace(
        options.evaluation,
        lengths=options.lengths or options.evaluation.lengths,
        samples=options.evaluation.samples if options.samples is None else options.samples,
    )
    experiment = dataclasses.replace(run.experiment, task=options.task, model=options.model, evaluation=asked)
    from lenmem.evaluation.tables import curve_table

    curve = runs.measure(experiment, run.params, alive=run.alive)
    console.print(curve_table([curve], rows=max(20, len(options.lengths))))
    for line in runs.whole_scores(experiment, run.params, run.alive):
        say(line)
    if options.save:
        own = experiment == run.experiment and run.step == run.experiment.training.steps
        runs.save_curves(run.directory, [curve], name="curve" if own else "evaluation")
        say(f"wrote {run.directory}/{'curve' if own else 'evaluation'}.csv and .png")


def _check_tokens(trained: Task, other: Task) -> None:
    """ValueError if the files of two tasks number their tokens differently."""
    if other == trained or other.data_hash is None:
        return
    for kind in ("input", "answer"):
        before, now = (getattr(task, f"{kind}_names") for task in (trained, other))
        for number, (old, new) in enumerate(itertools.zip_longest(before, now, fillvalue="missing")):
            if old != new:
                raise ValueError(f"the data have other tokens than in training: {kind} id {number} was {old}, is {new}")


def predict(arguments: list[str]) -> None:
    """`lenmem predict RUN --input "..."`, or `lenmem predict RUN --length N`."""
    name, rest, modules = run_ahead(arguments, "predict", "RUN", Predict)
    options = parse(Predict, f"predict {shlex.quote(name)}", rest)
    run = runs.open_run(name, modules=modules)
    if options.input is not None and options.length is None:
        if options.example:
            raise ValueError("--example goes with --length, not with --input")
        answer = runs.predict(run, options.input, seed=options.seed, answers=options.answers)
        print(" ".join(answer))
        if not answer:
            print("the answer is empty: its first symbol is the end", file=sys.stderr)
        return
    if options.input is not None or options.length is None:
        raise ValueError("give either --input or --length")
    if options.answers is not None:
        raise ValueError("--answers goes with --input, not with --length")
    answer = runs.answer_example(run, options.length, seed=options.seed, example=options.example)
    print("input ", *answer.inputs)
    columns = zip(answer.right, answer.given, answer.hits, strict=True)
    cells = [(right, given, "" if hit else "^" * max(len(given), 1)) for right, given, hit in columns]
    widths = [max(map(len, cell)) for cell in cells]
    for title, row in zip(("right ", "answer", "      "), zip(*cells, strict=True), strict=True):
        print(" ".join([title, *(f"{text:{width}}" for text, width in zip(row, widths, strict=True))]).rstrip())
    hits = [hit for hit, scored in zip(answer.hits, answer.scored, strict=True) if scored]
    print(f"{sum(hits)} of {len(hits)} right")


def plot(arguments: list[str]) -> None:
    """`lenmem plot RUN [options]` or `lenmem plot RUN ... --figure NAME [options]`."""
    name, rest, modules = run_ahead(arguments, "plot", "RUN", Plot)
    more, rest = names_ahead(rest)
    names = [name, *more]
    options = parse(Plot, f"plot {shlex.join(names)}", rest)
    if options.input is not None and (options.length is not None or options.example):
        raise ValueError("--input is an example of its own; leave out --length and --example")
    if options.output is not None and options.figure is None:
        raise ValueError("--output goes with --figure; other pictures go to the run")
    if options.figure is not None and (options.trace or options.states):
        raise ValueError("--trace and --states go without --figure")
    of_states = (options.states or options.tsne) and options.figure is None
    if of_states and (options.trace or options.input is not None or options.example):
        raise ValueError("--states has examples of its own; leave out --trace, --input and --example")
    if options.figure is not None:
        from lenmem import figures

        paths = figures.draw_figure(
            options.figure,
            names,
            output=options.output or Path("figures"),
            step=options.step,
            length=options.length,
            seed=options.seed,
            example=options.example,
            text=options.input,
            tsne=options.tsne,
            modules=modules,
        )
    elif len(names) > 1:
        raise ValueError(f"got {len(names)} runs; without --figure, plot draws one")
    else:
        run = runs.open_run(name, options.step, modules)
        if of_states:
            paths = drawing.draw_states(run, length=options.length, seed=options.seed, tsne=options.tsne)
        else:
            paths = drawing.draw_run(
                run,
                length=options.length,
                seed=options.seed,
                example=options.example,
                text=options.input,
                only_trace=options.trace,
            )
    for path in paths:
        say(f"wrote {path}")


def export(arguments: list[str]) -> None:
    """`lenmem export RUN [--output FILE] [--with-optimizer]`."""
    name, rest, modules = run_ahead(arguments, "export", "RUN", Export)
    options = parse(Export, f"export {shlex.quote(name)}", rest)
    run: Run = runs.open_run(name, modules=modules)
    output = options.output or Path(f"{run.name}{SUFFIX}")
    if options.output is None and output.exists() and not run.is_from(output):
        raise ValueError(f"there is a file {output}, perhaps of another run; to replace it, add --output {output}")
    export_run(run, output, with_optimizer=options.with_optimizer)
    say(f"wrote {output}")


def import_file(arguments: list[str]) -> None:
    """`lenmem import FILE [--directory D]`."""
    name, rest, modules = run_ahead(arguments, "import", "FILE", Import)
    options = parse(Import, f"import {shlex.quote(name)}", rest)
    directory = options.directory or runs.fresh_directory(Path("runs") / Path(name).stem)
    run = import_run(name, directory, modules=modules)
    say(f"{directory} is at step {run.step} of {run.experiment.training.steps}; continue with")
    given = ahead(arguments, modules="+")[0].modules or ()
    say(f"  {resuming(directory, run.experiment, given)}")
