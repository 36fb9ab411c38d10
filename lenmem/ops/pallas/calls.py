"""Kernels as functions of JAX: mapped over further axes, over devices, and differentiated forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec


def exact(interpret: bool) -> bool:
    """Whether products of float32 are to be exact; by default a TPU rounds their factors to bfloat16."""
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    return interpret or precision not in (None, "default", "fastest", "bfloat16")


def by_rows(array: jax.Array, leading: tuple[int, ...], length: int, fill: float = 0.0) -> jax.Array:
    """[..., N, d] -> [R, length, d], a row for each index of the `leading` axes, filled at the end."""
    count, (present, width) = math.prod(leading), array.shape[-2:]
    array = jnp.broadcast_to(array, (*leading, present, width)).reshape(count, present, width)
    return jnp.pad(array, [(0, 0), (0, length - present), (0, 0)], constant_values=fill)


def output(shape: tuple[int, ...], varying: jax.Array, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """A result of a kernel. Inside `jax.shard_map` it varies over the same axes of the mesh as `varying`."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(varying).mat)


def run(kernel: Callable[..., None], arrays: Sequence[jax.Array], **options: Any) -> Any:
    """`pl.pallas_call` of the kernel. Its numbers have 32 bits, also if JAX's default is 64: a TPU has no others."""
    with jax.enable_x64(False):
        return pl.pallas_call(kernel, **options)(*arrays)


def with_tangents_of(plain: Callable, kernel: Callable) -> Callable[..., Any]:
    """The kernel; differentiated forward, the derivative of the plain function."""
    function = jax.custom_jvp(kernel)
    function.defjvp(lambda primals, tangents: (kernel(*primals), jax.jvp(plain, primals, tangents)[1]))
    return function


def of_rows(function: Callable, inputs: int, over: tuple[Mesh, str] | None) -> Callable[..., Any]:
    """A function of rows, of `inputs` arrays [R, ...] and perhaps a limit. Axes it is mapped over give more rows."""

    @custom_vmap
    def mapped(*arrays: jax.Array) -> Any:
        return function(*arrays)

    @mapped.def_vmap
    def _(size: int, batched: Sequence[bool], *arrays: jax.Array) -> tuple[Any, Any]:
        if any(batched[inputs:]):  # limits of their own: one call after another
            chosen = {i: x for i, x in enumerate(arrays) if batched[i]}
            results = jax.lax.map(lambda some: mapped(*[some.get(i, x) for i, x in enumerate(arrays)]), chosen)
        else:
            each = zip(arrays[:inputs], batched, strict=False)
            spread = [x if is_batched else jnp.broadcast_to(x, (size, *x.shape)) for x, is_batched in each]
            rows = [x.reshape(-1, *x.shape[2:]) for x in spread]
            results = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), mapped(*rows, *arrays[inputs:]))
        return results, jax.tree.map(lambda _: True, results)

    def call(*arrays: jax.Array) -> Any:
        if over is None:
            return mapped(*arrays)
        mesh, axis = over
        rows = PartitionSpec(axis if arrays[0].shape[0] % mesh.shape[axis] == 0 else None)
        specs = (*[rows] * inputs, *[PartitionSpec()] * (len(arrays) - inputs))
        return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False)(*arrays)

    return call
