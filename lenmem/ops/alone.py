"""Operations with a loop that are called alone, outside of a compiled program.

JAX compiles the loop of such a call anew each time, and keeps all programs: a second for each call of a notebook, and
memory that is never freed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from lenmem.placement import device_kind, platform, spread

P = ParamSpec("P")
T = TypeVar("T")


def compiled_alone(operation: Callable[P, T]) -> Callable[P, T]:
    """The operation, compiled once for each combination of shapes, options and devices. Within a trace nothing changes.

    Options are keyword arguments that are plain Python values.
    """
    of_all: Any = operation

    def run(options: tuple[tuple[str, Any], ...], place: Any, *arguments: Any, **arrays: Any) -> Any:
        return of_all(*arguments, **dict(options), **arrays)

    compiled: Any = jax.jit(run, static_argnums=(0, 1))

    @functools.wraps(operation)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((arguments, keywords))):
            return operation(*arguments, **keywords)
        options = {name: x for name, x in keywords.items() if isinstance(x, bool | int | float | str | None)}
        arrays: Any = {name: x for name, x in keywords.items() if name not in options}
        return compiled(tuple(sorted(options.items())), (platform(), device_kind(), spread()), *arguments, **arrays)

    return call
