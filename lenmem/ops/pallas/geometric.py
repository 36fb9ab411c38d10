"""Geometric and stick-breaking attention by the kernels of `lenmem.ops.pallas.outward`: any axes, dtypes and devices.

On a platform that is not a TPU, the kernels are interpreted, which is slow and serves tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from lenmem.ops.chunks import sum_type
from lenmem.ops.gradients import with_gradient
from lenmem.ops.pallas import outward
from lenmem.ops.pallas.calls import by_rows, of_rows, with_tangents_of
from lenmem.ops.pallas.tiles import TILE
from lenmem.placement import platform, spread


def fits(query: jax.Array, value: jax.Array) -> bool:
    """Whether a tile's rows, and the keys and values of a sequence, fit into VMEM."""
    needed = outward.bytes_needed(query.shape[-2], query.shape[-1], value.shape[-1])
    return needed <= outward.vmem() and sum_type(query, value) == jnp.float32


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sides: jax.Array | None,
    offset: Any,
    key_mask: jax.Array | None,
    *,
    tolerance: Any = None,
    one_sided: bool = False,
) -> jax.Array:
    """sum_j A_ij v_j in float32, with logits q_i . k_j + sides_i0 + offset on the left, + sides_i1 on the right.

    Shapes as for `lenmem.ops.geometric_attention`; queries are scaled; masked keys and values are finite. Forward-mode
    and second derivatives are those of the form for XLA, with its memory.
    """
    if not fits(query, value):
        length, width, value_width = query.shape[-2], query.shape[-1], value.shape[-1]
        raise ValueError(
            f"the kernel takes float32 or bfloat16 up to a length of {_longest(width, value_width)} for these widths, "
            f"not {jnp.result_type(query, value)} of length {length}: use implementation='xla'"
        )
    length = query.shape[-2]
    sides = jnp.zeros((length, 2)) if sides is None else sides
    bias = jnp.zeros((length, 1)) if key_mask is None else jnp.where(key_mask, 0.0, -jnp.inf)[..., None]
    arrays = [x.astype(jnp.float32) for x in (query, key, value, sides + offset, bias)]
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    filling = [0.0, 0.0, 0.0, 0.0, -jnp.inf]
    whole = length + -length % TILE
    rows = [jnp.swapaxes(by_rows(x, leading, whole, fill), 1, 2) for x, fill in zip(arrays, filling, strict=True)]
    if tolerance is not None:
        rows.append(jnp.asarray(tolerance, jnp.float32).reshape(1))
    read = _attention(one_sided, platform() != "tpu", spread())(*rows)
    return jnp.swapaxes(read, 1, 2).reshape(*leading, -1, value.shape[-1])[..., :length, :]


def _longest(width: int, value_width: int) -> int:
    length = 0
    while outward.bytes_needed(length + TILE, width, value_width) <= outward.vmem():
        length += TILE
    return length


@functools.cache
def _attention(one_sided: bool, interpret: bool, over: tuple[Mesh, str] | None) -> Callable[..., jax.Array]:
    """The function of (query, key, value, sides, bias[, tolerance]) by rows, with its gradient."""

    def forward(query, key, value, sides, bias, *limit):
        more = (limit[0] if limit else None,)
        return outward.forward(query, key, value, sides, bias, *more, one_sided=one_sided, interpret=interpret)

    def backward(query, key, value, sides, bias, cotangent, *limit):
        more = (limit[0] if limit else None, cotangent)
        return outward.backward(query, key, value, sides, bias, *more, one_sided=one_sided, interpret=interpret)

    def plain(query, key, value, sides, bias, *_):
        return _plain(query, key, value, sides, bias, one_sided)

    def plain_backward(query, key, value, sides, bias, cotangent, *_):
        return jax.vjp(lambda *x: plain(*x, bias), query, key, value, sides)[1](cotangent)

    ahead = with_tangents_of(plain, of_rows(forward, 5, over))
    back = with_tangents_of(plain_backward, of_rows(backward, 6, over))

    def pull(kept: tuple, cotangent: jax.Array) -> tuple:
        *arrays, limit = kept
        return *back(*arrays, cotangent, *limit), *[None] * (1 + len(limit))

    return with_gradient(lambda *x: (ahead(*x), (*x[:5], x[5:])), pull)


def _plain(
    query: jax.Array, key: jax.Array, value: jax.Array, sides: jax.Array, bias: jax.Array, one_sided: bool
) -> jax.Array:
    """The same function without kernels, by all logits at once."""
    from lenmem.ops.geometric import geometric_attention_weights
    from lenmem.ops.stick_breaking import stick_breaking_weights

    position = jnp.arange(query.shape[-1])
    on_right = position > position[:, None]
    logits = jnp.einsum("rdi,rdj->rij", query, key) + bias
    logits += jnp.where(on_right, sides[:, 1, :, None], sides[:, 0, :, None])
    weights = (
        stick_breaking_weights(logits, position < position[:, None])
        if one_sided
        else geometric_attention_weights(logits)
    )
    return jnp.einsum("rij,rvj->rvi", weights, value)
