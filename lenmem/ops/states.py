"""How close the states of a recurrent network come to each other.

Ofner & Kern, "State-Space Constraints Can Improve the Generalisation of the Differentiable Neural Computer to Input
Sequences With Unseen Length", 2021 (arXiv 2110.09138), section III-E.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops.alone import compiled_alone
from lenmem.ops.chunks import varying_like
from lenmem.ops.lie import unit

CHUNK = 64


def nearest_states_similarity(
    states: Float[Array, "... T H"], valid: Bool[Array, "... T"], pairs: int
) -> Float[Array, "..."]:
    """Mean of the `pairs` largest cosine similarities between two states of a sequence (section III-E).

    All pairs i < j of valid times are considered, each once. For a sequence with fewer pairs, the mean is over all of
    its pairs; for a sequence without pairs it is 0. The cosine with a zero state is 0, with a finite gradient.

    The search for the nearest pairs has no gradient. It compares `CHUNK` times with all others at once, and the cosines
    of the selected pairs are then recomputed. O(T^2 H) time and O(T (H + CHUNK)) memory, and O(pairs H) more for the
    gradient.
    """
    length = states.shape[-2]
    pairs = min(pairs, length * (length - 1) // 2)
    if pairs < 1:
        return jnp.zeros(states.shape[:-2], states.dtype)
    return _similarity(states, valid, pairs=pairs)


@compiled_alone
def _similarity(states: jax.Array, valid: jax.Array, *, pairs: int) -> jax.Array:
    directions = unit(jnp.where(valid[..., None], states, 0))
    similar, first, second = _nearest(jax.lax.stop_gradient(directions), valid, pairs)
    of_first, of_second = (jnp.take_along_axis(directions, at[..., None], axis=-2) for at in (first, second))
    real = similar > -jnp.inf
    cosines = jnp.where(real, jnp.sum(of_first * of_second, axis=-1), 0)
    count = jnp.maximum(jnp.sum(real, axis=-1), 1)
    return jnp.sum(cosines, axis=-1) / count.astype(cosines.dtype)


def _nearest(directions: jax.Array, valid: jax.Array, pairs: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest cosines of pairs i < j, each with its i and j, [..., pairs]; -inf where there are fewer pairs."""
    *leading, length, width = directions.shape
    size = min(CHUNK, length)
    blocks = -(-length // size)
    missing = blocks * size - length
    none = [(0, 0)] * len(leading)
    rows = jnp.pad(directions, [*none, (0, missing), (0, 0)]).reshape(*leading, blocks, size, width)
    real = jnp.pad(valid, [*none, (0, missing)]).reshape(*leading, blocks, size)
    times = jnp.arange(blocks * size).reshape(blocks, size)

    def search(best, block):
        rows, real, times = block
        cosines = jnp.einsum("...ih,...jh->...ij", rows, directions)
        competing = real[..., :, None] & valid[..., None, :] & (times[:, None] < jnp.arange(length))
        cosines = jnp.where(competing, cosines, -jnp.inf).reshape(*leading, -1)
        numbers = (times[:, None] * length + jnp.arange(length)).ravel().astype(jnp.int32)
        numbers = jnp.broadcast_to(numbers, cosines.shape)
        cosines, numbers = (jnp.concatenate(both, axis=-1) for both in zip(best, (cosines, numbers), strict=True))
        best, at = jax.lax.top_k(cosines, pairs)
        return (best, jnp.take_along_axis(numbers, at, axis=-1)), None

    start = jnp.full((*leading, pairs), -jnp.inf, directions.dtype), jnp.zeros((*leading, pairs), jnp.int32)
    blocks_first = jnp.moveaxis(rows, -3, 0), jnp.moveaxis(real, -2, 0), times
    (similar, numbers), _ = jax.lax.scan(search, varying_like(start, rows, real), blocks_first)
    return similar, numbers // length, numbers % length
