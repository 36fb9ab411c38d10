"""Where a program that is being traced is to run: what kernels have to know, and arrays do not say.

XLA splits its own operations over devices. A kernel it runs whole, so a kernel splits its rows itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jax.sharding import Mesh

_platform: ContextVar[str | None] = ContextVar("platform", default=None)
_spread: ContextVar[tuple[Mesh, str] | None] = ContextVar("spread", default=None)


def platform() -> str:
    """`cpu`, `gpu` or `tpu`: that of `on_platform`, or JAX's default backend."""
    return _platform.get() or jax.default_backend()


@contextmanager
def on_platform(name: str) -> Iterator[None]:
    """Programs traced inside are for this platform, which need not be that of this process."""
    token = _platform.set({"cuda": "gpu"}.get(name, name))
    try:
        yield
    finally:
        _platform.reset(token)


def spread() -> tuple[Mesh, str] | None:
    """The mesh of `spread_over`, and the axis over which it distributes rows; None for one device."""
    return _spread.get()


@contextmanager
def spread_over(mesh: Mesh | None, axis: str) -> Iterator[None]:
    """In programs traced inside, the leading axis of a batch is distributed over this axis of the mesh."""
    token = _spread.set(None if mesh is None else (mesh, axis))
    try:
        yield
    finally:
        _spread.reset(token)
