"""Geometric attention within a tolerance: keys are processed outward from the target, until the rest can be ignored.

Targets are cut into tiles [..., N / b, b, ...] and pairs of keys at the same distance into blocks of b. For the targets
of a tile, the keys of a block lie in two neighbouring tiles of shifted keys on the left, and in two on the right. The
bounds of the error are in `lenmem.ops.geometric_attention`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lenmem.ops.chunks import result_type, sum_type, varying_like
from lenmem.ops.gradients import with_gradient
from lenmem.ops.outward import (
    Scalar,
    in_tiles,
    or_default,
    running_sums,
    to_absolute,
    to_relative,
    whole_runs,
)


def within_horizon(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    direction: jax.Array | None,
    scale: Scalar | None,
    offset: Scalar,
    key_mask: jax.Array | None,
    size: int,
    tolerance: Scalar,
) -> jax.Array:
    """`geometric_attention` within a tolerance, in blocks of `size` distances."""
    length = query.shape[-2]
    wide = sum_type(query, key, value)
    sides = (jnp.zeros((length, 2), wide) if direction is None else direction.astype(wide)) + offset
    real = jnp.ones((length, 1), bool) if key_mask is None else key_mask[..., None]
    arrays = query.astype(wide) * or_default(scale, query), sides, key.astype(wide), value.astype(wide), real
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    queries, sides, *of_keys = (jnp.broadcast_to(x, leading + x.shape[-2:]) for x in arrays)
    size = whole_runs(min(size, length))
    queries, sides = in_tiles(queries, size), in_tiles(sides, size)
    # Pad both ends with enough zeros that every shift stays inside the array.
    tiled = length + -length % size
    around = [(0, 0)] * len(leading) + [(tiled, 2 * tiled - length + 1), (0, 0)]
    read = _horizon(queries, sides, *(jnp.pad(x, around) for x in of_keys), jnp.asarray(tolerance, wide))
    return read.reshape(*leading, tiled, value.shape[-1])[..., :length, :].astype(result_type(value))


def _horizon_forward(
    queries: jax.Array, sides: jax.Array, key: jax.Array, value: jax.Array, real: jax.Array, tolerance: jax.Array
) -> tuple[jax.Array, tuple]:
    """[..., N / b, b, d], [..., N / b, b, 2], keys, values, mask [..., 3 N + 1, *] -> [..., N / b, b, d_v]."""
    count, size = queries.shape[-3:-1]
    targets = real[..., count * size : 2 * count * size, 0].reshape(queries.shape[:-1])

    def unfinished(state: tuple) -> jax.Array:
        block, lost, *_ = state
        return (block < count) & jnp.any(targets & (jnp.exp(-lost) > tolerance))

    def look(state: tuple) -> tuple:
        block, lost, before, read = state
        before = before.at[block].set(lost)
        left, right = _pair_logits(queries, sides, key, real, block)
        left, right, lost = _pair_weights(left, right, lost)
        return block + 1, lost, before, read + _pair_read(left, right, value, block)

    read = jnp.zeros((*queries.shape[:-1], value.shape[-1]), value.dtype)
    lost = jnp.zeros_like(read[..., 0])
    before = jnp.zeros((count, *lost.shape), lost.dtype)
    first = varying_like((jnp.zeros((), jnp.int32), lost, before, read), queries, sides, key, value, real)
    blocks, _, before, read = jax.lax.while_loop(unfinished, look, first)
    return read, (queries, sides, key, value, real, before, blocks)


def _horizon_backward(kept: tuple, cotangent: jax.Array) -> tuple:
    """Recomputes the blocks, from the last one that was processed inward."""
    queries, sides, key, value, real, before, blocks = kept

    def look(state: tuple) -> tuple:
        block, farther, gradients = state
        block = block - 1
        logits, from_logits = jax.vjp(lambda *x: _pair_logits(x[0], x[1], x[2], real, block), queries, sides, key)
        left, right, _ = _pair_weights(*logits, before[block])
        _, from_read = jax.vjp(lambda *x: _pair_read(x[0], x[1], x[2], block), left, right, value)
        of_left, of_right, of_value = from_read(cotangent)
        left, right = of_left * left, of_right * right
        onward = right + running_sums(left + right, reverse=True) + farther[..., None]
        of_left = left - jax.nn.sigmoid(logits[0]) * (left + onward)
        of_right = right - jax.nn.sigmoid(logits[1]) * onward
        of_logits = from_logits((of_left, of_right))
        gradients = jax.tree.map(jnp.add, gradients, (*of_logits, of_value))
        return block, farther + jnp.sum(left + right, axis=-1), gradients

    start = blocks, jnp.zeros_like(before[0]), jax.tree.map(jnp.zeros_like, (queries, sides, key, value))
    *_, gradients = jax.lax.while_loop(lambda state: state[0] > 0, look, start)
    return *gradients, None, None


_horizon = with_gradient(_horizon_forward, _horizon_backward)


def _pair_logits(
    queries: jax.Array, sides: jax.Array, key: jax.Array, real: jax.Array, block: Any
) -> tuple[jax.Array, jax.Array]:
    """Logits (left, right) [..., N / b, b, b] of the b pairs of a block, -inf where there is no key."""
    size = queries.shape[-2]
    halves = []
    for side, shift in enumerate(_shifts(block, size)):
        logits = jnp.einsum("...id,...jd->...ij", queries, _neighbours(key, shift, queries))
        logits = logits + sides[..., side, None]
        seen = jnp.swapaxes(_neighbours(real, shift, queries), -1, -2)
        halves.append(to_relative(jnp.where(seen, logits, -jnp.inf), size))
    left, right = halves
    targets = block * size + jnp.arange(size) == 0
    return jnp.where(targets, -jnp.inf, jnp.flip(left, axis=-1)), right


def _pair_weights(left: jax.Array, right: jax.Array, lost: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The weights for these logits, and -log of the probability of no match so far; before them this was `lost`."""
    of_left, of_right = jax.nn.softplus(left), jax.nn.softplus(right)
    of_pairs = of_left + of_right
    before = lost[..., None] + running_sums(of_pairs)
    left, right = jnp.exp(left - of_left - before), jnp.exp(right - of_right - (before + of_left))
    return left, right, lost + jnp.sum(of_pairs, axis=-1)


def _pair_read(left: jax.Array, right: jax.Array, value: jax.Array, block: Any) -> jax.Array:
    """The values read with these weights: [..., N / b, b, d_v]."""
    size = left.shape[-1]
    read = jnp.zeros((), value.dtype)
    for weights, shift in zip((jnp.flip(left, axis=-1), right), _shifts(block, size), strict=True):
        weights = to_absolute(weights, 2 * size)
        read = read + jnp.einsum("...ij,...jv->...iv", weights, _neighbours(value, shift, left))
    return read


def _shifts(block: Any, size: int) -> tuple[Any, Any]:
    """Offset from the target to the leftmost key of a block, for its left pairs and for its right pairs."""
    return 1 - (block + 1) * size, block * size + 1


def _neighbours(array: jax.Array, shift: Any, tiles: jax.Array) -> jax.Array:
    """[..., 3 N + 1, d] -> [..., N / b, 2 b, d]: for each tile, the 2 b positions from its first one plus `shift`."""
    count, size = tiles.shape[-3:-1]
    length = count * size
    shifted = in_tiles(jax.lax.dynamic_slice_in_dim(array, length + shift, length + size, axis=-2), size)
    return jnp.concatenate([shifted[..., :-1, :, :], shifted[..., 1:, :, :]], axis=-2)
