"""Position encodings as functions of integer positions. Positions may be any integers in any order.

Vectors that are added to states: `sinusoidal`. Rotations of queries and keys: `rotary`. Biases of attention logits:
`alibi`, `t5_buckets` (indices into a learned table), `fire_distances` (inputs of a learned network), and those of
Transformer-XL: `offset_logits` for positions 0, 1, 2, .., `relative_logits` for positions near each other, and
`sinusoidal_logits` for any positions. `random_positions` draws positions for any of these. `forgetting` is a bias that
depends on the input.

Shapes: positions int[..., N], [..., Q] for queries, [..., K] for keys. All biases except `fire_distances` are unchanged
if all positions are shifted by the same amount, and so are the products of rotated queries and keys.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Real

from lenmem.ops.chunks import finite_logarithms, result_type, sum_type
from lenmem.ops.outward import sums_between


def sinusoidal(positions: Real[Array, ...], width: int) -> Float[Array, "... width"]:
    """Absolute positions as sines and cosines (Vaswani et al. 2017, section 3.5), for any position and without a table.

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)). In float32 the error is about
    6e-8 p. O(width) per position. Raises ValueError for a width below 1.
    """
    if width < 1:
        raise ValueError(f"width is {width}; it must be at least 1")
    angles = positions[..., None].astype(jnp.float32) * _frequencies(width)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :width]


def _frequencies(width: int) -> jax.Array:
    """10000^(-2i / width) for i = 0, 1, .. below width / 2."""
    return 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)


def rotary(vectors: Float[Array, "... N d"], positions: Int[Array, "... N"]) -> Float[Array, "... N d"]:
    """Queries or keys rotated by their positions (RoPE; Su et al. 2021, equation 34). Raises ValueError for an odd d.

    Columns 2i and 2i + 1 rotate by the angle p 10000^(-2i / d). The product of a rotated query and a rotated key
    depends on positions only through their distance. O(N d).
    """
    width = vectors.shape[-1]
    if width % 2:
        raise ValueError(f"rotary positions rotate pairs of columns; the width is {width}, which is odd")
    angles = positions[..., None].astype(jnp.float32) * _frequencies(width)
    sine, cosine = jnp.sin(angles).astype(result_type(vectors)), jnp.cos(angles).astype(result_type(vectors))
    first, second = vectors[..., 0::2], vectors[..., 1::2]
    turned = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
    return turned.reshape(vectors.shape)


def alibi(queries: Int[Array, "... Q"], keys: Int[Array, "... K"], heads: int) -> Float[Array, "... heads Q K"]:
    """Logits that decrease with the distance (ALiBi; Press, Smith & Lewis 2022, section 3): -m_h |i - j|.

    If the number n of heads is a power of two, the slopes m_h are 2^(-8 h / n), h = 1 .. n. Otherwise, as in the
    authors' code, they are the slopes for the next lower power of two, and then every other slope for twice that power.
    Keys to the left and to the right of a query are treated alike. O(heads Q K). Raises ValueError without a head.
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
    """The index of the learned bias, out of `buckets`, for each pair (T5; Raffel et al. 2020, section 2.1).

    Each side has n buckets. The first n / 2 hold the distances 0 .. n / 2 - 1. The others are logarithmically spaced:
    distance r goes to n / 2 + floor(n / 2 log(2 r / n) / log(2 furthest / n)), and to the last bucket from `furthest`
    on. Keys on the left use the first half of the buckets, keys on the right the second. If `causal`, all buckets are
    for keys on the left, and a key on the right has distance 0. O(Q K). Raises ValueError for fewer than 4 buckets, and
    if `furthest` is not more than the number of distances that have their own bucket.
    """
    side = buckets if causal else buckets // 2
    near = side // 2
    if buckets < 4 or near >= furthest:
        raise ValueError(
            f"buckets is {buckets} and furthest {furthest}: there must be at least 4 buckets, and furthest must be "
            f"more than {near}, the number of distances that have a bucket of their own"
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
    """Distances between -1 and 1 for a network that outputs biases (FIRE; Li et al. 2024, equations 3 and 4).

        psi(i - j) / psi(max(i, threshold)),  psi(x) = log(scale x + 1)

    for a key j up to the query i; for a key on the right, minus the distance with i and j exchanged. Positions are at
    least 0; `scale` and `threshold` are learned and positive. Distances are relative to the query's position, so they
    have the same range for sequences of any length, unlike the other encodings here. O(Q K).
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
    """v_i . T_(i - j), with i - j clipped to the range of the table: the content-dependent bias of a distance
    (Transformer-XL; Dai et al. 2019, terms b and d of section 3.3, with v_i = q_i + v and T = W_R sinusoidal).

    The rows of `table` are the offsets i - j = -m .. m, so their number is odd; ValueError otherwise. `queries` and
    `keys` have the leading axes of `vectors`, or fewer. O(Q m d + Q K).
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
    """v_i . p_{j - i} with sinusoids p, without a table of offsets. d must be even.

    A sinusoid of a difference is a rotated sinusoid, sin(aj - ai) = cos(ai) sin(aj) - sin(ai) cos(aj), so this equals
    R_{-i} v_i . p_j with the rotation R of `rotary`. It is meant for positions that are far apart; in float32 the error
    grows with the positions, as for `sinusoidal`. `queries` and `keys` have the leading axes of `vectors`, or fewer.
    O(Q K d).
    """
    return rotary(vectors, -queries) @ jnp.swapaxes(sinusoidal(keys, vectors.shape[-1]), -1, -2)


def offset_logits(
    vectors: Float[Array, "... N heads d"], table: Float[Array, "offsets heads d"]
) -> Float[Array, "... heads N N"]:
    """v_i . T_{j - i} for positions 0 .. N - 1, with the rows of `table` for the offsets 1 - N .. N - 1.

    Either each vector is multiplied by the N rows of its window of the table; the windows are N^2 heads d numbers. Or
    it is multiplied by all rows, and `shifted` selects N products; these are 2 N^2 heads numbers for each sequence. The
    form with fewer numbers is taken: windows if d is at most twice the number of sequences. O(N^2 heads d) operations
    for each sequence. Raises ValueError if the table does not have 2N - 1 rows.
    """
    *batch, length, heads, width = vectors.shape
    if len(table) != 2 * length - 1:
        raise ValueError(f"the table has {len(table)} rows; {length} positions need {2 * length - 1}")
    if width > 2 * math.prod(batch):
        return shifted(jnp.einsum("...qhd,ohd->...hqo", vectors, table))
    columns = jnp.moveaxis(table, 0, -1)
    window = functools.partial(jax.lax.dynamic_slice_in_dim, columns, slice_size=length, axis=-1)
    windows = jax.vmap(window)(length - 1 - jnp.arange(length))  # [N, heads, d, N]
    rows = jnp.moveaxis(vectors.reshape(-1, length, heads, width), 0, 2)  # [N, heads, B, d]: a product for each i
    return jnp.transpose(rows @ windows, (2, 1, 0, 3)).reshape(*batch, heads, length, length)


def shifted(scores: Float[Array, "... N offsets"]) -> Float[Array, "... N N"]:
    """Converts scores by offset, 2N - 1 of them, to scores by key: y_ij = x_{i, j - i + N - 1} (Dai et al. 2019,
    appendix B).

    In the flattened, padded array each row starts one entry later than the row before, so a reshape suffices. O(N^2).
    """
    length = scores.shape[-2]
    flat = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, 1)]).reshape(*scores.shape[:-2], -1)
    flat = flat[..., length - 1 : length - 1 + length * (2 * length - 1)]
    return flat.reshape(*scores.shape[:-2], length, 2 * length - 1)[..., :length]


def random_positions(key: Array, lengths: Int[Array, "..."], capacity: int, maximum: int) -> Int[Array, "... capacity"]:
    """Ascending positions drawn from 0 .. maximum - 1 without replacement (Ruoss et al. 2023, section 3).

    Every subset of `lengths` positions is equally likely. All positions occur in training, so longer sequences have no
    unseen positions. A row's draw depends on its length but not on `capacity`; entries beyond its length are arbitrary.
    If the length exceeds `maximum`, the last position is repeated. O(maximum log maximum) per row. ValueError for a
    capacity or maximum below 1.
    """
    if capacity < 1 or maximum < 1:
        raise ValueError(f"capacity and maximum must be at least 1, got {capacity} and {maximum}")
    draws = jax.random.uniform(key, (*lengths.shape, maximum))
    chosen = jnp.argsort(draws, axis=-1)[..., :capacity]
    numbers = jnp.where(jnp.arange(chosen.shape[-1]) < lengths[..., None], chosen, maximum)
    ascending = jnp.minimum(jnp.sort(numbers, axis=-1), maximum - 1)
    spare = [(0, 0)] * lengths.ndim + [(0, capacity - chosen.shape[-1])]
    return jnp.pad(ascending, spare, mode="edge")


def forgetting(log_gates: Float[Array, "... N"]) -> Float[Array, "... N N"]:
    """sum_{l=j+1..i} g_l for queries i and keys j <= i, with g = `log_gates` <= 0; 0 for j > i (Lin et al. 2025).

    If it is added to the logits of a causal softmax, each weight, before it is normalised, is multiplied by the gates
    of all positions after its key, up to the query. With a constant g it is ALiBi. Lin et al., "Forgetting
    Transformer", ICLR 2025 (arXiv 2503.02130), section 3.1. Sums are float32. O(N^2).
    """
    return sums_between(finite_logarithms(log_gates, sum_type(log_gates))).astype(result_type(log_gates))
