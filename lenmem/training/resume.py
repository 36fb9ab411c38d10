"""Comparison of an experiment, and of its code, with that of the run that it resumes."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lenmem.serialize import classes_in, from_plain, to_plain
from lenmem.training.optimizer import Optimizer

FREE = ("devices", "seeds_at_once", "widths")
"""Fields of the training that only affect how it is computed. They may change when a run is resumed.

They change the rounding, and `widths` also the draws of dropout.
"""
_ABSENT = object()
_NOT_OWN = {"lenmem", "flax", *sys.stdlib_module_names}
"""Packages whose classes are not a user's own."""


def code_of(experiment: Any) -> str | None:
    """SHA-256 of the functions and classes in the files of an experiment's own classes and their bases.

    None if all classes are from lenmem, or have no file. Comments, layout and other statements do not count, so a
    configuration with a class may change its settings.
    """
    kinds = {base for kind in classes_in(experiment) for base in kind.__mro__}
    names = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in _NOT_OWN}
    definitions = []
    for module in (sys.modules[name] for name in sorted(names & sys.modules.keys())):
        with suppress(OSError, TypeError, SyntaxError):  # a class that was typed in, or is not Python
            tree = ast.parse(Path(inspect.getsourcefile(module) or "").read_text())
            kept = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            definitions += [ast.unparse(node) for node in tree.body if isinstance(node, kept)]
    return hashlib.sha256("\n".join(definitions).encode()).hexdigest() if definitions else None


def same_experiment(saved: Any, experiment: Any) -> bool:
    """Whether `saved`, plain data, describes the experiment, except for the fields in `FREE`.

    Of an Optax transformation only the class is saved, so an experiment with one is not known to be the same.
    """
    known = isinstance(experiment.training.optimizer, Optimizer)
    return known and not experiment_differences(saved, experiment)


def experiment_differences(saved: Any, experiment: Any) -> list[str]:
    """As `differences`, without the fields in `FREE`."""
    free = {name: getattr(experiment.training, name) for name in FREE}
    with suppress(KeyError, TypeError):  # Then `saved` does not describe an experiment.
        saved = saved | {"training": saved["training"] | free}
    return differences(saved, experiment)


def differences(data: Any, value: Any) -> list[str]:
    """The fields in which the object that `to_plain` wrote as `data` differs from `value`; empty if there are none.

    An example is `training.steps: the run has 1000, asked for 2000`. Fields that did not exist when the data was saved
    count as having their defaults.
    """
    plain = to_plain(value)
    if data != plain:
        with suppress(ValueError):
            data = to_plain(from_plain(data, classes_in(value)))
    return list(_differences(data, plain, ""))


def _differences(saved: Any, asked: Any, where: str) -> Iterator[str]:
    if _kind(saved) is not None and _kind(saved) == _kind(asked):
        for name in dict.fromkeys([*saved, *asked]):
            there = saved.get(name, _ABSENT), asked.get(name, _ABSENT)
            yield from _differences(*there, f"{where}.{name}" if where else name)
    elif saved != asked:
        yield f"{where or 'all of it'}: the run has {_shown(saved)}, asked for {_shown(asked)}"


def _kind(plain: Any) -> str | None:
    """The class of a saved object with fields."""
    kind = plain.get("class", "dict") if isinstance(plain, Mapping) else None
    return None if kind in ("float", "dtype", "function") else kind


def _shown(plain: Any) -> str:
    """A short description of plain data; for an object, its class."""
    if plain is _ABSENT:
        return "nothing"
    if isinstance(plain, Mapping) and "class" in plain:
        return str(plain.get("value") or plain.get("name") or plain["class"].rpartition(".")[2])
    text = "None" if plain is None else json.dumps(plain)
    return text if len(text) <= 60 else f"{text[:60]}..."
