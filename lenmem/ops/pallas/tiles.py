"""Arithmetic on a block [TILE, TILE] of targets and keys in a kernel of `lenmem.ops.pallas.outward`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

TILE = 128
"""Targets of a program and keys of a block: the lanes of a vector register."""
UNROLL = 7
"""Loops of at most so many steps are unrolled, so that steps overlap."""
INNER, OUTER, SUMS = ((1,), (0,)), ((1,), (1,)), ((0,), (0,))
"""Contractions of two matrices: a plain product, one over the columns of both, and one over the rows of both."""


def mirrored(band: Any, tile: Any, block: Any, seen: tuple) -> jax.Array:
    """For key j of a block, the entry of the band at the position 2 i - j."""
    row, column = positions()
    middle, half = 2 * tile - block, TILE // 2

    def block_at(block: Any, rows: slice) -> jax.Array:
        return band[jnp.clip(block, seen[0] - 1, seen[1]) + 1, rows, :]

    # In block coordinates the image of column w is 2 i - w: in the upper half it is below TILE, in the lower above 0.
    upper, lower = slice(0, half), slice(half, TILE)
    wraps = column > ((2 * row) & (TILE - 1))
    upper = jnp.where(wraps[upper], block_at(middle - 1, upper), block_at(middle, upper))
    lower = jnp.where(wraps[lower], block_at(middle, lower), block_at(middle + 1, lower))
    return permuted(jnp.concatenate([upper, lower]), (2 * row - column) & (TILE - 1))


def lane(array: jax.Array, number: Any) -> jax.Array:
    """The column with this number in place of every column."""
    return permuted(array, jnp.full((TILE, TILE), number, jnp.int32))


def permuted(array: jax.Array, columns: jax.Array) -> jax.Array:
    """Entry (i, c_ij) of the array at (i, j)."""
    return jnp.take_along_axis(array, columns, axis=1, mode="promise_in_bounds")


def positions(rows: int = TILE) -> tuple[jax.Array, jax.Array]:
    """The number of the row, and of the column, of every entry [rows, TILE]."""
    shape = (rows, TILE)
    return jax.lax.broadcasted_iota(jnp.int32, shape, 0), jax.lax.broadcasted_iota(jnp.int32, shape, 1)


def columns(block: Any) -> Any:
    """The positions of a block of keys."""
    return pl.ds(pl.multiple_of(block * TILE, TILE), TILE)


def running(terms: jax.Array, order: jax.Array) -> jax.Array:
    """terms @ order in float32: an order is 0 or 1, and a float32 is the sum of three bfloat16."""
    total = jnp.zeros_like(terms)
    for part in parts(terms, 3):
        total += jnp.dot(part, order, preferred_element_type=jnp.float32)
    return total


def parts(array: jax.Array, count: int) -> Iterator[jax.Array]:
    """Arrays of bfloat16 whose sum it is: to 2^-16 for two, exactly for three."""
    for _ in range(count):
        part = array.astype(jnp.bfloat16)
        yield part
        array = array - part.astype(jnp.float32)


def product(left: jax.Array, right: jax.Array, contraction: tuple, exact: bool) -> jax.Array:
    """The product of two matrices, in float32, with factors that are rounded to bfloat16 unless it is `exact`."""
    kind = jnp.float32 if exact else jnp.bfloat16
    left, right = left.astype(kind), right.astype(kind)
    precision = jax.lax.Precision.HIGHEST if exact else None
    return jax.lax.dot_general(
        left, right, (contraction, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), with what 1 + e^-|x| loses."""
    small = jnp.exp(-jnp.abs(x))
    near_one = 1.0 + small
    return jnp.maximum(x, 0.0) + (jnp.log(near_one) + (small - (near_one - 1.0)))


def loop(start: Any, stop: Any, body: Callable[[Any], None]) -> Iterator[None]:
    """The body for every step, with a pause after each one if they are unrolled."""
    if isinstance(start, int) and isinstance(stop, int) and stop - start <= UNROLL:
        for step in range(start, stop):
            body(step)
            yield
    else:
        jax.lax.fori_loop(start, stop, lambda step, _: body(step), None)
        yield
