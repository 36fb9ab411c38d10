"""The kernels of `lenmem.ops.pallas.outward`: what a program does with its tile of targets.

`carry`, `shift` and `order` are [2, TILE, TILE], for the left and the right side: the sum of the blocks before, the
side's part of the logits, and the triangular matrix of running sums. A band [N / TILE + 2, TILE, TILE] has one more
block at either end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from lenmem.ops.pallas.tiles import (
    INNER,
    OUTER,
    TILE,
    columns,
    lane,
    loop,
    mirrored,
    positions,
    product,
    running,
    softplus,
)

LEFT, RIGHT = 0, 1


def forward_kernel(
    tolerance: Any,
    query: Any,
    key: Any,
    value: Any,
    sides: Any,
    bias: Any,
    result: Any,
    carry: Any,
    shift: Any,
    order: Any,
    logs: Any,
    sums: Any,
    *,
    blocks: int,
    exact: bool,
    one_sided: bool,
) -> Iterator[None]:
    """Writes the result of a tile: sum_j A_ij v_j."""
    tile = pl.program_id(1)
    seen = yield from _look(
        tolerance, query, key, sides, bias, carry, shift, order, logs, sums, None, blocks, exact, one_sided
    )
    result[...] = jnp.zeros_like(result)

    def read(block: Any) -> None:
        weights = _weights(logs, sums, tile, block, seen, one_sided)
        result[...] += product(value[:, columns(block)], weights, OUTER, exact)

    yield from loop(*seen, read)


def backward_kernel(
    tolerance: Any,
    query: Any,
    key: Any,
    value: Any,
    sides: Any,
    bias: Any,
    cotangent: Any,
    of_query: Any,
    of_key: Any,
    of_value: Any,
    of_sides: Any,
    carry: Any,
    shift: Any,
    order: Any,
    logs: Any,
    sums: Any,
    matches: Any,
    after: Any,
    side_sums: Any,
    *,
    blocks: int,
    exact: bool,
    one_sided: bool,
) -> Iterator[None]:
    """Writes the gradients of a tile, and adds to those of keys and values, which the tiles of a sequence share."""
    tile = pl.program_id(1)
    seen = yield from _look(
        tolerance, query, key, sides, bias, carry, shift, order, logs, sums, matches, blocks, exact, one_sided
    )
    row, column = positions()

    @pl.when(tile == 0)
    def _() -> None:
        of_key[...] = jnp.zeros_like(of_key)
        of_value[...] = jnp.zeros_like(of_value)

    of_query[...] = jnp.zeros_like(of_query)
    side_sums[...] = jnp.zeros_like(side_sums)
    carry[...] = jnp.zeros_like(carry)
    pull = cotangent[...].T

    def shares(block: Any) -> jax.Array:
        weights = _weights(logs, sums, tile, block, seen, one_sided)
        of_value[:, columns(block)] += product(cotangent[...], weights, INNER, exact)
        logs[block + 1] = share = weights * product(pull, value[:, columns(block)], INNER, exact)
        return share

    def inward(block: Any, side: Any) -> None:
        share = shares(block)
        beyond = carry[side] + running(share, order[1 - side])
        after[block + 1] = jnp.where(side == RIGHT, beyond, beyond + share)
        carry[side] = lane(beyond + share, jnp.where(side == RIGHT, 0, TILE - 1))

    low, high = seen
    yield from loop(
        0, high - 1 - low, lambda step: _visit(inward, tile, seen, step, outward=False, one_sided=one_sided)
    )
    share = shares(tile)
    on_right = column > row
    beyond_left = carry[LEFT] + running(jnp.where(on_right, 0.0, share), order[RIGHT])
    after[tile + 1] = beyond_left + share
    if not one_sided:
        beyond_right = carry[RIGHT] + running(jnp.where(on_right, share, 0.0), order[LEFT])
        after[tile + 1] = jnp.where(on_right, beyond_right, beyond_left + share)
    after[low] = after[high + 1] = jnp.zeros((TILE, TILE), jnp.float32)

    def gradients(block: Any) -> None:
        share = logs[block + 1]
        onward = after[block + 1]
        right = column + (block - tile) * TILE > row
        if not one_sided:
            onward = onward + jnp.where(right, share, 0.0) + mirrored(after, tile, block, seen)
        of_logits = share - matches[block + 1] * onward
        of_query[...] += product(key[:, columns(block)], of_logits, OUTER, exact)
        of_key[:, columns(block)] += product(query[...], of_logits, INNER, exact)
        if one_sided:
            side_sums[LEFT] += of_logits
        else:
            side_sums[RIGHT] += jnp.where(right, of_logits, 0.0)
            side_sums[LEFT] += jnp.where(right, 0.0, of_logits)

    yield from loop(low, high, gradients)
    for side in (LEFT, RIGHT):
        of_sides[side : side + 1] = jnp.sum(side_sums[side].T, axis=0, keepdims=True)


def _look(
    tolerance: Any,
    query: Any,
    key: Any,
    sides: Any,
    bias: Any,
    carry: Any,
    shift: Any,
    order: Any,
    logs: Any,
    sums: Any,
    matches: Any,
    blocks: int,
    exact: bool,
    one_sided: bool,
) -> Generator[None, None, tuple[Any, Any]]:
    """Fill `logs` with x - l - own, `sums` with what the other side sees, `matches` with P; (first block, end) seen."""
    tile = pl.program_id(1)
    row, column = positions()
    on_right = column > row
    order[RIGHT] = (row < column).astype(jnp.bfloat16)
    order[LEFT] = (row > column).astype(jnp.bfloat16)
    for side in (LEFT, RIGHT):
        shift[side] = jnp.broadcast_to(sides[side : side + 1], (TILE, TILE)).T
    towards = query[...].T

    def logits(block: Any, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = product(towards, key[:, columns(block)], INNER, exact) + shift + bias[:, columns(block)]
        return x, softplus(x)

    def keep(block: Any, x: jax.Array, loss: jax.Array, own: jax.Array) -> None:
        logs[block + 1] = (x - loss) - own
        if matches is not None:
            matches[block + 1] = jnp.exp(x - loss)

    def outward(block: Any, side: Any) -> None:
        x, loss = logits(block, shift[side])
        own = carry[side] + running(loss, order[side])
        keep(block, x, loss, own)
        if not one_sided:
            sums[block + 1] = jnp.where(side == RIGHT, own + loss, own)
        carry[side] = lane(own + loss, jnp.where(side == RIGHT, TILE - 1, 0))

    hidden = row <= column if one_sided else row == column
    x, _ = logits(tile, shift[LEFT] if one_sided else jnp.where(on_right, shift[RIGHT], shift[LEFT]))
    x = jnp.where(hidden, -jnp.inf, x)
    loss = softplus(x)
    left = jnp.where(on_right, 0.0, loss)
    own = running(left, order[LEFT])
    carry[LEFT] = lane(own + left, 0)
    if not one_sided:
        own_right = running(loss - left, order[RIGHT])
        carry[RIGHT] = lane(own_right + (loss - left), TILE - 1)
        sums[tile + 1] = jnp.where(on_right, own_right + loss, own)
        own = jnp.where(on_right, own_right, own)
    keep(tile, x, loss, own)
    yield

    if one_sided:
        seen = 0, tile + 1
    elif tolerance is None:
        seen = 0, blocks
    else:
        seen = _until(tolerance, outward, bias, carry, tile, blocks)
    if tolerance is None:
        yield from loop(
            0, seen[1] - 1 - seen[0], lambda step: _visit(outward, tile, seen, step, outward=True, one_sided=one_sided)
        )
    if not one_sided:
        sums[seen[0]], sums[seen[1] + 1] = carry[LEFT], carry[RIGHT]
    return seen


def _until(tolerance: Any, outward: Callable, bias: Any, carry: Any, tile: Any, blocks: int) -> tuple[Any, Any]:
    """Look outward until the tolerance; the blocks seen.

    When blocks up to distance s are seen, every key of those up to s - 1 is closer than all that are not. If these
    leave at most half the tolerance, what is left out and the keys it would have kept from matching weigh no more.
    """
    row, column = positions()
    real = (row == column) & (bias[:, columns(tile)] == 0)

    def unmatched() -> jax.Array:
        return jnp.max(jnp.where(real, jnp.exp(-carry[LEFT] - carry[RIGHT]), 0.0))

    def look(state: tuple) -> tuple:
        step, _, left = state
        pl.when(tile + step < blocks)(lambda: outward(tile + step, RIGHT))
        pl.when(tile - step >= 0)(lambda: outward(tile - step, LEFT))
        return step + 1, left, unmatched()

    def unfinished(state: tuple) -> jax.Array:
        step, before, _ = state
        return (step <= jnp.maximum(tile, blocks - 1 - tile)) & (before > tolerance[0] / 2)

    step, *_ = jax.lax.while_loop(unfinished, look, (jnp.int32(1), jnp.float32(1), unmatched()))
    return jnp.maximum(tile - step + 1, 0), jnp.minimum(tile + step, blocks)


def _visit(look: Callable, tile: Any, seen: tuple, step: Any, *, outward: bool, one_sided: bool) -> None:
    """`look(block, side)` for the block of a step: those on the right one after another, then those on the left."""
    low, high = seen
    on_right = high - 1 - tile
    left = step if one_sided else step - on_right
    left = tile - 1 - left if outward else low + left
    if one_sided:
        look(left, LEFT)
    else:
        right = tile + 1 + step if outward else high - 1 - step
        look(jnp.where(step < on_right, right, left), jnp.where(step < on_right, RIGHT, LEFT))


def _weights(logs: Any, sums: Any, tile: Any, block: Any, seen: tuple, one_sided: bool) -> jax.Array:
    log = logs[block + 1]
    return jnp.exp(log if one_sided else log - mirrored(sums, tile, block, seen))
