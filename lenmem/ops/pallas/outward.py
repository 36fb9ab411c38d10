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
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from lenmem.ops.chunks import varying_like
from lenmem.ops.pallas.calls import exact, output, run
from lenmem.ops.pallas.kernels import backward_kernel, forward_kernel
from lenmem.ops.pallas.tiles import (
    TILE,
    UNROLL,
)
from lenmem.placement import device_kind, platform

VMEM = {"TPU v5 lite": 100, "TPU v5e": 100, "TPU v6": 100, "TPU v5": 50, "TPU7": 50}
"""MiB of VMEM that a program may use, by the beginning of the device's kind. The chips have 128 or 64."""
LEAST_VMEM = 12
"""The same of other chips; a v4 has 16 MiB."""


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
    kernel = functools.partial(forward_kernel, exact=exact(interpret), one_sided=one_sided)
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
    kernel = functools.partial(backward_kernel, exact=exact(interpret), one_sided=one_sided)
    scratch = [*_bands(query, 4), pltpu.VMEM((2, TILE, TILE), jnp.float32)]
    return _run(kernel, inputs, results, tolerance, scratch, one_sided, interpret)


def vmem() -> int:
    """Bytes of VMEM that a program may use: on an unknown kind of TPU those of a v5e."""
    kind = device_kind() if platform() == "tpu" else None
    found = [size for name, size in VMEM.items() if (kind or "TPU v5e").startswith(name)]
    return (found[0] if found else LEAST_VMEM) * 2**20


def bytes_needed(length: int, width: int, value_width: int) -> int:
    """VMEM of the backward kernel for N = length: bands of blocks, and keys, values and gradients, each twice."""
    length += -length % TILE
    return 4 * (4 * TILE * (length + 2 * TILE) + 4 * length * (width + value_width)) + 2**22


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

    A program has one sequence, or two if there are few blocks and both fit: then their steps alternate, and one
    computes while the other waits for its results.
    """
    arrays = varying_like([array for array, _ in inputs])
    (query, *_), value = arrays, arrays[2]
    rows, _, length = query.shape
    blocks = length // TILE
    paired = blocks <= UNROLL + 1 and rows % 2 == 0 and not one_sided and tolerance is None
    together = 2 if paired and 2 * bytes_needed(length, query.shape[1], value.shape[1]) <= vmem() else 1
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
            of_row = [ref.at[row] for ref in refs[:split]]
            sequences.append(kernel(limit[0] if limit else None, *of_row, *own, blocks=blocks))
        for _ in zip(*sequences, strict=True):
            pass

    return run(
        program,
        (*limits, *arrays),
        out_shape=[output(array.shape, arrays[0]) for array, _ in results],
        grid=(rows // together, blocks),
        in_specs=[*[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(limits), *[spec(*x) for x in inputs]],
        out_specs=[spec(*x) for x in results],
        scratch_shapes=scratch * together,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem()),
        interpret=interpret,
    )
