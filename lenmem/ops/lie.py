"""Lie-access memory: moving a head by a group action, and reading by distance in key space.

Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017, sections 4.1 and 4.2. Two groups: the shifts R^2 acting on
the plane, and the rotations SO(3) acting on the sphere S^2. Both preserve the Euclidean distance, so a trail
x, ax, a(ax), ... written from one start can be followed from any other start.

Shapes: `position` [..., d], `keys` [..., T, d], `strengths` and `mask` [..., T], weights [..., T]; any leading axes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops.chunks import result_type, sum_type

EPSILON = 1e-10
STRENGTH_EPSILON = 1e-9


def unit(vector: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Projection to the unit sphere, x / sqrt(|x|^2 + 1e-10): pi of section 4.3. The zero vector stays zero."""
    wide = vector.astype(sum_type(vector))  # the constant is 0 in float16
    return (wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + EPSILON)).astype(
        result_type(vector)
    )


def translate(position: Float[Array, "... d"], action: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Action of the shift group R^d on R^d (section 4.1): a . q = q + a. Identity 0, inverse -a."""
    return position + action


def rotate(
    position: Float[Array, "... 3"], axis: Float[Array, "... 3"], angle: Float[Array, "..."]
) -> Float[Array, "... 3"]:
    """Action of SO(3) on R^3 by Rodrigues' formula (section 4.1).

    (xi, theta) . q = q cos(theta) + (xi x q) sin(theta) + xi <xi, q> (1 - cos(theta)), `axis` xi of unit length,
    `angle` theta in radians. Identity theta = 0, inverse -theta.
    """
    cosine, sine = jnp.cos(angle)[..., None], jnp.sin(angle)[..., None]
    along = jnp.sum(axis * position, axis=-1, keepdims=True)
    return position * cosine + jnp.cross(axis, position) * sine + axis * along * (1 - cosine)


def bounded(action: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """a / sqrt(1 + |a|^2): the same direction with a norm below 1 (the published code's bound on shifts)."""
    wide = action.astype(sum_type(action))
    return (wide * jax.lax.rsqrt(1 + jnp.sum(jnp.square(wide), axis=-1, keepdims=True))).astype(result_type(action))


def squared_distances(
    position: Float[Array, "... d"], keys: Float[Array, "... T d"], mask: Bool[Array, "... T"] | None = None
) -> Float[Array, "... T"]:
    """d(q, k_i)^2 = |q - k_i|^2, in float32 for narrower inputs; on the sphere this is the chord, not the arc. Masked
    keys count as 0, so that they have no effect on gradients, even if they are not finite."""
    kind = sum_type(position, keys)
    keys = _finite(keys, mask).astype(kind)
    return jnp.sum(jnp.square(position.astype(kind)[..., None, :] - keys), axis=-1)


def _finite(keys: jax.Array, mask: jax.Array | None) -> jax.Array:
    return keys if mask is None else jnp.where(mask[..., None], keys, 0)


def strengthened(
    closeness: Float[Array, "... T"], strengths: Float[Array, "... T"], mask: Bool[Array, "... T"] | None
) -> Float[Array, "... T"]:
    """w_i = (s_i u_i + 1e-9) / (1e-10 + sum_j (s_j u_j + 1e-9)) over the unmasked slots.

    `closeness` u sums to 1. The 1e-9 is from the published code; with it, the weights are uniform if all strengths are
    near zero. Weights of masked slots are exactly 0.
    """
    kind = result_type(closeness, strengths)
    weighted = (strengths * closeness).astype(sum_type(closeness)) + STRENGTH_EPSILON
    if mask is not None:
        weighted = jnp.where(mask, weighted, 0)
    return (weighted / (jnp.sum(weighted, axis=-1, keepdims=True) + EPSILON)).astype(kind)


def inverse_square_weights(
    position: Float[Array, "... d"],
    keys: Float[Array, "... T d"],
    strengths: Float[Array, "... T"],
    mask: Bool[Array, "... T"] | None = None,
) -> Float[Array, "... T"]:
    """Read weights by the inverse square of the distance: w_i ~ s_i d(q, k_i)^-2 (section 4.2, w^(1)).

    At q = k_i the weights take their limit: all weight is on slot i, or divided among the slots with this key.
    Numerators are scaled by the smallest squared distance, so that nothing overflows and the gradient is finite there.
    If all slots are masked, all weights are zero. O(T d).
    """
    kind, distances = result_type(position, keys), squared_distances(position, keys, mask)
    if mask is not None:
        distances = jnp.where(mask, distances, 1.0 / EPSILON)
    # The scale cancels in the normalisation, so it needs no gradient.
    nearest = jax.lax.stop_gradient(jnp.min(distances, axis=-1, keepdims=True))
    closeness = (nearest + EPSILON) / (distances + EPSILON)
    if mask is not None:
        closeness = jnp.where(mask, closeness, 0)
    total = jnp.sum(closeness, axis=-1, keepdims=True)
    return strengthened((closeness / jnp.where(total > 0, total, 1)).astype(kind), strengths, mask)


def softmax_distance_weights(
    position: Float[Array, "... d"],
    keys: Float[Array, "... T d"],
    strengths: Float[Array, "... T"],
    temperature: Float[Array, "..."],
    mask: Bool[Array, "... T"] | None = None,
) -> Float[Array, "... T"]:
    """Read weights by an annealed softmax: w_i ~ s_i exp(-d(q, k_i)^2 / temperature) (section 4.2, w^(2)).

    `temperature` > 0; a higher one reads more uniformly. If all slots are masked, all weights are zero. O(T d).
    """
    distances = squared_distances(position, keys, mask)
    logits = -distances / temperature.astype(distances.dtype)[..., None]
    closeness = masked_softmax(logits, mask).astype(result_type(position, keys, temperature))
    return strengthened(closeness, strengths, mask)


def masked_softmax(logits: Float[Array, "... T"], mask: Bool[Array, "... T"] | None) -> Float[Array, "... T"]:
    """Softmax over the unmasked slots and exactly 0 elsewhere; if all slots are masked, all weights are zero."""
    return jax.nn.softmax(logits, axis=-1) if mask is None else _masked_softmax(logits, mask)


@jax.custom_jvp
def _masked_softmax(logits: jax.Array, mask: jax.Array) -> jax.Array:
    seen = jnp.where(mask, logits, -jnp.inf)
    peak = jnp.max(seen, axis=-1, keepdims=True)
    exponentials = jnp.exp(seen - jnp.where(jnp.isfinite(peak), peak, 0))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials / jnp.where(total > 0, total, 1)


@_masked_softmax.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
    """dw = w (dx - sum w dx), so that the weights are all that the backward pass needs."""
    weights = _masked_softmax(*primals)
    change = tangents[0]
    return weights, weights * (change - jnp.sum(weights * change, axis=-1, keepdims=True))


def dot_product_weights(
    position: Float[Array, "... d"],
    keys: Float[Array, "... T d"],
    strengths: Float[Array, "... T"],
    sharpness: Float[Array, "..."] | None = None,
    mask: Bool[Array, "... T"] | None = None,
) -> Float[Array, "... T"]:
    """Random-access weights w_i ~ s_i exp(gamma <q, k_i>) (section 2, the RAM baseline); gamma defaults to 1."""
    kind, wide = result_type(position, keys), sum_type(position, keys)
    logits = jnp.einsum("...d,...td->...t", position.astype(wide), _finite(keys, mask).astype(wide))
    if sharpness is not None:
        logits = logits * sharpness.astype(wide)[..., None]
    return strengthened(masked_softmax(logits, mask).astype(kind), strengths, mask)
