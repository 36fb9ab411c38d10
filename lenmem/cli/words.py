"""The words after a verb, before its options: a configuration, a run, or several names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, NoReturn

import tyro

from lenmem import configs
from lenmem.cli.terminal import console
from lenmem.options import HELP, parse
from lenmem.subject import Subject, ahead, subject

_OWN = (
    "Files *.py (or Python modules) with your own classes that the run uses. These files are executed; code in a run "
    "is not."
)
Modules = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py", help=_OWN)]
"""Files with the user's own classes."""


def subject_ahead(arguments: list[str], verb: str, what: str, kind: type) -> tuple[str, list[str]]:
    """The configuration or run that a verb is applied to, and the other arguments."""
    if not set(HELP).isdisjoint(arguments[:1]):
        _help(verb, what, kind)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(_usage_of(verb, what))
    return arguments[0], arguments[1:]


def run_ahead(arguments: list[str], verb: str, what: str, kind: type) -> tuple[str, list[str], list[ModuleType]]:
    """The run or file that a verb is applied to, the other arguments, and the user's modules that it may use."""
    given, rest = ahead(arguments, modules="+")
    name, rest = subject_ahead(rest, verb, what, kind)
    return name, rest, configs.own_modules(given.modules or ())


def training_ahead(arguments: list[str], verb: str, what: str, kind: type) -> Subject:
    """What a verb trains."""
    if not set(HELP).isdisjoint(arguments[:1]):
        _help(verb, what, kind)
    return subject(arguments, _usage_of(verb, what))


def names_ahead(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first option, and the rest."""
    count = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def _usage_of(verb: str, what: str) -> str:
    return f"usage: lenmem {verb} {what} [options]; lenmem {verb} --help says more"


def _help(verb: str, what: str, kind: type) -> NoReturn:
    """Prints what a verb does, with its options if they do not depend on the configuration or run."""
    if all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind)):
        parse(kind, f"{verb} {what}", ["--help"])
    console.print(f"usage: lenmem {verb} {what} [options]\n\n{inspect.getdoc(kind)}\n", markup=False, highlight=False)
    name = "quickstart" if "CONFIG" in what else "runs/quickstart"
    console.print(f"lenmem {verb} {name} --help lists all options.", highlight=False)
    raise SystemExit(0)
