"""Linear recurrences of a matrix-valued state: decay, erase, write, read; in parallel over chunks.

The networks of this family differ in which of these they do:

    linear attention, NAM without erasure     S_t = S_{t-1} + w v k^T
    mLSTM, Mamba-2                            S_t = a S_{t-1} + w v k^T
    DeltaNet, NAM with erasure                S_t = S_{t-1} (I - e k k^T) + w v k^T
    Gated DeltaNet                            S_t = a S_{t-1} (I - e k k^T) + w v k^T

with a state S in R^{d_v x d_k} that maps keys to values. The chunked form of the delta rule is its WY representation
(Bischof & Van Loan 1987; Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
2024, arXiv 2406.06484), with decay as in Yang et al., "Gated Delta Networks", 2024 (arXiv 2412.06464).

Shapes: keys and queries [..., S, d_k], values [..., S, d_v], strengths and decays [..., S]; any leading axes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lenmem.ops import pallas
from lenmem.ops.alone import compiled_alone
from lenmem.ops.chunks import (
    chunked,
    finite_logarithms,
    outer_products,
    read_all,
    result_type,
    sum_type,
    unchunked,
    varying_like,
)
from lenmem.ops.outward import sums_between
from lenmem.placement import platform

CHUNK = 32
"""Positions of a chunk, by default."""
SHORTEST = 128
"""From this length on, a TPU uses the kernel."""


def linear_recurrence_step(
    state: Float[Array, "... v k"],
    key: Float[Array, "... k"],
    value: Float[Array, "... v"],
    write: Float[Array, "..."],
    erase: Float[Array, "..."] | None = None,
    log_decay: Float[Array, "..."] | None = None,
) -> Float[Array, "... v k"]:
    """S' = a S (I - e k k^T) + w v k^T, with a = exp(`log_decay`): decay first, then erase, then write. O(d_v d_k)."""
    if log_decay is not None:
        state = jnp.exp(log_decay)[..., None, None] * state
    change = write[..., None] * value
    if erase is not None:
        change = change - erase[..., None] * jnp.einsum("...vk,...k->...v", state, key)
    return state + change[..., :, None] * key[..., None, :]


@compiled_alone
def linear_recurrence(
    queries: Float[Array, "... S k"],
    keys: Float[Array, "... S k"],
    values: Float[Array, "... S v"],
    write: Float[Array, "... S"],
    erase: Float[Array, "... S"] | None = None,
    log_decay: Float[Array, "... S"] | None = None,
    *,
    initial: Float[Array, "... v k"] | None = None,
    chunk_size: int | None = None,
    implementation: pallas.Implementation = "auto",
) -> tuple[Float[Array, "... v k"], Float[Array, "... S v"]]:
    """`linear_recurrence_step` at every step of a sequence, in parallel over chunks, with the reads r_t = S_t q_t.

    Returns (S after the last step, in float32; the reads, in the dtype of the values). Keys and queries are not
    normalised. With erasure, pass unit keys (`unit`), because the recurrence diverges for e |k|^2 > 2. A read includes
    the write of its own step. For padding, set strengths and `log_decay` to zero; a number holds at every step.
    `initial` is S_0, default zero. If `erase` is None, nothing is erased. `log_decay` must not be positive; None:
    a = 1.

    Within a chunk that starts from S, with A_t = a_1 .. a_t and G_ts = A_t / A_s, S_t = A_t S + sum_{s <= t} G_ts u_s
    k_s^T where u_t = w_t v_t - e_t (A_t S k_t + sum_{s < t} G_ts u_s (k_s . k_t)): a unit lower triangular system,

        (I + diag(e) tril(G * K K^T, -1)) U = diag(w) V - diag(e A) K S^T.

    The system is solved for both right-hand sides, V and K, and for all chunks at once; only
    S' = A_C S + U^T diag(A_C / A) K is passed from chunk to chunk. Everything is float32 (float64 for float64 inputs).
    With chunks of C <= `chunk_size`, default 32: O(S (C^2 + C d + d_v d_k)) time in S / C sequential steps,
    O(S (C + d + d_v d_k / C)) memory, forward and backward. For an empty sequence the result is S_0.

    `implementation`: `xla` is described above. `pallas` is a kernel for TPUs with chunks of 128, which does all of it
    in one pass over the sequence (`lenmem.ops.pallas.recurrence`). `auto` is `pallas` on a TPU, from a length of 128 on
    and without a `chunk_size`, if the kernel takes these dtypes and widths; otherwise `xla`.

    Raises ValueError for mismatched lengths, an invalid chunk size, an unknown implementation, and what the kernel does
    not take.
    """
    lengths = {"keys": keys.shape[-2], "values": values.shape[-2], "queries": queries.shape[-2]}
    write, erase, log_decay = (_at_every_step(strength, lengths["keys"]) for strength in (write, erase, log_decay))
    strengths = {"write": write, "erase": erase, "log_decay": log_decay}
    lengths |= {name: array.shape[-1] for name, array in strengths.items() if array is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lengths differ: {', '.join(f'{count} {name}' for name, count in lengths.items())}")
    if by_kernel(implementation, keys, values, chunk_size):
        from lenmem.ops.pallas.recurrence import recur

        return recur(queries, keys, values, write, erase, log_decay, initial=initial)
    kind, dtype, length = sum_type(queries, keys, values), result_type(values), keys.shape[-2]
    chunk_size = chunk_size or CHUNK
    size = max(1, -(-length // max(1, -(-length // chunk_size))))  # as many chunks as needed, with little padding

    def in_chunks(array: jax.Array) -> jax.Array:
        return chunked(array.astype(kind), size)

    keys, values, write = in_chunks(keys), in_chunks(values), in_chunks(write[..., None])
    ratios = since = left = None
    if log_decay is not None:
        log_decay = finite_logarithms(log_decay, kind)
        log_decay = in_chunks(log_decay[..., None])
        ratios = jnp.exp(sums_between(log_decay[..., 0]))  # G_ts; above the diagonal unused
        since, left = jnp.exp(jnp.cumsum(log_decay, axis=-2)), ratios[..., -1, :, None]  # A_t, A_C / A_t
    updates_of_values, of_keys = write * values, None
    if erase is not None:
        erase = in_chunks(erase[..., None])
        products = _scaled(jnp.einsum("...tk,...sk->...ts", keys, keys, precision="highest"), ratios)
        inverse = _unit_triangular_inverse(erase * jnp.tril(products, -1))
        updates_of_values, of_keys = inverse @ updates_of_values, inverse @ (_scaled(keys, since) * erase)

    def advance(state: jax.Array, chunk: tuple) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        keys, updates, of_keys, since, left = chunk
        if of_keys is not None:
            updates = updates - read_all(state, of_keys)
        kept = state if since is None else since[..., -1:, :] * state
        return kept + outer_products(_scaled(keys, left), updates), (state, updates)

    state = jnp.zeros_like(outer_products(keys[..., 0, :, :], values[..., 0, :, :]))
    state = state if initial is None else state + initial.astype(kind)
    chunks = jax.tree.map(lambda array: jnp.moveaxis(array, -3, 0), (keys, updates_of_values, of_keys, since, left))
    state, (before, updates) = jax.lax.scan(advance, state, chunks)
    queries = in_chunks(queries)
    before, updates = jnp.moveaxis(before, 0, -3), jnp.moveaxis(updates, 0, -3)
    scores = jnp.einsum("...ik,...sk->...is", queries, keys, preferred_element_type=kind)
    within = jnp.einsum("...is,...sv->...iv", jnp.tril(_scaled(scores, ratios)), updates, preferred_element_type=kind)
    return state, unchunked(_scaled(read_all(before, queries), since) + within, length).astype(dtype)


def by_kernel(implementation: str, keys: jax.Array, values: jax.Array, chunk_size: int | None) -> bool:
    """Whether the kernel of `lenmem.ops.pallas.recurrence` is used: never for an empty batch. ValueError for an unknown
    implementation, and for an invalid chunk size, such as any for the kernel."""
    pallas.checked(implementation)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    if chunk_size is not None and implementation == "pallas":
        raise ValueError(f"chunk_size is {chunk_size}; the kernel 'pallas' has chunks of its own")
    if not (keys.size and values.size):
        return False
    if implementation == "auto" and platform() == "tpu" and chunk_size is None:
        from lenmem.ops.pallas.recurrence import fits

        return keys.shape[-2] >= SHORTEST and fits(keys, values)
    return implementation == "pallas"


def _at_every_step(strength: Any, length: int) -> Any:
    return jnp.broadcast_to(strength, length) if strength is not None and jnp.ndim(strength) == 0 else strength


def _scaled(array: jax.Array, factor: jax.Array | None) -> jax.Array:
    return array if factor is None else factor * array


@jax.custom_jvp
def _unit_triangular_inverse(below: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """(I + below)^-1 for a strictly lower triangular matrix, by merging the inverses of ever larger diagonal blocks.

        [[A, 0], [B, D]]^-1 = [[A^-1, 0], [-D^-1 B A^-1, D^-1]]

    Each size of blocks takes two batched products. Triangular solves of many small systems are several times slower on
    CPU and GPU, and a Neumann series loses all precision if keys repeat. The smallest blocks are inverted without
    matrix products, because matrix units gain nothing for them.
    """
    count = below.shape[-1]
    invert, largest = (_by_columns, 48) if platform() == "tpu" else (_by_sums, 8)
    if count <= largest:
        return invert(below)
    blocks = 1 << (-(-count // largest) - 1).bit_length()
    size = -(-count // blocks)
    width = size * blocks
    below = jnp.pad(below, [(0, 0)] * (below.ndim - 2) + [(0, width - count)] * 2)

    def corners(row: int, step: int) -> jax.Array:
        """The first `size` of every `step` columns, and the rows that begin `row` below the diagonal."""
        cut = [below[..., i + row : i + row + size, i : i + size] for i in range(0, width, step)]
        return jnp.stack(cut, axis=-3)

    inverse = invert(corners(0, size))
    while size < width:
        first, second = inverse[..., ::2, :, :], inverse[..., 1::2, :, :]
        corner = -_product(second, _product(corners(size, 2 * size), first))
        rows = [first, jnp.zeros_like(first)], [corner, second]
        inverse = jnp.concatenate([jnp.concatenate(row, axis=-1) for row in rows], axis=-2)
        size *= 2
    return inverse[..., 0, :count, :count]


def _by_sums(below: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """The same for small matrices: the blocks are merged in place, by sums of products."""
    place = np.arange(below.shape[-1])
    inverse = jnp.broadcast_to(jnp.eye(len(place), dtype=below.dtype), below.shape)
    half = 1
    while half < len(place):
        block = place // half
        corner = jnp.where((block[:, None] == block + 1) & (block % 2 == 0), below, 0)
        inverse = inverse - (corner if half == 1 else _small_product(inverse, _small_product(corner, inverse)))
        half *= 2
    return inverse


def _by_columns(below: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """The same by elimination, column by column, with all systems along the last axis, which fills a TPU's vector unit.

    The compiler needs seconds for each exact product of small matrices, and estimates several times as many cycles.
    """
    count = below.shape[-1]
    systems = jnp.moveaxis(below.reshape(-1, count, count), 0, -1)

    def eliminate(j: jax.Array, inverse: jax.Array) -> jax.Array:
        return inverse - systems[:, j, None] * inverse[j]

    identity = jnp.broadcast_to(jnp.eye(count, dtype=below.dtype)[..., None], systems.shape)
    identity = varying_like(identity, systems)
    return jnp.moveaxis(jax.lax.fori_loop(0, count - 1, eliminate, identity), -1, 0).reshape(below.shape)


@_unit_triangular_inverse.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The derivative of Y = (I + B)^-1 is -Y dB Y."""
    inverse = _unit_triangular_inverse(*primals)
    return inverse, -_product(inverse, _product(*tangents, inverse))


def _small_product(a: Float[Array, "... C C"], b: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


_product = functools.partial(jnp.matmul, precision="highest")
