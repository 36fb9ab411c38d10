"""The subject of a training command: a configuration, a task and a model by name, or a run to resume.

    lenmem train lantm/copy                      a configuration, by its name or its file
    lenmem train lantm/copy --model lstm         the same with another model
    lenmem train copy --model panm               any task with any model
    lenmem train --task copy --model panm        the same
    lenmem train --resume runs/lantm/copy        a run, with its saved experiment

These words are read before the other options, since names and defaults of options depend on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lenmem import configs, models, runs, tasks
from lenmem.evaluation.lengths import Evaluation
from lenmem.experiment import Experiment, experiment_in
from lenmem.serialize import classes_in, is_foreign
from lenmem.training import Optimizer, Training
from lenmem.training.run_directory import holds_run

DEFAULT_TRAINING = Training(steps=1000, seeds=3, optimizer=Optimizer("adam", 3e-3, clip_norm=1.0))
"""Default training for a task and a model that are given by name."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The fields of the experiment to train, and the other options of the command."""

    name: str
    """The name of its directory."""
    experiment: dict[str, Any]
    """The fields of the experiment, before other options change them."""
    options: list[str]
    words: str
    """The words of the command that name the subject, quoted for a shell."""
    config: str | None = None
    """The name or file of the configuration."""
    resume: bool = False
    run: Path | None = None
    """The run to resume, if the command names it."""
    modules: tuple[str, ...] = ()
    """The values of `--modules`."""

    def directory(self, asked: Path | None) -> Path:
        """The directory of the run: that of `--resume`, else `asked`, else runs/<name>, or a numbered one if that is
        taken. ValueError if the one asked for holds a run that is not to be resumed.
        """
        if self.run is not None and asked not in (None, self.run):
            raise ValueError(f"--resume {self.run} and --directory {asked} are two runs; give one")
        directory = self.run or asked or Path("runs") / self.name
        if self.resume:
            return directory
        if asked is not None and holds_run(asked):
            raise ValueError(f"{asked} holds a run; choose another --directory, or continue it with --resume {asked}")
        return runs.fresh_directory(directory)

    def resuming(self, directory: Path, experiment: Experiment) -> str:
        """The command that resumes a run, with the options with which it was started."""
        if self.config and not isinstance(experiment.training.optimizer, Optimizer):  # which no run stores
            _, options = ahead(self.options, directory=None)
            modules = shlex.join(["--modules", *self.modules]) if self.modules else ""
            words = ["lenmem train", self.words, modules, "--resume --directory", shlex.quote(str(directory))]
            return " ".join(filter(None, [*words, shlex.join(options)]))
        own = self.modules or ((self.config,) if self.config and self.config.endswith(".py") else ())
        flags = [word for word in self.options if word in ("--distributed", "--tensorboard")]
        return " ".join([resuming(directory, experiment, own), *flags])


def resuming(directory: Path, experiment: Experiment, modules: Sequence[str] = ()) -> str:
    """The command that resumes a run.

    It includes `modules` if the experiment uses classes outside of lenmem, and the configuration if its optimiser is
    not an `Optimizer` and therefore not saved.
    """
    if not isinstance(experiment.training.optimizer, Optimizer):
        return shlex.join(["lenmem", "train", "CONFIG", "--resume", "--directory", str(directory)])
    foreign = any(map(is_foreign, classes_in(experiment)))
    words = ["--modules", *(modules or ["FILE.py"])] if foreign else []
    return shlex.join(["lenmem", "train", "--resume", str(directory), *words])


def subject(arguments: Sequence[str], usage: str) -> Subject:
    """The subject in the words after the verb. Raises ValueError, with `usage` if there is none."""
    parsed, words = ahead(arguments, resume="?", task=None, model=None, modules="+")
    if missing_files := [name for name in parsed.modules or () if name.endswith(".py") and not Path(name).exists()]:
        raise ValueError(f"--modules: there is no file {missing_files[0]}")
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and is_task(name):
        if parsed.task not in (None, name):
            raise ValueError(f"{name} and --task {parsed.task} are two tasks; give one")
        name, parsed.task = None, name
    resume = parsed.resume is not None
    if resume and name is None and parsed.task is None:  # `--resume --directory RUN`
        parsed.resume = parsed.resume or ahead(words, directory=None)[0].directory
    common = {"options": words, "resume": resume, "run": runs.find_run(parsed.resume) if parsed.resume else None}
    common |= {"modules": tuple(parsed.modules or ())}
    if name is not None:
        if parsed.task is not None:
            raise ValueError(f"the configuration {name} has a task; --task goes with --model alone")
        configs.find(name, tasks.names())
        label, fields = _configured(name, parsed.model)
        given = [name, *(["--model", parsed.model] if parsed.model else [])]
        return Subject(label, fields, words=shlex.join(given), config=name, **common)
    if parsed.task is not None and parsed.model is not None:
        parts = {"task": runs.task_named(parsed.task), "model": models.make(parsed.model)}
        label = f"{parsed.task.replace('/', '-')}-{parsed.model}"
        fields = parts | {"training": DEFAULT_TRAINING, "evaluation": Evaluation()}
        return Subject(label, fields, words=shlex.join([parsed.task, "--model", parsed.model]), **common)
    missing = "--model" if parsed.task is not None else "--task"
    if meant := difflib.get_close_matches(missing, [word for word in words if word.startswith("--")], 1, 0.75):
        raise ValueError(f"there is no option {meant[0]}. Did you mean {missing!r}?")
    if parsed.task is not None:
        if resume:
            raise ValueError(f"{parsed.task} is a task; to resume a run, give its directory alone: train --resume RUN")
        raise ValueError(f"{parsed.task} is a task; add the model that learns it, as in --model lstm (`lenmem list`)")
    if parsed.model is not None:
        raise ValueError(
            f"add the task that {parsed.model} learns, as in --task copy (`lenmem list`), or give a configuration"
        )
    if not parsed.resume:
        raise ValueError(usage)
    experiment = experiment_in(common["run"], configs.own_modules(common["modules"]))
    return Subject(str(common["run"]), fields_of(experiment), words=shlex.join(["--resume", parsed.resume]), **common)


def ahead(arguments: Sequence[str], **options: str | None) -> tuple[argparse.Namespace, list[str]]:
    """(the values of these options, the other words). An option has one value, or as many as `?` or `+` allow."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, count in options.items():
        parser.add_argument(f"--{name}", nargs=count, const="" if count == "?" else None)
    try:
        return parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{error.argument_name}: {error.message}") from None


def fields_of(experiment: Experiment) -> dict[str, Any]:
    """The fields of an experiment by name: task, model, training and evaluation."""
    return {field.name: getattr(experiment, field.name) for field in dataclasses.fields(Experiment)}


def stem(config: str) -> str:
    """The short name of a configuration: `lantm/copy` is unchanged; for a file it is its name without the suffix."""
    return Path(config).stem if config.endswith(".py") else config


def is_task(name: str) -> bool:
    """Whether only a task has this name. A configuration takes precedence."""
    return name in tasks.names() and name not in configs.names()


def _configured(config: str, model: str | None) -> tuple[str, dict[str, Any]]:
    """(name of the directory, fields) of a configuration, optionally with another model.

    The other model has the optimiser that the configuration defines for it, as in `compare`.
    """
    fields = fields_of(configs.load_config(config))
    name = stem(config)
    if model is None:
        return name, fields
    own = configs.models_of(config)
    if model in own or model != models.name_of(fields["model"]):
        fields["model"] = own[model] if model in own else models.make(model)
        optimizer = configs.optimizers_of(config).get(model, fields["training"].optimizer)
        fields["training"] = dataclasses.replace(fields["training"], optimizer=optimizer)
    return f"{name}-{model}", fields
