"""The device and the mesh for which a program is traced. Kernels need them, and cannot get them from their arrays.

XLA distributes its own operations over devices, but not a kernel, which must therefore distribute its rows itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jax.sharding import Mesh

_platform: ContextVar[tuple[str, str | None] | None] = ContextVar("platform", default=None)
_spread: ContextVar[tuple[Mesh, str] | None] = ContextVar("spread", default=None)


def platform() -> str:
    """`cpu`, `gpu` or `tpu`: the platform of `on_platform`, or that of JAX's default device.

    A program that is placed by its arrays on another platform needs `on_platform`: a trace does not see where they are.
    """
    given, default = _platform.get(), jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if given:
        return given[0]
    return getattr(default, "platform", default) or jax.default_backend()


def is_here() -> bool:
    """Whether this process has devices of this platform. It has none if a program is only compiled for it."""
    try:
        return bool(jax.devices(platform()))
    except RuntimeError:
        return False


def device_kind() -> str | None:
    """JAX's name of the kind of device, such as `TPU v5 lite`: that of `on_platform`, or of the first device here."""
    given = _platform.get()
    return given[1] if given else jax.devices()[0].device_kind


@contextmanager
def on_platform(name: str, kind: str | None = None) -> Iterator[None]:
    """Programs traced inside the context are for this platform, which may differ from that of this process, and for
    this kind of device, if it is known."""
    token = _platform.set(({"cuda": "gpu"}.get(name, name), kind))
    try:
        yield
    finally:
        _platform.reset(token)


def spread() -> tuple[Mesh, str] | None:
    """The mesh of `spread_over`, and its axis over which rows are distributed; None for one device."""
    return _spread.get()


@contextmanager
def spread_over(mesh: Mesh | None, axis: str) -> Iterator[None]:
    """In programs traced inside the context, the leading axis of a batch is distributed over this axis of the mesh."""
    token = _spread.set(None if mesh is None else (mesh, axis))
    try:
        yield
    finally:
        _spread.reset(token)
