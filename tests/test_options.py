"""Options: the output of --help, and the message for each kind of mistake."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from rich.console import Console

from lenmem import cli, configs, options
from lenmem.cli.training import _over
from lenmem.errors import choices, nearest
from lenmem.subject import fields_of


def default(kind, config="quickstart"):
    """The default options of a verb."""
    names = {field.name for field in dataclasses.fields(kind)}
    of_experiment = fields_of(configs.load_config(config)) if "task" in names else {}
    return kind(**{name: value for name, value in of_experiment.items() if name in names})


def helped(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(cli, "console", Console(width=80))


def test_the_verbs_have_a_line_each(capsys):
    cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for verb in cli.VERBS:
        (line,) = [line for line in lines if line.startswith(f"  {verb} ")]
        assert line.endswith(".")
    assert max(map(len, lines)) <= 80
    cli.main(["--version"])
    assert re.fullmatch(r"lenmem \S+ \(jax \S+, flax \S+, optax \S+, Python 3\.\S+\)\n", capsys.readouterr().out)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_verb_helps_without_a_name(capsys, verb):
    said = helped(capsys, verb, "--help")
    assert (inspect.getdoc(cli.VERBS[verb][1]) or "").splitlines()[0] in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("config", ["quickstart", "ndr/ctl", "dnc/copy"])
def test_the_options_are_those_that_tyro_makes(capsys, config):
    said = helped(capsys, "train", config, "--help")
    assert max(map(len, said.splitlines())) <= 80
    listed = set(re.findall(r"(?:^\W+|, )(--[a-z][\w.-]+)", said.partition("run that uses them")[2], re.MULTILINE))
    assert listed - set(options.HELP) == set(options.names(default(cli.Train, config)))
    # Common ones come first, then group by group.
    places = [re.search(text, said) for text in ("--training.steps N", r"\W options\W", r"\W training options\W")]
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)
    assert all(places)
    assert "Optimiser steps." not in said
    assert "Optimiser steps." in helped(capsys, "train", config, "--help-verbose")


def test_a_description_is_one_paragraph(capsys, monkeypatch):
    """The lines of a docstring do not end lines of the help."""
    monkeypatch.setenv("COLUMNS", "600")
    assert "in the middle of training. A `figure` is then drawn at both." in helped(capsys, "plot", "--help")
    said = helped(capsys, "train", "lantm/copy", "--help-verbose")
    assert "Delétang et al. (2023) use 0, 1 or 2." in said
    assert "because this selects on test lengths, results are marked accordingly." in said


@pytest.mark.parametrize("verb", cli.VERBS)
def test_common_options_are_options(verb):
    kind = cli.VERBS[verb][1]
    named = set(re.findall(r"--[\w.-]+", inspect.getdoc(kind) or ""))
    assert named - {"--task", "--model"} <= set(options.names(default(kind)))  # These two are read before the others.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--training.stps 3", "there is no option --training.stps. Did you mean '--training.steps', "),
        ("--steps 3", "there is no option --steps. Did you mean '--training.steps'"),
        ("--zzz", "such as --task.vocabulary, .* All of them: lenmem train X --help"),
        ("-x", "there is no option -x"),
        ("--training.optimizer lion", "is a group of options: --training.optimizer.name, "),
        ("--training.steps many", "--training.steps takes an integer, at least 0, got 'many'$"),
        ("--training.steps=many", "--training.steps takes an integer, at least 0, got 'many'$"),
        ("--training.steps", "--training.steps takes an integer, at least 0, got nothing$"),
        ("--training.steps 3 4", "--training.steps takes an integer, at least 0, got '3 4'$"),
        ("--training.steps -1", "Training.steps is -1; it must be an integer, at least 0$"),
        (
            "--task.train_lengths 5",
            "--task.train-lengths takes .shortest, longest., ascending, from 1, got '5'$",
        ),
        ("--model.dtype float31", "--model.dtype takes a floating dtype or None, got 'float31'$"),
        ("--training.optimizer.name adm", "takes one of .*, got 'adm'. Did you mean 'adam' or 'adamw'\\?$"),
        ("--directory", "--directory takes a path or None, got nothing$"),
        ("--tensorboard yes", "--tensorboard takes no value, got 'yes'$"),
        ("extra --resume", "'extra' is one word too many; options begin with --$"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name(capsys, words, message):
    defaults = fields_of(configs.load_config("quickstart"))
    with pytest.raises(ValueError, match=message) as raised:
        options.parse(cli.Train, "train X", words.split(), **defaults)
    assert "\n" not in str(raised.value)
    printed = capsys.readouterr()
    assert not printed.out + printed.err


def test_a_sweep_without_a_field():
    with pytest.raises(ValueError, match="--over takes a field and its values, got nothing"):
        _over(configs.load_config("quickstart"), [()])


def test_nearest_names():
    names = ["lantm/copy", "panm/copy", "dnc/copy", "dnc/copy_small", "quickstart"]
    assert nearest("copy", names) == " Did you mean 'lantm/copy', 'panm/copy' or 'dnc/copy'?"
    assert nearest("quikstart", names) == " Did you mean 'quickstart'?"
    assert nearest("zzz", names) == nearest("a", []) == ""
    assert choices("zzz", ["a", "b"]) == " Allowed: a, b."
    many = [f"name{number}" for number in range(70)]
    assert choices("name69", many, "lenmem list").count("name") == 3
    assert choices("zzz", many) == " There are 70, such as name0, name1, name2."
