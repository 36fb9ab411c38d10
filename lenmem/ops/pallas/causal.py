"""A kernel for TPUs of causal linear attention: reads of a sum of outer products that grows along the sequence.

    r_i = (M_0 + sum_{s <= i} v_s k_s^T) q_i

A sequence passes in chunks, while M stays in VMEM. With the rows of a chunk in Q, K and V, a program computes

    R = tril(Q K^T) V + Q M^T,      M' = M + V^T K

Nothing but the reads and the final M is written. The gradient consists of three sums of the same kind, two of them from
the end of the sequence to its start, so this kernel also computes it: with g_i = dL/dr_i and N = dL/dM_S,

    dL/dq_i = (M_0^T + sum_{s <= i} k_s v_s^T) g_i
    dL/dk_s = (N^T + sum_{i >= s} q_i g_i^T) v_s
    dL/dv_s = (N + sum_{i >= s} g_i q_i^T) k_s,      dL/dM_0 = N + sum_i g_i q_i^T

On a platform that is not a TPU the kernel is interpreted, which is slow and serves tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from lenmem.ops.chunks import varying_like
from lenmem.ops.gradients import with_gradient
from lenmem.ops.linear_recurrence import linear_recurrence
from lenmem.ops.pallas.calls import by_rows, exact, like, of_rows, with_tangents_of
from lenmem.ops.pallas.tiles import INNER, OUTER, product
from lenmem.placement import platform, spread

CHUNK = 256
"""Positions of a program."""
ROWS = 16
"""Positions of a chunk are a multiple of this, as the tiles of bfloat16 are."""
WIDEST = 1024
"""Widths up to this fit into VMEM."""
SUMS = ((0,), (0,))
"""The contraction over the rows of both matrices."""


def fits(keys: jax.Array, values: jax.Array) -> bool:
    """Whether the kernel takes these dtypes and widths."""
    widest = max(keys.shape[-1], values.shape[-1])
    return widest <= WIDEST and jnp.result_type(jnp.float32, keys, values) == jnp.float32


def reads(
    queries: jax.Array, keys: jax.Array, values: jax.Array, initial: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """(r [..., S, d_v], M after the last position [..., d_v, d_k]) in float32.

    Queries and keys [..., S, d_k], values [..., S, d_v], M_0 `initial` [..., d_v, d_k], default zero. O(S d) memory.
    Forward-mode and second derivatives are those of the form for XLA. ValueError for other dtypes, and widths above
    WIDEST.
    """
    length, widths = keys.shape[-2], (values.shape[-1], keys.shape[-1])
    if not fits(keys, values):
        raise ValueError(
            f"the kernel takes float32 or bfloat16 with widths of up to {WIDEST}, not {jnp.result_type(keys, values)} "
            f"with widths {widths[1]} and {widths[0]}: use implementation='xla'"
        )
    initial = jnp.zeros(widths) if initial is None else initial.astype(jnp.float32)
    arrays = (queries, keys, values, initial)
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    size = min(CHUNK, max(ROWS, length + -length % ROWS))
    whole = max(size, length + -length % size)
    rows = [*(by_rows(x, leading, whole) for x in arrays[:3]), by_rows(initial, leading, widths[0])]
    read, memory = _reads(size, platform() != "tpu", spread())(*rows)
    return read.reshape(*leading, whole, widths[0])[..., :length, :], memory.reshape(*leading, *widths)


@functools.cache
def _reads(size: int, interpret: bool, over: tuple[Mesh, str] | None) -> Callable[..., Any]:
    """The function of (queries, keys, values, M_0) by rows, with its gradient."""

    def along(reverse: bool) -> Callable[..., Any]:
        kernel = functools.partial(_run, size=size, reverse=reverse, interpret=interpret)
        return with_tangents_of(functools.partial(_plain, reverse=reverse), of_rows(kernel, 4, over))

    ahead, back = along(reverse=False), along(reverse=True)

    def pull(kept: tuple, cotangents: tuple) -> tuple:
        (queries, keys, values, initial), (d_reads, d_memory) = kept, cotangents
        d_queries, _ = ahead(d_reads, values, keys, jnp.swapaxes(initial, 1, 2))
        d_keys, _ = back(values, d_reads, queries, jnp.swapaxes(d_memory, 1, 2))
        d_values, d_initial = back(keys, queries, d_reads, d_memory)
        gradients = (d_queries, d_keys, d_values, d_initial)
        return tuple(gradient.astype(array.dtype) for gradient, array in zip(gradients, kept, strict=True))

    return with_gradient(lambda *arrays: (ahead(*arrays), arrays), pull)


def _run(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    initial: jax.Array,
    *,
    size: int,
    reverse: bool,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """The reads of rows [R, S, d], S a multiple of `size`. `reverse`: of the sums over s >= i."""
    queries, keys, values, initial = varying_like((queries, keys, values, initial))
    rows, length, _ = keys.shape
    chunks = length // size

    def chunk_of(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(
            (1, size, array.shape[-1]), lambda row, step: (row, chunks - 1 - step if reverse else step, 0)
        )

    whole = pl.BlockSpec((1, *initial.shape[1:]), lambda row, _: (row, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel, exact=exact(interpret), reverse=reverse),
        out_shape=(like(values, keys), like(initial, keys)),
        grid=(rows, chunks),
        in_specs=[chunk_of(queries), chunk_of(keys), chunk_of(values), whole],
        out_specs=(chunk_of(values), whole),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(queries, keys, values, initial)


def _kernel(
    queries: Any, keys: Any, values: Any, initial: Any, read: Any, memory: Any, *, exact: bool, reverse: bool
) -> None:
    """One chunk. The block of `memory` is that of the sequence, so it stays in VMEM from chunk to chunk."""

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        memory[0] = initial[0]

    q, k, v = queries[0], keys[0], values[0]
    scores = product(q, k, OUTER, exact)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    scores = jnp.where(row <= column if reverse else row >= column, scores, 0)
    read[0] = product(scores, v, INNER, exact) + product(q, memory[0], OUTER, exact)
    memory[0] += product(v, k, SUMS, exact)


def _plain(
    queries: jax.Array, keys: jax.Array, values: jax.Array, initial: jax.Array, *, reverse: bool
) -> tuple[jax.Array, jax.Array]:
    """The same function without a kernel."""
    arrays = [x.astype(jnp.float32) for x in (queries, keys, values)]
    queries, keys, values = (jnp.flip(x, 1) for x in arrays) if reverse else arrays
    memory, read = linear_recurrence(queries, keys, values, jnp.ones(keys.shape[:-1]), initial=initial)
    return jnp.flip(read, 1) if reverse else read, memory
