"""Positions as vectors."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Real


def sinusoidal(positions: Real[Array, ...], width: int) -> Float[Array, "... width"]:
    """Absolute positions as sines and cosines (Vaswani et al. 2017, section 3.5): any position, no table.

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)). In float32 the error grows
    with the position, as p 6e-8. O(width) each.
    """
    if width < 1:
        raise ValueError(f"width is {width}; it has to be at least 1")
    exponents = jnp.arange(0, width, 2, dtype=jnp.float32) / width
    angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :width]
