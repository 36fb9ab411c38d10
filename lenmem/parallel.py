"""Normalized outer-product attention with the sequence split over devices.

Every device sums the outer products of its part of the sequence, and only these d_v x d_k memories are exchanged (Nam &
Seo, arXiv 2302.09422, section 3.2): O(d_v d_k) numbers per device and head for any sequence length.

* `pmap_outer_product_attention`: arrays in, arrays out, compiled with `jax.pmap`.
* `sharded_outer_product_attention`: with `jax.shard_map` over an axis of a mesh, for use inside a larger jitted model;
  `make_mesh` makes such a mesh.

Values and gradients equal those of `lenmem.ops.normalized_outer_product_attention` on one device, up to the order of
summation. Take gradients outside of both functions: `pmean` of a local gradient differs between shard_map and pmap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float

from lenmem.ops import (
    normalized_outer_product_attention,
    outer_product_memory,
    outer_product_read,
)
from lenmem.ops.chunks import result_type

__all__ = ["make_mesh", "pmap_outer_product_attention", "sharded_outer_product_attention"]

SEQUENCE = "sequence"


def pmap_outer_product_attention(
    query: Float[Array, "... S k"],
    key: Float[Array, "... S k"],
    value: Float[Array, "... S v"],
    *,
    causal: bool = False,
    devices: Sequence[Any] | None = None,
) -> Float[Array, "... S v"]:
    """`normalized_outer_product_attention` with the sequence split over `devices` (default: all local ones).

    Compiled with `jax.pmap`, once for each combination of shapes, devices and `causal`; call it outside of `jax.jit`.
    Bidirectional attention has one `psum` of the memories. Causal attention has one `all_gather`, and each device sums
    the memories of the devices before it. If the number of devices does not divide the length, the sequence is padded
    with zeros, which write nothing. Differentiable. O(S d_v d_k / devices) time and O(d_v d_k) communication per
    device; if causal, the communication is multiplied by the number of devices.
    Raises ValueError for mismatched shapes.
    """
    _check_shapes(query, key, value)
    devices = tuple(jax.local_devices() if devices is None else devices)
    if not devices:
        raise ValueError("devices must contain at least one device")
    length = query.shape[-2]
    query, key, value = (_split(array, len(devices)) for array in (query, key, value))
    read = _pmapped(causal, devices, value.ndim - 3)(query, key, value)
    return read.reshape(*read.shape[:-3], -1, read.shape[-1])[..., :length, :]


def sharded_outer_product_attention(
    query: Float[Array, "... S k"],
    key: Float[Array, "... S k"],
    value: Float[Array, "... S v"],
    *,
    mesh: Mesh,
    axis: str = SEQUENCE,
    batch_axis: str | None = None,
    causal: bool = False,
    key_mask: Bool[Array, "... S"] | None = None,
) -> Float[Array, "... S v"]:
    """`normalized_outer_product_attention` with the sequence split over an axis of a mesh, for use under `jax.jit`.

    Uses `jax.shard_map`: the second to last axis of the arrays is split over `axis` of `mesh`, and the first over
    `batch_axis` unless that is None; its size must divide that of the first axis. Other axes are not split. `key_mask`
    has the shape of the keys without their last axis, or broadcasts to it. Padding, communication and cost are those of
    `pmap_outer_product_attention`.

    Raises ValueError for mismatched shapes, or if the mesh has no such axis or one that is not `AxisType.Auto`.
    """
    _check_shapes(query, key, value)
    for name in (axis, batch_axis):
        if name is not None and name not in mesh.shape:
            raise ValueError(f"the mesh has the axes {', '.join(mesh.axis_names)}, not {name!r}")
    if any(kind is not AxisType.Auto for kind in mesh.axis_types):
        raise ValueError("the axes of the mesh must be of the type Auto, as those of lenmem.parallel.make_mesh")
    leading = [None] * (query.ndim - 2)
    if batch_axis is not None:
        if not leading:
            raise ValueError(f"arrays of shape {query.shape} have no batch to split over {batch_axis!r}")
        if query.shape[0] % mesh.shape[batch_axis]:
            raise ValueError(
                f"{mesh.shape[batch_axis]} devices along {batch_axis!r} do not divide a batch of {query.shape[0]}"
            )
        leading = [batch_axis, *leading[1:]]
    if key_mask is not None:
        # The mask is broadcast to the full shape. Masked rows are zero and write nothing.
        mask = jnp.broadcast_to(key_mask, key.shape[:-1])[..., None]
        key, value = jnp.where(mask, key, 0), jnp.where(mask, value, 0)
    length, count = query.shape[-2], mesh.shape[axis]
    spec = PartitionSpec(*leading, axis, None)
    attend = jax.shard_map(
        functools.partial(_attend, causal=causal, axis=axis, count=count), mesh=mesh, in_specs=spec, out_specs=spec
    )
    return attend(*(_pad(array, count) for array in (query, key, value)))[..., :length, :]


def make_mesh(*, data: int = 1, sequence: int | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with the axes `data` and `sequence` over `devices` (default: all).

    `sequence` defaults to the number of devices divided by `data`. Raises ValueError if there are too few devices, or
    if `data` does not divide their number.
    """
    devices = tuple(jax.devices() if devices is None else devices)
    if sequence is None:
        if data < 1 or len(devices) % data:
            raise ValueError(f"data={data} does not divide {len(devices)} devices")
        sequence = len(devices) // data
    sizes = (data, sequence)
    if min(sizes) < 1 or math.prod(sizes) > len(devices):
        raise ValueError(f"a mesh of {data} x {sequence} needs {math.prod(sizes)} devices; there are {len(devices)}")
    chosen = devices[: math.prod(sizes)]
    return jax.make_mesh(sizes, ("data", SEQUENCE), axis_types=(AxisType.Auto,) * 2, devices=chosen)


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, axis: str, count: int) -> jax.Array:
    """The computation of one device for its part of the sequence."""
    if not causal:
        memory = jax.lax.psum(outer_product_memory(key, value), axis)
        return outer_product_read(memory, query).astype(result_type(value))
    read, memory = normalized_outer_product_attention(query, key, value, causal=True, return_carry=True)
    before = (jnp.arange(count) < jax.lax.axis_index(axis)).astype(memory.dtype)
    earlier = jnp.tensordot(before, jax.lax.all_gather(memory, axis), 1)
    return read + outer_product_read(earlier, query).astype(read.dtype)


@functools.lru_cache(maxsize=64)
def _pmapped(causal: bool, devices: tuple[Any, ...], axis: int) -> Callable[..., Any]:
    """The compiled function, cached because `jax.pmap` compiles again for each new function object."""
    body = functools.partial(_attend, causal=causal, axis=SEQUENCE, count=len(devices))
    return jax.pmap(body, axis_name=SEQUENCE, in_axes=axis, out_axes=axis, devices=devices)


def _pad(array: jax.Array, count: int) -> jax.Array:
    """Pads the sequence with zeros at its end to a multiple of `count`."""
    missing = -array.shape[-2] % count
    return jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, missing), (0, 0)]) if missing else array


def _split(array: jax.Array, count: int) -> jax.Array:
    """[..., S, d] -> [..., count, ceil(S / count), d]."""
    padded = _pad(array, count)
    return padded.reshape(*padded.shape[:-2], count, padded.shape[-2] // count, padded.shape[-1])


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    if query.shape != key.shape or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "queries and keys must have the same shape, and values the same length: "
            f"got query {query.shape}, key {key.shape}, value {value.shape}"
        )
