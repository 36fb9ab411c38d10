"""Positions, as functions of integer positions: any numbers in any order, so that they can be shifted or drawn.

Vectors to add: `sinusoidal`. Rotations of queries and keys: `rotary`. Biases of attention logits: `alibi`,
`t5_buckets` (of a learned table), `fire_distances` (of a learned network), and Transformer-XL's: `shifted` for 0, 1, 2,
.., `relative_logits` for numbers near each other, `sinusoidal_logits` for any. `random_positions` draws the numbers
themselves, for all of these.

Shapes: positions int[..., N], [..., Q] of queries, [..., K] of keys. Everything but `sinusoidal` and `fire_distances`
is the same for positions that are all shifted by one amount.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Real


def sinusoidal(positions: Real[Array, ...], width: int) -> Float[Array, "... width"]:
    """Absolute positions as sines and cosines (Vaswani et al. 2017, section 3.5): any position, no table.

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)). In float32 the error grows
    with the position, as p 6e-8. O(width) each.
    """
    if width < 1:
        raise ValueError(f"width is {width}; it has to be at least 1")
    angles = positions[..., None].astype(jnp.float32) * _frequencies(width)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :width]


def _frequencies(width: int) -> jax.Array:
    """10000^(-2i / width) for i = 0, 1, .. below width / 2."""
    return 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)


def rotary(vectors: Float[Array, "... N d"], positions: Int[Array, "... N"]) -> Float[Array, "... N d"]:
    """Queries or keys turned by their positions (RoPE; Su et al. 2021, equation 34): d even.

    Columns 2i and 2i + 1 turn by the angle p 10000^(-2i / d). The product of a turned query and a turned key depends on
    the distance of their positions alone. O(N d).
    """
    width = vectors.shape[-1]
    if width % 2:
        raise ValueError(f"rotary positions turn pairs of columns; the width is {width}, which is odd")
    angles = positions[..., None].astype(jnp.float32) * _frequencies(width)
    sine, cosine = jnp.sin(angles).astype(vectors.dtype), jnp.cos(angles).astype(vectors.dtype)
    first, second = vectors[..., 0::2], vectors[..., 1::2]
    turned = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
    return turned.reshape(vectors.shape)


def alibi(queries: Int[Array, "... Q"], keys: Int[Array, "... K"], heads: int) -> Float[Array, "... heads Q K"]:
    """Logits that fall with the distance (ALiBi; Press, Smith & Lewis 2022, section 3): -m_h |i - j|.

    Slopes m_h are 2^(-8 h / n), h = 1 .. n, for n heads, n a power of two; for other numbers of heads, as in the
    authors' code, those of the power below and then every other one of twice that power. Keys on both sides of a query
    are alike. O(heads Q K).
    """
    if heads < 1:
        raise ValueError(f"heads is {heads}; at least 1 is needed")
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)]
    return -jnp.asarray(slopes)[:, None, None] * jnp.abs(_distances(queries, keys))[..., None, :, :]


def _distances(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """i - j, float[..., Q, K]."""
    return (queries[..., :, None] - keys[..., None, :]).astype(jnp.float32)


def t5_buckets(
    queries: Int[Array, "... Q"],
    keys: Int[Array, "... K"],
    *,
    buckets: int = 32,
    furthest: int = 128,
    causal: bool = False,
) -> Int[Array, "... Q K"]:
    """Which of `buckets` learned biases belongs to a pair (T5; Raffel et al. 2020, section 2.1).

    Of n buckets for one side, the first n / 2 are of the distances 0 .. n / 2 - 1. The others are spaced in the
    logarithm: distance r is in n / 2 + floor(n / 2 log(2 r / n) / log(2 furthest / n)), from `furthest` on in the last.
    Keys on the left come first, those on the right in the second half; if `causal` all are for keys on the left, and a
    key on the right is at distance 0. O(Q K).
    """
    side = buckets if causal else buckets // 2
    near = side // 2
    if buckets < 4 or near >= furthest:
        raise ValueError(
            f"there are {buckets} buckets for distances up to {furthest}; at least 4 are needed, and fewer than "
            f"distances: {near} distances have a bucket of their own"
        )
    behind = queries[..., :, None] - keys[..., None, :]
    right = jnp.where((behind < 0) & (not causal), side, 0)
    distance = jnp.maximum(behind, 0) if causal else jnp.abs(behind)
    ratio = jnp.log(jnp.maximum(distance, near) / near) / jnp.log(furthest / near)
    far = jnp.minimum(near + (ratio * (side - near)).astype(jnp.int32), side - 1)
    return right + jnp.where(distance < near, distance, far)


def fire_distances(
    queries: Int[Array, "... Q"],
    keys: Int[Array, "... K"],
    scale: Float[Array, ""],
    threshold: Float[Array, ""],
) -> Float[Array, "... Q K"]:
    """Distances between -1 and 1 that a network turns into biases (FIRE; Li et al. 2024, equations 3 and 4).

        psi(i - j) / psi(max(i, threshold)),  psi(x) = log(scale x + 1)

    for a key j up to the query i; a key on its right has minus the distance with the two exchanged. Positions are at
    least 0; `scale` and `threshold` are learned, positive. A distance is relative to the length so far: it is the one
    encoding here that looks the same on sequences of any length. O(Q K).
    """
    behind = _distances(queries, keys)
    later = jnp.maximum(queries[..., :, None], keys[..., None, :]).astype(jnp.float32)
    later = jnp.maximum(later, threshold)
    return jnp.sign(behind) * jnp.log1p(scale * jnp.abs(behind)) / jnp.log1p(scale * later)


def relative_logits(
    vectors: Float[Array, "... Q d"],
    table: Float[Array, "... offsets d"],
    queries: Int[Array, "... Q"],
    keys: Int[Array, "... K"],
) -> Float[Array, "... Q K"]:
    """v_i . T_(i - j), clipped to the offsets there are: the content's view of distances (Transformer-XL; Dai et al.
    2019, terms b and d of section 3.3, with v_i = q_i + v and T = W_R sinusoidal).

    `table` is of the offsets i - j = -m .. m, an odd number of rows. `queries` and `keys` have the leading axes of
    `vectors`, or fewer. O(Q m d + Q K).
    """
    rows = table.shape[-2]
    if rows % 2 == 0:
        raise ValueError(f"the table has {rows} rows; it needs an odd number, for offsets -m .. m")
    scores = vectors @ jnp.swapaxes(table, -1, -2)
    offsets = jnp.clip(queries[..., :, None] - keys[..., None, :] + rows // 2, 0, rows - 1)
    return jnp.take_along_axis(scores, jnp.broadcast_to(offsets, (*scores.shape[:-1], offsets.shape[-1])), axis=-1)


def sinusoidal_logits(
    vectors: Float[Array, "... Q d"], queries: Int[Array, "... Q"], keys: Int[Array, "... K"]
) -> Float[Array, "... Q K"]:
    """v_i . p_{j - i} with sinusoids p, without a table of offsets: d even.

    A sinusoid of a difference is a turned one, sin(aj - ai) = cos(ai) sin(aj) - sin(ai) cos(aj), so that this is
    R_{-i} v_i . p_j with R of `rotary`. For positions far apart; in float32 the error grows with the positions, as that
    of `sinusoidal`. `queries` and `keys` have the leading axes of `vectors`, or fewer. O(Q K d).
    """
    return rotary(vectors, -queries) @ jnp.swapaxes(sinusoidal(keys, vectors.shape[-1]), -1, -2)


def shifted(scores: Float[Array, "... N offsets"]) -> Float[Array, "... N N"]:
    """Scores by offset, 2N - 1 of them, to scores by key: y_ij = x_{i, j - i + N - 1} (Dai et al. 2019, appendix B).

    Row i of the flattened, padded array starts one entry late for each row before it, so a reshape does it all. O(N^2).
    """
    length = scores.shape[-2]
    flat = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, 1)]).reshape(*scores.shape[:-2], -1)
    flat = flat[..., length - 1 : length - 1 + length * (2 * length - 1)]
    return flat.reshape(*scores.shape[:-2], length, 2 * length - 1)[..., :length]


def random_positions(key: Array, lengths: Int[Array, "..."], capacity: int, maximum: int) -> Int[Array, "... capacity"]:
    """Ascending positions drawn from 0 .. maximum - 1 without repetition (Ruoss et al. 2023, section 3).

    Every subset of `lengths` numbers is equally likely. In training all numbers occur, so that a longer sequence has no
    new ones. A row's draw depends on its own length, not on `capacity`; what lies beyond its length is arbitrary. A
    length beyond `maximum` repeats the last number. O(maximum log maximum) for each row.
    """
    if capacity < 1 or maximum < 1:
        raise ValueError(f"capacity and maximum must be at least 1, got {capacity} and {maximum}")
    draws = jax.random.uniform(key, (*lengths.shape, maximum))
    chosen = jnp.argsort(draws, axis=-1)[..., :capacity]
    numbers = jnp.where(jnp.arange(chosen.shape[-1]) < lengths[..., None], chosen, maximum)
    ascending = jnp.minimum(jnp.sort(numbers, axis=-1), maximum - 1)
    spare = [(0, 0)] * lengths.ndim + [(0, capacity - chosen.shape[-1])]
    return jnp.pad(ascending, spare, mode="edge")
