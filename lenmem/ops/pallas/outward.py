"""Kernels for TPUs of attention that looks outward from every target: geometric, and one-sided (stick-breaking).

A program has one tile of TILE targets i of one sequence. It forms logits x for TILE keys j at a time. With losses
l = softplus(x) = -log(1 - P), a weight of geometric attention is

    A_ij = exp(x_ij - l_ij - own_ij - cross_ij)

where `own` is the sum of l over the closer keys on the side of j, and `cross` the sum over those on the other side:

* `own` is a running sum along the row, away from the target: in a block a product with a triangular matrix, to which
  the sum over the blocks before it is added.
* `cross` is the running sum of the other side at the mirror image 2 i - j. The mirror image of a row of a block lies in
  the same row of two neighbouring blocks, in the opposite order: a choice between the two, and a permutation of lanes.
  A key on the right comes before the one on the left at the same distance, so that a running sum, as the other side
  sees it, includes its own place on the right and excludes it on the left.

Each block of logits is formed once, and only these sums are moved. They and x - l - own are kept for the rows of the
tile, 2 TILE (N + 2 TILE) numbers of VMEM. The gradient is, with g = dL/d result,

    s_ij = A_ij g_i . v_j,      dL/dx_ij = s_ij - P_ij (s_ij + the sum of s over all keys farther than j)

The backward pass forms A anew and takes these sums in the same way, from the farthest key inward, with 4 such arrays.
No sum is taken as a difference of others.

Arrays have positions last, [R, width, N], which is how XLA lays out narrow ones; TILE divides N.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TILE = 128
"""Targets of a program and keys of a block: the lanes of a vector register."""
UNROLL = 7
"""Loops of at most so many steps are unrolled, so that steps overlap."""
VMEM = 100 * 2**20
"""Bytes of VMEM that a program may use; a v5e has 128 MiB."""

LEFT, RIGHT = 0, 1
_ROWS, _INNER, _OUTER = ((0,), (0,)), ((1,), (0,)), ((1,), (1,))
"""Contractions of two matrices: over the rows of both, a plain product, over the columns of both."""


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sides: jax.Array,
    bias: jax.Array,
    tolerance: jax.Array | None,
    *,
    one_sided: bool,
    interpret: bool,
) -> jax.Array:
    """sum_j A_ij v_j: [R, d_v, N], for queries and keys [R, d, N], values [R, d_v, N], all float32.

    x_ij = q_i . k_j + sides_0i + bias_j for keys on the left, with sides_1i for those on the right; `sides` [R, 2, N].
    A bias [R, 1, N] of -inf hides a key. `one_sided`: only keys on the left. With a `tolerance` [1], a tile looks at
    further blocks, on both sides at once, until all but half of it is matched.
    """
    inputs = [(query, True), (key, False), (value, False), (sides, True), (bias, False)]
    kernel = functools.partial(_forward_kernel, exact=_exact(interpret), one_sided=one_sided)
    return _run(kernel, inputs, [(value, True)], tolerance, _bands(query, 2), one_sided, interpret)[0]


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sides: jax.Array,
    bias: jax.Array,
    tolerance: jax.Array | None,
    cotangent: jax.Array,
    *,
    one_sided: bool,
    interpret: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients to query, key, value and sides, from that to the result."""
    inputs = [(query, True), (key, False), (value, False), (sides, True), (bias, False), (cotangent, True)]
    results = [(query, True), (key, False), (value, False), (sides, True)]
    kernel = functools.partial(_backward_kernel, exact=_exact(interpret), one_sided=one_sided)
    scratch = [*_bands(query, 4), pltpu.VMEM((2, TILE, TILE), jnp.float32)]
    return _run(kernel, inputs, results, tolerance, scratch, one_sided, interpret)


def bytes_needed(length: int, width: int, value_width: int) -> int:
    """VMEM of the backward kernel for N = length: bands of blocks, and keys, values and gradients, each twice."""
    length += -length % TILE
    return 4 * (4 * TILE * (length + 2 * TILE) + 4 * length * (width + value_width)) + 2**22


def _exact(interpret: bool) -> bool:
    """Whether products of float32 are to be exact; by default a TPU rounds their factors to bfloat16."""
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    return interpret or precision not in (None, "default", "fastest", "bfloat16")


def _bands(query: jax.Array, count: int) -> list[Any]:
    """The scratch memory of a kernel: `carry`, `shift` and `order`, and so many bands."""
    tiles = [pltpu.VMEM((2, TILE, TILE), kind) for kind in (jnp.float32, jnp.float32, jnp.bfloat16)]
    return [*tiles, *[pltpu.VMEM((query.shape[-1] // TILE + 2, TILE, TILE), jnp.float32)] * count]


def _run(
    kernel: Callable[..., Iterator[None]],
    inputs: list[tuple[jax.Array, bool]],
    results: list[tuple[jax.Array, bool]],
    tolerance: jax.Array | None,
    scratch: list[Any],
    one_sided: bool,
    interpret: bool,
) -> Any:
    """Runs a kernel for every tile. With an array: whether a program gets its tile of it, or all positions.

    A program has one sequence, or two if there are few blocks: then their steps alternate, and one computes while the
    other waits for its results.
    """
    rows, _, length = inputs[0][0].shape
    blocks = length // TILE
    together = 2 if blocks <= UNROLL + 1 and rows % 2 == 0 and not one_sided and tolerance is None else 1
    limits = () if tolerance is None else (tolerance,)

    def spec(array: jax.Array, tiled: bool) -> pl.BlockSpec:
        size = TILE if tiled else length
        return pl.BlockSpec((together, array.shape[1], size), lambda row, tile: (row, 0, tile if tiled else 0))

    def program(*refs: Any) -> None:
        limit, refs = refs[: len(limits)], refs[len(limits) :]
        split = len(refs) - together * len(scratch)
        sequences = []
        for row in range(together):
            own = refs[split + row * len(scratch) :][: len(scratch)]
            arrays = [ref.at[row] for ref in refs[:split]]
            sequences.append(kernel(limit[0] if limit else None, *arrays, *own, blocks=blocks))
        for _ in zip(*sequences, strict=True):
            pass

    return pl.pallas_call(
        program,
        out_shape=[jax.ShapeDtypeStruct(array.shape, jnp.float32) for array, _ in results],
        grid=(rows // together, blocks),
        in_specs=[*[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(limits), *[spec(*x) for x in inputs]],
        out_specs=[spec(*x) for x in results],
        scratch_shapes=scratch * together,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM),
        interpret=interpret,
    )(*limits, *[array for array, _ in inputs])


# Kernels --------------------------------------------------------------------------------------------------------------
# carry, shift, order: [2, TILE, TILE], for the left and the right side: the sum of the blocks before, the side's part
# of the logits, and the triangular matrix of running sums. A band [N / TILE + 2, TILE, TILE] has one more block at
# either end.


def _forward_kernel(
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
    tile = pl.program_id(1)
    seen = yield from _look(
        tolerance, query, key, sides, bias, carry, shift, order, logs, sums, None, blocks, exact, one_sided
    )
    result[...] = jnp.zeros_like(result)

    def read(block: Any) -> None:
        weights = _weights(logs, sums, tile, block, seen, one_sided)
        result[...] += _product(value[:, _columns(block)], weights, _OUTER, exact)

    yield from _loop(*seen, read)


def _backward_kernel(
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
    tile = pl.program_id(1)
    seen = yield from _look(
        tolerance, query, key, sides, bias, carry, shift, order, logs, sums, matches, blocks, exact, one_sided
    )
    row, column = _positions()

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
        of_value[:, _columns(block)] += _product(cotangent[...], weights, _INNER, exact)
        logs[block + 1] = share = weights * _product(pull, value[:, _columns(block)], _INNER, exact)
        return share

    def inward(block: Any, side: Any) -> None:
        share = shares(block)
        beyond = carry[side] + _running(share, order[1 - side])
        after[block + 1] = jnp.where(side == RIGHT, beyond, beyond + share)
        carry[side] = _lane(beyond + share, jnp.where(side == RIGHT, 0, TILE - 1))

    low, high = seen
    yield from _loop(
        0, high - 1 - low, lambda step: _visit(inward, tile, seen, step, outward=False, one_sided=one_sided)
    )
    share = shares(tile)
    on_right = column > row
    beyond_left = carry[LEFT] + _running(jnp.where(on_right, 0.0, share), order[RIGHT])
    after[tile + 1] = beyond_left + share
    if not one_sided:
        beyond_right = carry[RIGHT] + _running(jnp.where(on_right, share, 0.0), order[LEFT])
        after[tile + 1] = jnp.where(on_right, beyond_right, beyond_left + share)
    after[low] = after[high + 1] = jnp.zeros((TILE, TILE), jnp.float32)

    def gradients(block: Any) -> None:
        share = logs[block + 1]
        onward = after[block + 1]
        right = column + (block - tile) * TILE > row
        if not one_sided:
            onward = onward + jnp.where(right, share, 0.0) + _mirrored(after, tile, block, seen)
        of_logits = share - matches[block + 1] * onward
        of_query[...] += _product(key[:, _columns(block)], of_logits, _OUTER, exact)
        of_key[:, _columns(block)] += _product(query[...], of_logits, _INNER, exact)
        if one_sided:
            side_sums[LEFT] += of_logits
        else:
            side_sums[RIGHT] += jnp.where(right, of_logits, 0.0)
            side_sums[LEFT] += jnp.where(right, 0.0, of_logits)

    yield from _loop(low, high, gradients)
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
    row, column = _positions()
    on_right = column > row
    order[RIGHT] = (row < column).astype(jnp.bfloat16)
    order[LEFT] = (row > column).astype(jnp.bfloat16)
    for side in (LEFT, RIGHT):
        shift[side] = jnp.broadcast_to(sides[side : side + 1], (TILE, TILE)).T
    towards = query[...].T

    def logits(block: Any, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = _product(towards, key[:, _columns(block)], _INNER, exact) + shift + bias[:, _columns(block)]
        return x, _softplus(x)

    def keep(block: Any, x: jax.Array, loss: jax.Array, own: jax.Array) -> None:
        logs[block + 1] = (x - loss) - own
        if matches is not None:
            matches[block + 1] = jnp.exp(x - loss)

    def outward(block: Any, side: Any) -> None:
        x, loss = logits(block, shift[side])
        own = carry[side] + _running(loss, order[side])
        keep(block, x, loss, own)
        if not one_sided:
            sums[block + 1] = jnp.where(side == RIGHT, own + loss, own)
        carry[side] = _lane(own + loss, jnp.where(side == RIGHT, TILE - 1, 0))

    hidden = row <= column if one_sided else row == column
    x, _ = logits(tile, shift[LEFT] if one_sided else jnp.where(on_right, shift[RIGHT], shift[LEFT]))
    x = jnp.where(hidden, -jnp.inf, x)
    loss = _softplus(x)
    left = jnp.where(on_right, 0.0, loss)
    own = _running(left, order[LEFT])
    carry[LEFT] = _lane(own + left, 0)
    if not one_sided:
        own_right = _running(loss - left, order[RIGHT])
        carry[RIGHT] = _lane(own_right + (loss - left), TILE - 1)
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
        yield from _loop(
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
    row, column = _positions()
    real = (row == column) & (bias[:, _columns(tile)] == 0)

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
    return jnp.exp(log if one_sided else log - _mirrored(sums, tile, block, seen))


def _mirrored(band: Any, tile: Any, block: Any, seen: tuple) -> jax.Array:
    """For key j of a block, the entry of the band at the position 2 i - j."""
    row, column = _positions()
    middle, half = 2 * tile - block, TILE // 2

    def block_at(block: Any, rows: slice) -> jax.Array:
        return band[jnp.clip(block, seen[0] - 1, seen[1]) + 1, rows, :]

    # In block coordinates the image of column w is 2 i - w: in the upper half it is below TILE, in the lower above 0.
    upper, lower = slice(0, half), slice(half, TILE)
    wraps = column > ((2 * row) & (TILE - 1))
    upper = jnp.where(wraps[upper], block_at(middle - 1, upper), block_at(middle, upper))
    lower = jnp.where(wraps[lower], block_at(middle, lower), block_at(middle + 1, lower))
    return _permuted(jnp.concatenate([upper, lower]), (2 * row - column) & (TILE - 1))


def _lane(array: jax.Array, lane: Any) -> jax.Array:
    """A column for all columns."""
    return _permuted(array, jnp.full((TILE, TILE), lane, jnp.int32))


def _permuted(array: jax.Array, columns: jax.Array) -> jax.Array:
    return jnp.take_along_axis(array, columns, axis=1, mode="promise_in_bounds")


def _positions() -> tuple[jax.Array, jax.Array]:
    shape = (TILE, TILE)
    return jax.lax.broadcasted_iota(jnp.int32, shape, 0), jax.lax.broadcasted_iota(jnp.int32, shape, 1)


def _columns(block: Any) -> Any:
    return pl.ds(pl.multiple_of(block * TILE, TILE), TILE)


def _running(terms: jax.Array, order: jax.Array) -> jax.Array:
    """terms @ order in float32: an order is 0 or 1, and a float32 is the sum of three bfloat16."""
    total = jnp.zeros_like(terms)
    for _ in range(3):
        part = terms.astype(jnp.bfloat16)
        total += jnp.dot(part, order, preferred_element_type=jnp.float32)
        terms = terms - part.astype(jnp.float32)
    return total


def _product(left: jax.Array, right: jax.Array, contraction: tuple, exact: bool) -> jax.Array:
    if not exact:
        left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    precision = jax.lax.Precision.HIGHEST if exact else None
    return jax.lax.dot_general(
        left, right, (contraction, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), with what 1 + e^-|x| loses."""
    small = jnp.exp(-jnp.abs(x))
    near_one = 1.0 + small
    return jnp.maximum(x, 0.0) + (jnp.log(near_one) + (small - (near_one - 1.0)))


def _loop(start: Any, stop: Any, body: Callable[[Any], None]) -> Iterator[None]:
    """The body for every step, with a pause after each one if they are unrolled."""
    if isinstance(start, int) and isinstance(stop, int) and stop - start <= UNROLL:
        for step in range(start, stop):
            body(step)
            yield
    else:
        jax.lax.fori_loop(start, stop, lambda step, _: body(step), None)
        yield
