"""Geometric attention: every position attends to its closest match.

Csordás, Irie & Schmidhuber, "The Neural Data Router", ICLR 2022 (arXiv 2110.07732), section 2.2. A target i looks at
the other positions in order of distance, the right one of two equally distant ones first (equation 8),

    i + 1, i - 1, i + 2, i - 2, ...

and takes position j with probability P_ij if it has not taken a closer one: A_ij = P_ij prod_k (1 - P_ik) over all k
closer than j (equations 6 and 7).

Shapes: logits [..., N, N] with the target first, queries and keys [..., N, d], values [..., N, d_v], masks [..., N], N
at least 1; any leading axes (batch, heads). Everything is computed in float32 (float64 for float64), bfloat16 included.
On a TPU the factors of matrix products are rounded to bfloat16, as in all of JAX, unless `jax_default_matmul_precision`
is higher: a logit then has an error of up to 2^-8 sum_d |q_d k_d|.

For the logarithm of the weights, log(1 - P_ik) is summed over all k closer than j; the gradient needs the transpose of
this sum. Seen from the target, a row has two halves, left (i, i - 1, ...) and right (i + 1, i + 2, ...). In order of
distance they form pairs (left p, right p), p = 0, 1, ..., where left 0 is the target itself and contributes nothing.
The sum is a running sum over these pairs, from the target outward (`lenmem.ops.outward`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops import pallas
from lenmem.ops.alone import compiled_alone
from lenmem.ops.chunks import result_type, sum_type
from lenmem.ops.gradients import with_gradient
from lenmem.ops.horizon import within_horizon
from lenmem.ops.outward import (
    Scalar,
    by_kernel,
    check,
    in_tiles,
    match_logits,
    or_default,
    positions,
    running_sums,
    softplus,
    to_absolute,
    to_relative,
    whole_runs,
)
from lenmem.placement import platform

HORIZON_BLOCK = 64
"""Default number of distances, on either side, that are processed between two checks of the tolerance."""
TPU_BLOCK = 128
"""Targets that are processed at a time on a TPU if a sequence is too long for the kernel."""
NORM_EPSILON = 1e-12


def geometric_attention_weights(
    logits: Float[Array, "... N N"], key_mask: Bool[Array, "... N"] | None = None, *, normalize: bool = False
) -> Float[Array, "... N N"]:
    """Weights A of logits x (equations 6 to 8), row i for target i.

        A_ij = P_ij prod_{k closer to i than j} (1 - P_ik),  P = sigmoid(x),  A_ii = 0

    computed as exp(log P_ij + sum_k log(1 - P_ik)), with errors in the exponent y of about 1e-6 max(1, |y|) even for
    thousands of keys. A row sums to 1 - prod_k (1 - P_ik), which is less than 1 if nothing matches well, and 0 for
    N = 1. `normalize` divides each row by its sum (by at least 1e-12). The paper's formula does not do this, but the
    code of its "+ geom. att." baseline does.

    `key_mask` is True for real keys. Other keys get weight exactly 0 and have no effect, even if they are not finite.
    A masked key inside the sequence still counts for the distance between others. Logits of -inf have the same effect
    as a mask. The result has the dtype of the logits.

    Gradient: with g = dL/dA, dL/dx_k = g_k A_k - P_k sum_j g_j A_j over j = k and all j farther than k. The backward
    pass keeps x and A only. O(N^2) time and memory. Raises ValueError if the logits are not square.
    """
    if logits.shape[-2] != logits.shape[-1]:
        raise ValueError(f"logits must be square in their last two axes, not {logits.shape}")
    weights = _weights(_visible(logits.astype(sum_type(logits)), key_mask, 0), 0)
    if normalize:
        weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), NORM_EPSILON)
    return weights.astype(result_type(logits))


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
    in the paper) defaults to 1 / sqrt(d); scale and offset (gamma) may be learned scalars. The caller multiplies
    `direction` by the paper's beta. In float32 (float64 for float64 inputs). O(N^2 d).
    """
    return match_logits(query, key, direction, scale, offset, 0)


@compiled_alone
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
    finite and meaningless. `normalize` divides the result by sum_j A_ij (by at least 1e-12).

    By default: O(N^2 (d + d_v)) time, O(N^2) memory. With `block_size`, that many targets are processed at a time, and
    recomputed for the gradient, so that only the inputs are stored: O(N block_size + N (d + d_v)) memory.

    With `tolerance` = eps, keys are instead processed outward from the target, in blocks of `block_size` distances on
    both sides (default 64, on a TPU 128; above 32 it is rounded up to a multiple of 32), until S_i <= eps for all
    targets i. S_i is the product of 1 - P_ik over all k seen, the probability that i has found no match yet. The
    omitted terms are

        |sum_{j not seen} A_ij v_j| <= max_j |v_j| sum_{j not seen} A_ij = max_j |v_j| (S_i - prod_all (1 - P_ik))
                                    <= eps max_j |v_j|,

    since A_ij is the product before j minus the product after j, and the sum telescopes. The condition and the bound do
    not apply to targets that `key_mask` marks as padding. The gradient is that of the truncated sum. With
    g = dL/d result it differs from the exact one by at most eps max_j |g_i . v_j| in each logit x_ij: the missing terms
    are g_i . v_j A_ij of the keys not seen. With h distances processed, it takes O(N h (d + d_v)) time, forward and
    backward, and O(N block_size + N (d + d_v)) memory, with a gradient N^2 / block_size more. All rows of a batch are
    processed to the same h, that of the row with the farthest matches. A tolerance of 0 stops only when weights
    underflow. The bounds are for weights that are not normalised.

    `implementation`: `xla` is described above. `pallas` is a kernel for TPUs, forward and backward, whose memory is
    linear in N for any block size; with a tolerance it processes blocks of 128, and each block of targets stops by
    itself. On other devices it is interpreted, which is slow. `auto` is the kernel on a TPU, in float32 and bfloat16,
    for lengths from 128 up to the longest that fits its VMEM (on a v5e 24,448 for d = d_v = 64), and `xla` in blocks
    for longer sequences. In all other cases it is `xla`.

    Raises ValueError for different lengths, a block size below 1, a tolerance outside [0, 1), an unknown implementation
    and a sequence that is too long for the kernel.
    """
    pallas.checked(implementation)
    check(query, key, value, block_size, tolerance)
    if key_mask is not None:  # a zero weight times inf is NaN, so masked rows are replaced
        key, value = (jnp.where(key_mask[..., None], x, 0) for x in (key, value))
    if normalize:
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        read = geometric_attention(
            query,
            key,
            jnp.concatenate([value, ones], axis=-1).astype(sum_type(value)),
            direction=direction,
            scale=scale,
            offset=offset,
            key_mask=key_mask,
            block_size=block_size,
            tolerance=tolerance,
            implementation=implementation,
        )
        return (read[..., :-1] / jnp.maximum(read[..., -1:], NORM_EPSILON)).astype(result_type(value))
    if by_kernel(implementation, query, value):
        from lenmem.ops.pallas import geometric

        query = query.astype(sum_type(query)) * or_default(scale, query)
        read = geometric.attention(query, key, value, direction, offset, key_mask, tolerance=tolerance)
        return read.astype(result_type(value))
    if implementation == "auto" and platform() == "tpu" and block_size is None:
        block_size = TPU_BLOCK
    if tolerance is not None:
        block_size = HORIZON_BLOCK if block_size is None else block_size
        return within_horizon(query, key, value, direction, scale, offset, key_mask, block_size, tolerance)
    if block_size is not None and block_size < query.shape[-2]:
        return _by_targets(query, key, value, direction, scale, offset, key_mask, block_size)
    return _attend(query, key, value, direction, scale, offset, key_mask, 0)


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
    weights = _weights(_visible(match_logits(query, key, direction, scale, offset, start), key_mask, start), start)
    weights = weights.astype(result_type(value))
    read = jnp.einsum("...ij,...jv->...iv", weights, value, preferred_element_type=sum_type(value))
    return read.astype(result_type(value))


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
        return jnp.moveaxis(in_tiles(rows, size), -3, 0)

    @jax.checkpoint
    def attend(start: jax.Array, query: jax.Array, direction: jax.Array | None) -> jax.Array:
        return _attend(query, key, value, direction, scale, offset, key_mask, start)

    queries = blocks(query)
    starts = size * jnp.arange(queries.shape[0])
    read = jax.lax.map(lambda block: attend(*block), (starts, queries, jax.tree.map(blocks, direction)))
    read = jnp.moveaxis(read, 0, -3)
    *leading, tiles, size, width = read.shape
    return read.reshape(*leading, tiles * size, width)[..., :length, :]


def _visible(logits: jax.Array, key_mask: jax.Array | None, start: jax.Array | int) -> jax.Array:
    """-inf where there is nothing to attend to: the target itself, padding, and rows after the last target."""
    rows, columns = positions(logits, start)
    visible = (rows != columns) & (rows < logits.shape[-1])
    if key_mask is not None:
        visible = visible & key_mask[..., None, :]
    return jnp.where(visible, logits, -jnp.inf)


def _weights_forward(logits: jax.Array, start: jax.Array | int) -> tuple[jax.Array, tuple]:
    losses = softplus(logits)  # -log(1 - P), and log P = logits - losses
    weights = jnp.exp(logits - losses - _sums_before(losses, start))
    return weights, (logits, weights, start)


def _weights_backward(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, None]:
    logits, weights, start = kept
    shares = cotangent * weights
    return shares - jax.nn.sigmoid(logits) * (shares + _sums_after(shares, start)), None


_weights = with_gradient(_weights_forward, _weights_backward)


def _sums_before(terms: jax.Array, start: jax.Array | int) -> jax.Array:
    """For each key, the sum over all closer keys."""
    left, right = _outward(terms, start)
    before = running_sums(left + right)
    return _inward(before, before + left, start, terms.shape[-1])


def _sums_after(terms: jax.Array, start: jax.Array | int) -> jax.Array:
    """For each key, the sum over all farther keys: the transpose of `_sums_before`."""
    left, right = _outward(terms, start)
    after = running_sums(left + right, reverse=True)
    return _inward(after + right, after, start, terms.shape[-1])


def _outward(terms: jax.Array, start: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """[..., n, N] -> (left, right) [..., n, H] with left_ip = terms_i,i-p and right_ip = terms_i,i+1+p, else 0.

    H is at least N. If H = N, the last entry of the last row's right half belongs to the next row. That row either does
    not exist or lies after the last target, where everything is 0.
    """
    *leading, rows, columns = terms.shape
    half = whole_runs(columns)
    if isinstance(start, int):
        around = (half - 1 - start, half + start - columns)
        padded = jnp.pad(terms, [(0, 0)] * (len(leading) + 1) + [around])
    else:
        padded = jnp.zeros((*leading, rows, 2 * half - 1), terms.dtype)
        padded = jax.lax.dynamic_update_slice_in_dim(padded, terms, half - 1 - start, axis=-1)
    halves = to_relative(padded, 2 * half)
    return jnp.flip(halves[..., :half], axis=-1), halves[..., half:]


def _inward(left: jax.Array, right: jax.Array, start: jax.Array | int, columns: int) -> jax.Array:
    """The inverse of `_outward`."""
    half = left.shape[-1]
    halves = jnp.concatenate([jnp.flip(left, axis=-1), right], axis=-1)
    return jax.lax.dynamic_slice_in_dim(to_absolute(halves, 2 * half - 1), half - 1 - start, columns, axis=-1)
