"""Geometric attention: every position attends to its closest match.

Csordás, Irie & Schmidhuber, "The Neural Data Router", ICLR 2022 (arXiv 2110.07732), section 2.2. A target i looks at
the other positions in order of distance, the right one of two equally distant ones first (equation 8),

    i + 1, i - 1, i + 2, i - 2, ...

and takes a match j, with probability P_ij, if it has taken none before: A_ij = P_ij prod_k (1 - P_ik) over all k closer
than j (equations 6 and 7).

Shapes: logits [..., N, N] with the target first, queries and keys [..., N, d], values [..., N, d_v], masks [..., N], N
at least 1; any leading axes (batch, heads). Everything is computed in float32 (float64 for float64), bfloat16 included.

The weights need the sum over all k closer than j; their gradient needs its transpose. Seen from the target, a row has
two halves, left (i, i - 1, ...) and right (i + 1, i + 2, ...). In order of distance they form pairs (left p, right p),
p = 0, 1, ..., where left 0 is the target itself and contributes nothing. The sum is a running sum over these pairs,
from the target outward. No sum is computed as a difference of two others, so nothing cancels. A matrix is converted to
and from these coordinates without gathers: padding it and reshaping it to rows of another length shifts every row by
one against the row before it. Running sums are products with small triangular matrices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lenmem.ops import pallas
from lenmem.ops.gradients import with_gradient
from lenmem.placement import platform

RUN = 32
"""Number of terms of a running sum that one matrix product adds up; half of it for up to SHORT terms."""
SHORT = 1024
"""Longest running sum that is added up in the shorter runs, which are faster on a CPU."""
HORIZON_BLOCK = 64
"""Default number of distances, on either side, that are processed between two checks of the tolerance."""
TPU_BLOCK = 128
"""Targets that are processed at a time on a TPU if a sequence is too long for the kernel."""
NORM_EPSILON = 1e-12

Scalar = Float[Array, ""] | float


def geometric_attention_weights(
    logits: Float[Array, "... N N"], key_mask: Bool[Array, "... N"] | None = None, *, normalize: bool = False
) -> Float[Array, "... N N"]:
    """Weights A of logits x (equations 6 to 8), row i for target i.

        A_ij = P_ij prod_{k closer to i than j} (1 - P_ik),  P = sigmoid(x),  A_ii = 0

    computed as exp(log P_ij + sum_k log(1 - P_ik)), with errors in the exponent y of about 1e-6 max(1, |y|) even for
    thousands of keys. A row sums to 1 - prod_k (1 - P_ik), which is less than 1 where nothing matches well, and 0 for
    N = 1. `normalize` divides each row by its sum (by at least 1e-12). The paper's formula does not do this, but the
    published "+ geometric attention" baselines do.

    `key_mask` is True where a key is real. The other keys get weight exactly 0 and have no effect, even if they are not
    finite. Distances are measured between positions: a masked key inside the sequence keeps its place. Logits of -inf
    have the same effect. The result has the dtype of the logits.

    Gradient: with g = dL/dA, dL/dx_k = g_k A_k - P_k sum_j g_j A_j over j = k and all j farther than k. The backward
    pass keeps x and A only. O(N^2) time and memory. Raises ValueError if the logits are not square.
    """
    if logits.shape[-2] != logits.shape[-1]:
        raise ValueError(f"logits must be square in their last two axes, not {logits.shape}")
    weights = _weights(_visible(logits.astype(_sum_type(logits)), key_mask, 0), 0)
    if normalize:
        weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), NORM_EPSILON)
    return weights.astype(logits.dtype)


def geometric_attention_logits(
    query: Float[Array, "... N d"],
    key: Float[Array, "... N d"],
    *,
    direction: Float[Array, "... N 2"] | None = None,
    scale: Scalar | None = None,
    offset: Scalar = 0.0,
) -> Float[Array, "... N N"]:
    """Logits of equation 10: scale q_i . k_j + D_ij + offset. D_ij depends only on the side of the key (equation 9).

    D_ij = direction_i0 for keys on the left (j < i) and direction_i1 for keys on the right (j > i). The scale (alpha
    in the paper) defaults to 1 / sqrt(d); scale and offset (gamma) may be learnt scalars. The caller multiplies
    `direction` by the paper's beta. In float32 (float64 for float64 inputs). O(N^2 d).
    """
    return _logits(query, key, direction, scale, offset, 0)


def geometric_attention(
    query: Float[Array, "... N d"],
    key: Float[Array, "... N d"],
    value: Float[Array, "... N v"],
    *,
    direction: Float[Array, "... N 2"] | None = None,
    scale: Scalar | None = None,
    offset: Scalar = 0.0,
    key_mask: Bool[Array, "... N"] | None = None,
    normalize: bool = False,
    block_size: int | None = None,
    tolerance: Scalar | None = None,
    implementation: pallas.Implementation = "auto",
) -> Float[Array, "... N v"]:
    """sum_j A_ij v_j with A = `geometric_attention_weights` of `geometric_attention_logits` (equations 6 to 10).

    The result has the dtype of the values. Padded keys and their values have no effect; the result of a padded query is
    finite and meaningless. `normalize` divides it by sum_j A_ij (by at least 1e-12).

    By default: O(N^2 (d + d_v)) time, O(N^2) memory. With `block_size`, that many targets are processed at a time, and
    recomputed for the gradient, which keeps only the inputs: O(N block_size + N (d + d_v)) memory.

    With `tolerance` = eps, keys are processed outward from the target instead, in blocks of `block_size` distances on
    both sides (default 64; above 32 it is rounded up to a multiple of 32), until S_i <= eps for all targets i. S_i is
    the product of 1 - P_ik over all k seen, the probability that i has found no match yet. The omitted terms are

        |sum_{j not seen} A_ij v_j| <= max_j |v_j| sum_{j not seen} A_ij = max_j |v_j| (S_i - prod_all (1 - P_ik))
                                    <= eps max_j |v_j|,

    since A_ij is the product before j minus the product after j, and the sum telescopes. Targets that `key_mask` marks
    as padding are not waited for, and the bound does not hold for them. The gradient is the gradient of the truncated
    sum. With g = dL/d result it differs from the exact one by at most eps max_j |g_i . v_j| in each logit x_ij: the
    missing terms are g_i . v_j A_ij of the keys not seen. For h distances processed: O(N h (d + d_v)) time, forward and
    backward, and O(N block_size + N (d + d_v)) memory, with a gradient N^2 / block_size more. The row of a batch that
    looks farthest sets h for all rows. A tolerance of 0 stops only when weights underflow. The bounds are for weights
    that are not normalised.

    `implementation`: `xla` is described above. `pallas` is a kernel for TPUs, forward and backward, whose memory is
    linear in N whatever the block size; within a tolerance it goes by blocks of 128, and each block of targets stops
    for itself. Elsewhere it is interpreted, which is slow. `auto` is the kernel on a TPU, in float32 and bfloat16, from
    a length of 128, to which it would pad a shorter sequence, up to the length that its VMEM allows (24,448 for
    d = d_v = 64), and beyond that `xla` in blocks. Elsewhere it is `xla`.

    Raises ValueError for different lengths, a block size below 1, a tolerance outside [0, 1), an unknown implementation
    and a sequence that is too long for the kernel.
    """
    pallas.checked(implementation)
    _check(query, key, value, block_size, tolerance)
    if key_mask is not None:  # a zero weight times inf is NaN, so masked rows are replaced
        key, value = (jnp.where(key_mask[..., None], x, 0) for x in (key, value))
    if normalize:
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        read = geometric_attention(
            query,
            key,
            jnp.concatenate([value, ones], axis=-1).astype(_sum_type(value)),
            direction=direction,
            scale=scale,
            offset=offset,
            key_mask=key_mask,
            block_size=block_size,
            tolerance=tolerance,
            implementation=implementation,
        )
        return (read[..., :-1] / jnp.maximum(read[..., -1:], NORM_EPSILON)).astype(value.dtype)
    if _by_kernel(implementation, query, value):
        from lenmem.ops.pallas import geometric

        query = query.astype(_sum_type(query)) * _or_default(scale, query)
        return geometric.attention(query, key, value, direction, offset, key_mask, tolerance=tolerance).astype(
            value.dtype
        )
    if implementation == "auto" and platform() == "tpu" and block_size is None:
        block_size = TPU_BLOCK
    if tolerance is not None:
        block_size = HORIZON_BLOCK if block_size is None else block_size
        return _within_horizon(query, key, value, direction, scale, offset, key_mask, block_size, tolerance)
    if block_size is not None and block_size < query.shape[-2]:
        return _by_targets(query, key, value, direction, scale, offset, key_mask, block_size)
    return _attend(query, key, value, direction, scale, offset, key_mask, 0)


def _check(
    query: jax.Array, key: jax.Array, value: jax.Array, block_size: int | None, tolerance: Scalar | None
) -> None:
    lengths = [x.shape[-2] for x in (query, key, value)]
    if len(set(lengths)) > 1:
        raise ValueError("queries, keys and values must have equal lengths, not {}, {} and {}".format(*lengths))
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"queries of width {query.shape[-1]} do not fit keys of width {key.shape[-1]}")
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    if isinstance(tolerance, int | float) and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, not {tolerance}")


def _by_kernel(implementation: str, query: jax.Array, value: jax.Array) -> bool:
    """Whether a kernel in Pallas is to be used."""
    if implementation == "auto" and platform() == "tpu":
        from lenmem.ops.pallas import geometric

        return query.shape[-2] >= geometric.TILE and geometric.fits(query, value)
    return implementation == "pallas"


def _sum_type(*arrays: jax.Array) -> jnp.dtype:
    """The dtype in which sums over these arrays are computed."""
    return jnp.result_type(jnp.float32, *arrays)


# All keys at once -----------------------------------------------------------------------------------------------------
# In this section a row is a target start, start + 1, ...; the columns are all keys.


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    direction: jax.Array | None,
    scale: Scalar | None,
    offset: Scalar,
    key_mask: jax.Array | None,
    start: jax.Array | int,
) -> jax.Array:
    weights = _weights(_visible(_logits(query, key, direction, scale, offset, start), key_mask, start), start)
    weights = weights.astype(value.dtype)
    read = jnp.einsum("...ij,...jv->...iv", weights, value, preferred_element_type=_sum_type(value))
    return read.astype(value.dtype)


def _by_targets(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    direction: jax.Array | None,
    scale: Scalar | None,
    offset: Scalar,
    key_mask: jax.Array | None,
    size: int,
) -> jax.Array:
    """`_attend` for `size` targets at a time."""
    length = query.shape[-2]

    def blocks(rows: jax.Array) -> jax.Array:
        """[..., N, d] -> [ceil(N / size), ..., size, d]."""
        return jnp.moveaxis(_tiles(rows, size), -3, 0)

    @jax.checkpoint
    def attend(start: jax.Array, query: jax.Array, direction: jax.Array | None) -> jax.Array:
        return _attend(query, key, value, direction, scale, offset, key_mask, start)

    queries = blocks(query)
    starts = size * jnp.arange(queries.shape[0])
    read = jax.lax.map(lambda block: attend(*block), (starts, queries, jax.tree.map(blocks, direction)))
    read = jnp.moveaxis(read, 0, -3)
    return read.reshape(*read.shape[:-3], -1, read.shape[-1])[..., :length, :]


def _logits(
    query: jax.Array,
    key: jax.Array,
    direction: jax.Array | None,
    scale: Scalar | None,
    offset: Scalar,
    start: jax.Array | int,
) -> jax.Array:
    wide = _sum_type(query, key)
    logits = jnp.einsum("...id,...jd->...ij", query, key, preferred_element_type=wide)
    logits = logits * _or_default(scale, query) + offset
    if direction is not None:
        rows, columns = _positions(logits, start)
        logits = logits + jnp.where(columns > rows, direction[..., 1:], direction[..., :1])
    return logits.astype(wide)


def _or_default(scale: Scalar | None, query: jax.Array) -> Scalar:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _visible(logits: jax.Array, key_mask: jax.Array | None, start: jax.Array | int) -> jax.Array:
    """-inf where there is nothing to attend to: the target itself, padding, and rows after the last target."""
    rows, columns = _positions(logits, start)
    visible = (rows != columns) & (rows < logits.shape[-1])
    if key_mask is not None:
        visible = visible & key_mask[..., None, :]
    return jnp.where(visible, logits, -jnp.inf)


def _positions(logits: jax.Array, start: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    return start + jnp.arange(logits.shape[-2])[:, None], jnp.arange(logits.shape[-1])


def _weights_forward(logits: jax.Array, start: jax.Array | int) -> tuple[jax.Array, tuple]:
    losses = _softplus(logits)  # -log(1 - P), and log P = logits - losses
    weights = jnp.exp(logits - losses - _sums_before(losses, start))
    return weights, (logits, weights, start)


def _weights_backward(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, None]:
    logits, weights, start = kept
    shares = cotangent * weights
    return shares - jax.nn.sigmoid(logits) * (shares + _sums_after(shares, start)), None


_weights = with_gradient(_weights_forward, _weights_backward)


def _softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x) to 1e-7 of it, faster than `jax.nn.softplus` on a CPU, with log(1 + e) = 2 artanh(e / (2 + e))."""
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
"""2 artanh(r) / r as a polynomial in r^2, by interpolation at Chebyshev's points of 0 to 1/9; off by 4e-9 at most."""


def _sums_before(terms: jax.Array, start: jax.Array | int) -> jax.Array:
    """For each key, the sum over all closer keys."""
    left, right = _outward(terms, start)
    before = _running_sums(left + right)
    return _inward(before, before + left, start, terms.shape[-1])


def _sums_after(terms: jax.Array, start: jax.Array | int) -> jax.Array:
    """For each key, the sum over all farther keys: the transpose of `_sums_before`."""
    left, right = _outward(terms, start)
    after = _running_sums(left + right, reverse=True)
    return _inward(after + right, after, start, terms.shape[-1])


def _outward(terms: jax.Array, start: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """[..., n, N] -> (left, right) [..., n, H] with left_ip = terms_i,i-p and right_ip = terms_i,i+1+p, else 0.

    H is at least N. If H = N, the last entry of the last row's right half belongs to the next row. That row either does
    not exist or lies after the last target, where everything is 0.
    """
    *leading, rows, columns = terms.shape
    half = _whole_runs(columns)
    padded = jnp.zeros((*leading, rows, 2 * half - 1), terms.dtype)
    padded = jax.lax.dynamic_update_slice_in_dim(padded, terms, half - 1 - start, axis=-1)
    halves = _to_relative(padded, 2 * half)
    return jnp.flip(halves[..., :half], axis=-1), halves[..., half:]


def _inward(left: jax.Array, right: jax.Array, start: jax.Array | int, columns: int) -> jax.Array:
    """The inverse of `_outward`."""
    half = left.shape[-1]
    halves = jnp.concatenate([jnp.flip(left, axis=-1), right], axis=-1)
    return jax.lax.dynamic_slice_in_dim(_to_absolute(halves, 2 * half - 1), half - 1 - start, columns, axis=-1)


def _to_relative(array: jax.Array, width: int) -> jax.Array:
    """[..., n, M] -> [..., n, width]: entry (i, i + c) moves to (i, c). Past its end, a row continues in the next."""
    *leading, rows, columns = array.shape
    array = jnp.pad(array, [(0, 0)] * len(leading) + [(0, 1), (0, 0)])
    array = array.reshape(*leading, -1)[..., : rows * (columns + 1)]
    return array.reshape(*leading, rows, columns + 1)[..., :width]


def _to_absolute(array: jax.Array, columns: int) -> jax.Array:
    """[..., n, width] -> [..., n, columns], columns >= width - 1: entry (i, c) moves to (i, i + c); the rest is 0."""
    *leading, rows, width = array.shape
    array = jnp.pad(array, [(0, 0)] * (len(leading) + 1) + [(0, columns + 1 - width)])
    return array.reshape(*leading, -1)[..., : rows * columns].reshape(*leading, rows, columns)


def _running_sums(terms: jax.Array, reverse: bool = False) -> jax.Array:
    """For each term, the sum of all terms before it (after it if `reverse`) along the last axis.

    If the axis is longer than RUN, RUN must divide it. Sums are taken within runs and over runs, so rounding errors
    grow as RUN + N / RUN, not as N.
    """
    length = terms.shape[-1]
    size = min(length, RUN) if length <= RUN or length > SHORT else RUN // 2
    runs = terms.reshape(*terms.shape[:-1], -1, size)
    sums = _exclusive_sums(jnp.sum(runs, axis=-1), reverse)[..., None] + _exclusive_sums(runs, reverse)
    return sums.reshape(terms.shape)


def _exclusive_sums(terms: jax.Array, reverse: bool) -> jax.Array:
    later = np.tri(terms.shape[-1], k=-1, dtype=terms.dtype)
    return jnp.matmul(terms, later if reverse else later.T, precision=jax.lax.Precision.HIGHEST)


# One side -------------------------------------------------------------------------------------------------------------


def stick_breaking_weights(
    logits: Float[Array, "... Q N"], visible: Bool[Array, "... Q N"] | None = None
) -> Float[Array, "... Q N"]:
    """Weights A of logits x in which a query takes the first match from the right (Tan et al., ICLR 2025, 2410.17980).

        A_ij = P_ij prod_{k > j} (1 - P_ik),  P = sigmoid(x)

    over the visible keys; with only keys j < i visible this is geometric attention that looks to the left. A row sums
    to 1 - prod_k (1 - P_ik). Invisible keys get weight exactly 0. In the type of the logits.

    Gradient: as for `geometric_attention_weights`, with the keys to the left as the farther ones. O(Q N).
    """
    wide = logits.astype(_sum_type(logits))
    if visible is not None:
        wide = jnp.where(visible, wide, -jnp.inf)
    return _stick_breaking(wide).astype(logits.dtype)


def stick_breaking_attention(
    query: Float[Array, "... N d"],
    key: Float[Array, "... N d"],
    value: Float[Array, "... N v"],
    *,
    scale: Scalar | None = None,
    offset: Scalar = 0.0,
    key_mask: Bool[Array, "... N"] | None = None,
    implementation: pallas.Implementation = "auto",
) -> Float[Array, "... N v"]:
    """sum_{j < i} A_ij v_j with A = `stick_breaking_weights` of scale q_i . k_j + offset.

    This is geometric attention that only looks left: a target sees what is before it. The scale defaults to
    1 / sqrt(d). `key_mask`, dtypes and `implementation` are as for `geometric_attention`. O(N^2 (d + d_v)) time;
    O(N^2) memory by XLA, O(N (d + d_v)) by the kernel. Raises ValueError as `geometric_attention` does.
    """
    pallas.checked(implementation)
    _check(query, key, value, None, None)
    if key_mask is not None:
        key, value = (jnp.where(key_mask[..., None], x, 0) for x in (key, value))
    if _by_kernel(implementation, query, value):
        from lenmem.ops.pallas import geometric

        query = query.astype(_sum_type(query)) * _or_default(scale, query)
        return geometric.attention(query, key, value, None, offset, key_mask, one_sided=True).astype(value.dtype)
    logits = _logits(query, key, None, scale, offset, 0)
    rows, columns = _positions(logits, 0)
    visible = rows > columns if key_mask is None else (rows > columns) & key_mask[..., None, :]
    weights = stick_breaking_weights(logits, visible).astype(value.dtype)
    read = jnp.einsum("...ij,...jv->...iv", weights, value, preferred_element_type=_sum_type(value))
    return read.astype(value.dtype)


def _stick_breaking_forward(logits: jax.Array) -> tuple[jax.Array, tuple]:
    losses = _softplus(logits)
    weights = jnp.exp(logits - losses - _padded_sums(losses, reverse=True))
    return weights, (logits, weights)


def _stick_breaking_backward(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array]:
    logits, weights = kept
    shares = cotangent * weights
    return (shares - jax.nn.sigmoid(logits) * (shares + _padded_sums(shares)),)


_stick_breaking = with_gradient(_stick_breaking_forward, _stick_breaking_backward)


def _padded_sums(terms: jax.Array, reverse: bool = False) -> jax.Array:
    """`_running_sums` of any number of terms."""
    count = terms.shape[-1]
    padded = jnp.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, _whole_runs(count) - count)])
    return _running_sums(padded, reverse)[..., :count]


# Outward until the tolerance ------------------------------------------------------------------------------------------
# Targets are cut into tiles [..., N / b, b, ...] and pairs into blocks of b. For the targets of a tile, the keys of a
# block lie in two neighbouring tiles of shifted keys on the left, and in two on the right.


def _within_horizon(
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
    length = query.shape[-2]
    wide = _sum_type(query, key, value)
    sides = (jnp.zeros((length, 2), wide) if direction is None else direction.astype(wide)) + offset
    real = jnp.ones((length, 1), bool) if key_mask is None else key_mask[..., None]
    arrays = query.astype(wide) * _or_default(scale, query), sides, key.astype(wide), value.astype(wide), real
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    queries, sides, *of_keys = (jnp.broadcast_to(x, leading + x.shape[-2:]) for x in arrays)
    size = _whole_runs(min(size, length))
    queries, sides = _tiles(queries, size), _tiles(sides, size)
    # Pad both ends with enough zeros that every shift stays inside the array.
    tiled = length + -length % size
    around = [(0, 0)] * len(leading) + [(tiled, 2 * tiled - length + 1), (0, 0)]
    read = _horizon(queries, sides, *(jnp.pad(x, around) for x in of_keys), jnp.asarray(tolerance, wide))
    return read.reshape(*leading, tiled, -1)[..., :length, :].astype(value.dtype)


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
    blocks, _, before, read = jax.lax.while_loop(unfinished, look, (0, lost, before, read))
    return read, (queries, sides, key, value, real, before, blocks)


def _horizon_backward(kept: tuple, cotangent: jax.Array) -> tuple:
    """Recomputes the blocks, from the last one seen inward."""
    queries, sides, key, value, real, before, blocks = kept

    def look(state: tuple) -> tuple:
        block, farther, gradients = state
        block = block - 1
        logits, from_logits = jax.vjp(lambda *x: _pair_logits(x[0], x[1], x[2], real, block), queries, sides, key)
        left, right, _ = _pair_weights(*logits, before[block])
        _, from_read = jax.vjp(lambda *x: _pair_read(x[0], x[1], x[2], block), left, right, value)
        of_left, of_right, of_value = from_read(cotangent)
        left, right = of_left * left, of_right * right
        onward = right + _running_sums(left + right, reverse=True) + farther[..., None]
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
        halves.append(_to_relative(jnp.where(seen, logits, -jnp.inf), size))
    left, right = halves
    targets = block * size + jnp.arange(size) == 0
    return jnp.where(targets, -jnp.inf, jnp.flip(left, axis=-1)), right


def _pair_weights(left: jax.Array, right: jax.Array, lost: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The weights for these logits, and -log of the survival probability after them; it was `lost` before them."""
    of_left, of_right = jax.nn.softplus(left), jax.nn.softplus(right)
    of_pairs = of_left + of_right
    before = lost[..., None] + _running_sums(of_pairs)
    left, right = jnp.exp(left - of_left - before), jnp.exp(right - of_right - (before + of_left))
    return left, right, lost + jnp.sum(of_pairs, axis=-1)


def _pair_read(left: jax.Array, right: jax.Array, value: jax.Array, block: Any) -> jax.Array:
    """The values read with these weights: [..., N / b, b, d_v]."""
    size = left.shape[-1]
    read = jnp.zeros((), value.dtype)
    for weights, shift in zip((jnp.flip(left, axis=-1), right), _shifts(block, size), strict=True):
        weights = _to_absolute(weights, 2 * size)
        read = read + jnp.einsum("...ij,...jv->...iv", weights, _neighbours(value, shift, left))
    return read


def _shifts(block: Any, size: int) -> tuple[Any, Any]:
    """Offset from the target to the leftmost key of a block, for its left pairs and for its right pairs."""
    return 1 - (block + 1) * size, block * size + 1


def _neighbours(array: jax.Array, shift: Any, tiles: jax.Array) -> jax.Array:
    """[..., 3 N + 1, d] -> [..., N / b, 2 b, d]: for each tile, the 2 b positions from its first one plus `shift`."""
    count, size = tiles.shape[-3:-1]
    length = count * size
    shifted = _tiles(jax.lax.dynamic_slice_in_dim(array, length + shift, length + size, axis=-2), size)
    return jnp.concatenate([shifted[..., :-1, :, :], shifted[..., 1:, :, :]], axis=-2)


def _tiles(rows: jax.Array, size: int) -> jax.Array:
    """[..., N, d] -> [..., ceil(N / size), size, d], with zeros after the end."""
    *leading, length, width = rows.shape
    rows = jnp.pad(rows, [(0, 0)] * len(leading) + [(0, -length % size), (0, 0)])
    return rows.reshape(*leading, -1, size, width)


def _whole_runs(length: int) -> int:
    """The smallest length that is not below this one and that `_running_sums` accepts."""
    return length if length <= RUN else length + -length % RUN
