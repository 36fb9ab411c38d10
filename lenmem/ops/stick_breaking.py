"""Stick-breaking attention: every position attends to its closest match on the left.

Tan et al., "Stick-breaking Attention", ICLR 2025 (arXiv 2410.17980). It is geometric attention (`lenmem.ops.geometric`)
that looks only to the left; shapes and dtypes are the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops import pallas
from lenmem.ops.chunks import result_type, sum_type
from lenmem.ops.gradients import with_gradient
from lenmem.ops.outward import (
    Scalar,
    by_kernel,
    check,
    match_logits,
    or_default,
    padded_sums,
    positions,
    softplus,
)


def stick_breaking_weights(
    logits: Float[Array, "... Q N"], visible: Bool[Array, "... Q N"] | None = None
) -> Float[Array, "... Q N"]:
    """Weights A of logits x in which a query takes the first match from the right (Tan et al., ICLR 2025, 2410.17980).

        A_ij = P_ij prod_{k > j} (1 - P_ik),  P = sigmoid(x)

    over the visible keys. If the visible keys are all j < i, this is geometric attention that looks only to the left. A
    row sums to 1 - prod_k (1 - P_ik). Invisible keys get weight exactly 0. The result has the dtype of the logits.

    The gradient is that of `geometric_attention_weights`, where keys further to the left are farther away. O(Q N).
    """
    wide = logits.astype(sum_type(logits))
    if visible is not None:
        wide = jnp.where(visible, wide, -jnp.inf)
    return _stick_breaking(wide).astype(result_type(logits))


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

    This is geometric attention in which a target sees only earlier positions. The scale defaults to 1 / sqrt(d).
    `key_mask`, dtypes and `implementation` are as for `geometric_attention`. O(N^2 (d + d_v)) time; O(N^2) memory with
    XLA, O(N (d + d_v)) with the kernel. Raises ValueError in the same cases as `geometric_attention`.
    """
    pallas.checked(implementation)
    check(query, key, value, None, None)
    if key_mask is not None:
        key, value = (jnp.where(key_mask[..., None], x, 0) for x in (key, value))
    if by_kernel(implementation, query, value):
        from lenmem.ops.pallas import geometric

        query = query.astype(sum_type(query)) * or_default(scale, query)
        return geometric.attention(query, key, value, None, offset, key_mask, one_sided=True).astype(result_type(value))
    logits = match_logits(query, key, None, scale, offset, 0)
    rows, columns = positions(logits, 0)
    visible = rows > columns if key_mask is None else (rows > columns) & key_mask[..., None, :]
    weights = stick_breaking_weights(logits, visible).astype(result_type(value))
    read = jnp.einsum("...ij,...jv->...iv", weights, value, preferred_element_type=sum_type(value))
    return read.astype(result_type(value))


def _stick_breaking_forward(logits: jax.Array) -> tuple[jax.Array, tuple]:
    losses = softplus(logits)
    weights = jnp.exp(logits - losses - padded_sums(losses, reverse=True))
    return weights, (logits, weights)


def _stick_breaking_backward(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array]:
    logits, weights = kept
    shares = cotangent * weights
    return (shares - jax.nn.sigmoid(logits) * (shares + padded_sums(shares)),)


_stick_breaking = with_gradient(_stick_breaking_forward, _stick_breaking_backward)
