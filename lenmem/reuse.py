"""Compiled programs that are used again for equal arguments, until the user's own code changes.

Modules and tasks are data, and equal data would give the same program: but in a notebook a class can be edited while
its objects stay equal, by IPython's `%autoreload`, by assigning to a method, or by changing a helper function. The code
of the user's classes is therefore part of the key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import flax.linen as nn
import jax
import numpy as np

_OTHERS = {"lenmem", *sys.stdlib_module_names}
_PLAIN = (bool, int, float, complex, str, bytes, tuple, np.ndarray, np.generic, jax.Array)
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def reused(make: Callable[..., Any], size: int) -> Callable[..., Any]:
    """`make`, whose last `size` results are returned again for equal arguments and unchanged code.

    If an argument is not hashable, because a field contains an array or a list, there is a new result each time.
    """
    known = functools.lru_cache(size)(lambda code, *arguments: make(*arguments))

    def get(*arguments: Any) -> Any:
        try:
            hash(arguments)
        except TypeError:
            return make(*arguments)
        search = _Search()
        code = tuple(search.of(arguments))
        return known((code, tuple(search.modules)), *arguments)

    return get


def own_code(*values: Any) -> tuple[Hashable, ...]:
    """The code of the user's own classes and functions in these values, with all that it refers to by name: functions,
    classes, numbers, text, tuples and arrays. Equal if nothing has changed.

    lenmem, the standard library and installed packages are not searched. Lists, sets and dictionaries do not count:
    a network may collect something in them while it is traced.
    """
    return tuple(_Search().of(values))


class _Search:
    """A search that visits every function, class and module once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.modules: list[int] = []
        """For each Linen module, in the order of the search, the number of the module that is the same object. A module
        in two places has one set of parameters; two modules with equal fields have two, but compare equal."""
        self._numbers: dict[int, int] = {}

    def of(self, value: Any, *, text: bool = False) -> Iterator[Hashable]:
        """The code in a value; with `text`, also numbers and the like as text."""
        if isinstance(value, Mapping | tuple | list) and not text:
            for item in value.values() if isinstance(value, Mapping) else value:
                yield from self.of(item)
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, staticmethod | classmethod):
            yield from self.of(value.__func__)
        elif isinstance(value, property):
            yield from self.of((value.fget,))
        elif isinstance(value, functools.partial):
            yield from self.of((value.func, value.args, value.keywords))
        elif dataclasses.is_dataclass(value):
            if isinstance(value, nn.Module):
                self.modules.append(self._numbers.setdefault(id(value), len(self._numbers)))
            yield from self._of_class(type(value))
            yield from self.of([getattr(value, field.name, None) for field in dataclasses.fields(value)])
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:  # such as a jitted function
            yield from self.of(wrapped)
        elif text and isinstance(value, _PLAIN):
            yield _as_text(value)

    def _of_class(self, kind: type) -> Iterator[Hashable]:
        if not self._is_new(kind) or not _is_own(kind.__module__):
            return
        for base in kind.__bases__:
            yield from self._of_class(base)
        for name, member in vars(kind).items():
            if not name.startswith("__") or callable(member):
                yield name
                yield from self.of(member, text=True)

    def _of_function(self, function: FunctionType) -> Iterator[Hashable]:
        if not self._is_new(function):
            return
        if _is_own(function.__globals__.get("__name__", "")):
            yield function.__code__
            yield repr((function.__defaults__, function.__kwdefaults__))
            yield from self._named(function.__globals__, _names(function.__code__))
            for value in _closure(function):
                yield from self.of(value, text=True)
        else:  # a wrapper, such as those of Linen
            yield from self.of([*_closure(function)])
        yield from self.of(getattr(function, "__wrapped__", None))

    def _named(self, namespace: dict[str, Any], names: set[str]) -> Iterator[Hashable]:
        """The code of the members with these names, and of their members if they are modules."""
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            if not isinstance(value, ModuleType):
                yield from self.of(value, text=True)
            elif _is_own(value.__name__) and value.__dict__ is not namespace:
                yield from self._named(vars(value), names - {name})

    def _is_new(self, value: Any) -> bool:
        new = id(value) not in self.seen
        self.seen.add(id(value))
        return new


def _as_text(value: Any) -> str:
    """A plain value as text; of an array a hash, since large ones are not written in full."""
    if isinstance(value, np.ndarray | jax.Array):
        with suppress(TypeError):  # a traced array, or one of random keys
            digest = hashlib.sha256(np.asarray(value).tobytes()).hexdigest()
            return f"{value.dtype}{value.shape} {digest}"
    return repr(value)


def _closure(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is still empty
            yield cell.cell_contents


def _names(code: CodeType) -> set[str]:
    """The names that code refers to, with those of the functions inside it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_own(module: str) -> bool:
    """Whether the module with this name is of the user."""
    if module.partition(".")[0] in _OTHERS:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not file.startswith(_INSTALLED)
