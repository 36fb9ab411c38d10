"""Validation of configuration fields: types declare the allowed values, and constructors check them.

    hidden_size: PositiveInt = 50
    dropout: UnitInterval = 0.1
    cell: Literal["gru", "lstm"] = "gru"

Tasks, models and the parts of an experiment are dataclasses that call `check_fields` in `__post_init__`. Conditions on
several fields at once, or on the task, are checked where they are used.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem.errors import nearest
from lenmem.types import Dtype


class Rule:
    """A condition on a value in addition to its type, as text and as a test."""

    def __init__(self, wanted: str, holds: Callable[[Any], bool]):
        self.wanted, self.holds = wanted, holds

    def __repr__(self) -> str:
        return self.wanted


def at_least(least: float) -> Rule:
    """Numbers that are at least `least`."""
    return Rule(f"at least {least}", lambda value: value >= least)


def between(least: float, most: float) -> Rule:
    """Numbers from `least` to `most`."""
    return Rule(f"from {least} to {most}", lambda value: least <= value <= most)


PositiveInt = Annotated[int, at_least(1)]
"""A size: an integer that is at least 1."""
NonNegativeInt = Annotated[int, at_least(0)]
"""An integer that is at least 0."""
Seed = Annotated[int, Rule("from -2^63 to 2^63 - 1", lambda value: -(2**63) <= value < 2**63)]
"""A seed of a random key."""
NonNegativeFloat = Annotated[float, at_least(0)]
"""A number that is at least 0."""
PositiveFloat = Annotated[float, Rule("above 0", lambda value: value > 0)]
"""A number above 0."""
UnitInterval = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
"""A fraction or a probability below 1."""
Lengths = Annotated[
    tuple[int, int], Rule("(shortest, longest), ascending, from 1", lambda ends: 1 <= ends[0] <= ends[1])
]
"""A range of lengths, both ends included."""


def check_fields(config: Any, *names: str, shown: Callable[[str], str] | None = None) -> None:
    """Raises ValueError for the first field of a dataclass, or of those in `names`, whose value does not have its type.

    The message has the field, as `shown` or as `Class.field`, the value and the allowed values. Unknown types are not
    checked. For a number, an array is also accepted without a check, since the numbers of a sweep are traced.
    """
    for name, kind in kinds(type(config)).items():
        value = getattr(config, name)
        if (name in names or not names) and not _fits(value, kind):
            got = f"{shown(name) if shown else f'{type(config).__name__}.{name}'} is {value!r}"
            if typing.get_origin(kind) is Literal:
                choices = [str(choice) for choice in typing.get_args(kind)]
                raise ValueError(f"{got}; allowed are {', '.join(choices)}.{nearest(value, choices)}")
            raise ValueError(f"{got}; it must be {described(kind)}")


@functools.cache
def kinds(config: type) -> dict[str, Any]:
    """The types of the fields, by name; empty if a type is defined only inside a function."""
    try:
        hints = typing.get_type_hints(config, include_extras=True)
    except NameError:
        return {}
    fields: dict[str, Any] = getattr(config, "__dataclass_fields__", {})
    of_linen = {"parent", "name"} if "parent" in fields else set()
    return {name: hints[name] for name in fields if name not in of_linen and not _is_class_wide(hints[name])}


def _is_class_wide(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.ClassVar or kind is typing.ClassVar


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type."""
    if kind == Dtype:
        return _is_floating(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        known = _fits(value, arguments[0])
        return known and (isinstance(value, jax.Array) or all(rule.holds(value) for rule in _rules(arguments)))
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1:] == (...,):
            return all(_fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if kind in (int, float) and isinstance(value, jax.Array):
        return True
    if kind is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind is float:
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        return number and math.isfinite(value)
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _is_floating(value: Any) -> bool:
    """Whether the value is a floating-point dtype or None."""
    try:
        return value is None or jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        return False


def described(kind: Any) -> str:
    """The type of a field as text."""
    if kind == Dtype:
        return "a floating dtype or None"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        whole = typing.get_origin(arguments[0]) is tuple  # the rule of a tuple describes its items
        return ", ".join([*([] if whole else [described(arguments[0])]), *(rule.wanted for rule in _rules(arguments))])
    if origin in (Union, types.UnionType):
        return " or ".join(map(described, arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        items = arguments[:1] if arguments[-1:] == (...,) else arguments
        return f"a tuple ({', '.join(map(described, items))}{', ...' if items != arguments else ''})"
    words = {int: "an integer", float: "a finite number", bool: "True or False", str: "a text", type(None): "None"}
    words[Path] = "a path"
    return words.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def _rules(arguments: tuple[Any, ...]) -> list[Rule]:
    return [rule for rule in arguments[1:] if isinstance(rule, Rule)]


def settable(config: Any) -> list[str]:
    """Names of the fields that a configuration sets, of a dataclass or a Linen module or of its class; none for
    anything else."""
    kind = config if isinstance(config, type) else type(config)
    if not dataclasses.is_dataclass(kind):
        return []
    skipped = ("parent", "name", "spec") if issubclass(kind, nn.Module) else ()
    return [field.name for field in dataclasses.fields(kind) if field.init and field.name not in skipped]
