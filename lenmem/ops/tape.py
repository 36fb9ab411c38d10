"""Reading a memory as a tape: the neighbours of the slots read last, and sharper read weights.

Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017, section 2 and appendix A (the RAM/tape baseline).

Shapes: `weights` and `mask` [..., T], `keys` [..., T, d]; any leading axes.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops.lie import masked_softmax


def shifted_keys(
    weights: Float[Array, "... T"], keys: Float[Array, "... T d"], mask: Bool[Array, "... T"] | None = None
) -> tuple[Float[Array, "... d"], Float[Array, "... d"]]:
    """The mean keys one slot to the left and to the right of the slots that were read (appendix A): (k_L, k_R).

    k_L = sum_{i > 1} w_i k_{i-1}, k_R = sum_{i < L} w_i k_{i+1} over the L unmasked slots, which are a prefix. Weight
    at an edge has no neighbour there and is lost: k_L = 0 if everything was read from the first slot. O(T d).
    """
    if mask is not None:
        weights, keys = jnp.where(mask, weights, 0), jnp.where(mask[..., None], keys, 0)
    left = jnp.einsum("...t,...td->...d", weights[..., 1:], keys[..., :-1, :])
    right = jnp.einsum("...t,...td->...d", weights[..., :-1], keys[..., 1:, :])
    return left, right


def sharpen(weights: Float[Array, "... T"], sharpness: Float[Array, "..."]) -> Float[Array, "... T"]:
    """w_i^gamma / sum_j w_j^gamma (Graves et al. 2014; appendix A), `sharpness` gamma >= 1.

    Weights need not sum to 1. Zeros stay zero, with zero gradient; a row of zeros is unchanged.
    """
    positive = weights > 0
    logarithms = jnp.log(jnp.where(positive, weights, 1))
    return masked_softmax(sharpness[..., None] * logarithms, positive)
