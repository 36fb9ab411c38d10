"""The verbs `train` and `sweep`."""

from __future__ import annotations

import dataclasses
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from lenmem import configs, runs, stopping
from lenmem.cli.terminal import console, plain_report, progress_of, say
from lenmem.cli.words import Modules, training_ahead
from lenmem.experiment import Experiment
from lenmem.options import parse, value_of
from lenmem.subject import DEFAULT_TRAINING, ahead, fields_of
from lenmem.training import Optimizer, Result, Training, checkpoint, processes
from lenmem.training.environment import divide_processor
from lenmem.training.lanes import owner_of, replaced
from lenmem.training.run_directory import CHECKPOINTS


@dataclasses.dataclass(frozen=True)
class Asked(Experiment):
    """The options of an experiment. They are checked when the experiment is built from them."""

    def __post_init__(self) -> None:
        """No check here: the default task and model may not fit together."""


@dataclasses.dataclass(frozen=True)
class Train(Asked):
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
class Sweep(Asked):
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


def train(arguments: list[str]) -> None:
    """`lenmem train CONFIG [options]`, `lenmem train TASK --model MODEL`, or `lenmem train --resume RUN`."""
    if "--distributed" in arguments:  # before the configuration, which may run computations
        processes.join()
        console.quiet = not processes.is_first()
    about = training_ahead(arguments, "train", "CONFIG | TASK --model MODEL | --resume RUN", Train)
    options = parse(Train, f"train {about.words}", about.options, **about.experiment)
    experiment = experiment_of(options)
    directory = about.directory(options.directory)
    for field in ("path", "directory"):
        if getattr(experiment.task, field, None) == "example":
            console.print(f"data: the example that comes with lenmem; --task.{field} reads yours", highlight=False)
    if options.training == DEFAULT_TRAINING:
        console.print(f"default training: {_recipe(options.training)}; --training.* changes it", highlight=False)

    def how_to_go_on() -> str:
        return _how_to_go_on(arguments, directory, about.resuming(directory, experiment))

    stopping.advise(how_to_go_on)
    if not options.distributed:
        divide_processor(experiment.training.devices)
    with progress_of(experiment.training.steps) as report:
        result, curve = runs.train_and_measure(
            experiment, directory, resume=about.resume, report=report, tensorboard=options.tensorboard
        )
    _say_trained(result, directory)
    if curve is None:
        say(how_to_go_on())
        raise SystemExit(stopping.status())
    from lenmem.evaluation.tables import curve_table

    console.print(curve_table([curve]))
    say(f"{directory}/: metrics.jsonl, checkpoints/, curve.csv, curve.png")


def sweep(arguments: list[str]) -> None:
    """`lenmem sweep CONFIG --over FIELD VALUE ... [--over ...]`."""
    from lenmem import sweep as sweeps

    about = training_ahead(arguments, "sweep", "CONFIG | TASK --model MODEL", Sweep)
    if about.resume:
        raise ValueError("an interrupted sweep continues with the command that started it, without --resume")
    options = parse(Sweep, f"sweep {about.words}", about.options, **about.experiment)
    experiment, over = _over(experiment_of(options), options.over)
    directory = options.directory or Path("runs") / "sweeps" / about.name
    divide_processor(experiment.training.devices)
    outcomes = sweeps.sweep(
        experiment,
        over or (configs.sweep_of(about.config) if about.config else {}),
        directory,
        say=say,
        report=lambda experiment: plain_report(experiment.training.steps),
    )
    console.print(sweeps.sweep_table(outcomes))
    say(f"{directory}/: sweep.csv, sweep.png, and a run for each combination")
    say(f"best: {directory}/{sweeps.best(outcomes).combination.name}")


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


def experiment_of(options: Experiment) -> Experiment:
    """The experiment without the options of the verb."""
    return Experiment(**fields_of(options))


def _how_to_go_on(arguments: list[str], directory: Path, command: str) -> str:
    """The message after a training was stopped; `command` continues it."""
    saved = checkpoint.latest(directory / CHECKPOINTS)
    if saved is None:
        again = [*ahead(arguments, resume="?", directory=None)[1], "--directory", str(directory)]
        return f"stopped; nothing was saved yet, start again with\n  {shlex.join(['lenmem', 'train', *again])}"
    return f"stopped; step {saved} is saved, continue with\n  {command}"


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
