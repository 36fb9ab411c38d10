"""Common parts of geometric and stick-breaking attention: logits, running sums, and coordinates relative to the target.

No sum is computed as a difference of two others, so there is no cancellation. Running sums are products with small
triangular matrices. A matrix is converted to coordinates relative to the target, and back, without gathers: when it is
padded and reshaped to rows of another length, every row is shifted by one against the previous row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lenmem.ops.chunks import sum_type
from lenmem.placement import platform

RUN = 32
"""Number of terms of a running sum in one matrix product; half of it for sums of up to SHORT terms."""
SHORT = 1024
"""Longest running sum that is computed with RUN / 2 terms at a time, which is faster on a CPU."""

Scalar = Float[Array, ""] | float


def check(query: jax.Array, key: jax.Array, value: jax.Array, block_size: int | None, tolerance: Scalar | None) -> None:
    """ValueError for shapes that do not fit together or are empty, a block size below 1, and a tolerance outside
    [0, 1)."""
    lengths = [x.shape[-2] for x in (query, key, value)]
    if len(set(lengths)) > 1:
        raise ValueError("queries, keys and values must have equal lengths, not {}, {} and {}".format(*lengths))
    if lengths[0] == 0:
        raise ValueError("a sequence must have at least one position")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"queries of width {query.shape[-1]} do not fit keys of width {key.shape[-1]}")
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    if isinstance(tolerance, int | float) and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, not {tolerance}")


def by_kernel(implementation: str, query: jax.Array, value: jax.Array) -> bool:
    """Whether the Pallas kernel is used: never for an empty batch."""
    if not query.size:
        return False
    if implementation == "auto" and platform() == "tpu":
        from lenmem.ops.pallas import geometric

        return query.shape[-2] >= geometric.TILE and geometric.fits(query, value)
    return implementation == "pallas"


def match_logits(
    query: jax.Array,
    key: jax.Array,
    direction: jax.Array | None,
    scale: Scalar | None,
    offset: Scalar,
    start: jax.Array | int,
) -> jax.Array:
    """Logits [..., n, N] of targets start, start + 1, ... for all keys (equation 10), in `sum_type`."""
    wide = sum_type(query, key)
    logits = jnp.einsum("...id,...jd->...ij", query, key, preferred_element_type=wide)
    logits = logits * jnp.asarray(or_default(scale, query), wide) + jnp.asarray(offset, wide)
    if direction is not None:
        rows, columns = positions(logits, start)
        logits = logits + jnp.where(columns > rows, direction[..., 1:], direction[..., :1]).astype(wide)
    return logits


def or_default(scale: Scalar | None, query: jax.Array) -> Scalar:
    """The scale, by default 1 / sqrt(d)."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def positions(logits: jax.Array, start: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """(targets [n, 1], keys [N]) of logits [..., n, N] whose first target is `start`."""
    return start + jnp.arange(logits.shape[-2])[:, None], jnp.arange(logits.shape[-1])


def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x) with a relative error of 1e-7, faster than `jax.nn.softplus` on a CPU.

    With e = exp(-|x|), log(1 + e) = 2 artanh(e / (2 + e)).
    """
    if x.dtype != jnp.float32:
        return jax.nn.softplus(x)
    small = jnp.exp(-jnp.abs(x))
    ratio = small / (2 + small)
    square = ratio * ratio
    series = jnp.full_like(x, _ARTANH[-1])
    for coefficient in reversed(_ARTANH[:-1]):
        series = series * square + coefficient
    return jnp.maximum(x, 0) + ratio * series


_ARTANH = (2.00000001, 0.666663159, 0.400248537, 0.279614188, 0.281746573)
"""Coefficients of 2 artanh(r) / r as a polynomial in r^2, interpolated at Chebyshev points in [0, 1/9]; error 4e-9."""


def running_sums(terms: jax.Array, reverse: bool = False) -> jax.Array:
    """For each term, the sum of all terms before it (after it if `reverse`) along the last axis.

    If the axis is longer than RUN, RUN must divide it. Sums are taken within runs and over runs, so rounding errors
    grow as RUN + N / RUN, not as N.
    """
    length = terms.shape[-1]
    size = min(length, RUN) if length <= RUN or length > SHORT else RUN // 2
    runs = terms.reshape(*terms.shape[:-1], length // max(size, 1), size)
    sums = _exclusive_sums(jnp.sum(runs, axis=-1), reverse)[..., None] + _exclusive_sums(runs, reverse)
    return sums.reshape(terms.shape)


def _exclusive_sums(terms: jax.Array, reverse: bool) -> jax.Array:
    later = np.tri(terms.shape[-1], k=-1, dtype=terms.dtype)
    return jnp.matmul(terms, later if reverse else later.T, precision=jax.lax.Precision.HIGHEST)


def whole_runs(length: int) -> int:
    """The smallest length, at least this one, that `running_sums` accepts."""
    return length if length <= RUN else length + -length % RUN


def padded_sums(terms: jax.Array, reverse: bool = False) -> jax.Array:
    """`running_sums` of any number of terms."""
    count = terms.shape[-1]
    padded = jnp.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, whole_runs(count) - count)])
    return running_sums(padded, reverse)[..., :count]


def sums_between(terms: jax.Array) -> jax.Array:
    """sum_{r=s+1..t} of terms [..., C], for rows t and columns s <= t, [..., C, C]; 0 for s > t.

    A difference of two running sums would have the rounding errors of all terms before s.
    """
    upto = np.tri(terms.shape[-1], dtype=bool)  # r <= t
    return padded_sums(jnp.where(upto, terms[..., None, :], 0), reverse=True)


def to_relative(array: jax.Array, width: int) -> jax.Array:
    """[..., n, M] -> [..., n, width]: entry (i, i + c) moves to (i, c). Past its end, a row continues in the next."""
    *leading, rows, columns = array.shape
    array = jnp.pad(array, [(0, 0)] * len(leading) + [(0, 1), (0, 0)])
    array = array.reshape(*leading, (rows + 1) * columns)[..., : rows * (columns + 1)]
    return array.reshape(*leading, rows, columns + 1)[..., :width]


def to_absolute(array: jax.Array, columns: int) -> jax.Array:
    """[..., n, width] -> [..., n, columns], columns >= width - 1: entry (i, c) moves to (i, i + c); the rest is 0."""
    *leading, rows, width = array.shape
    array = jnp.pad(array, [(0, 0)] * (len(leading) + 1) + [(0, columns + 1 - width)])
    array = array.reshape(*leading, rows * (columns + 1))[..., : rows * columns]
    return array.reshape(*leading, rows, columns)


def in_tiles(rows: jax.Array, size: int) -> jax.Array:
    """[..., N, d] -> [..., ceil(N / size), size, d], with zeros after the end."""
    *leading, length, width = rows.shape
    rows = jnp.pad(rows, [(0, 0)] * len(leading) + [(0, -length % size), (0, 0)])
    return rows.reshape(*leading, -(-length // size), size, width)
