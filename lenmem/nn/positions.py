"""Position encodings for any Transformer, in the two places where they act.

    PositionVectors   vectors added to the states                     sinusoidal, learned
    PositionScores    rotated queries and keys, scores of pairs       rotary, relative, alibi, t5, fire

`none` acts in neither. `Numbered` assigns positions to the columns of a row: 0, 1, 2, .. or, for any encoding, random
positions (Ruoss et al. 2023). The functions are in `lenmem.ops.positions`.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.dropout import Dropout
from lenmem.nn.linear import BERT_STD, Dense, DenseGeneral
from lenmem.nn.module import Module, Part
from lenmem.types import Dtype

PositionEncoding = Literal["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "fire", "none"]
PositionKind = Literal["absolute", PositionEncoding]
"""`absolute` is the papers' name for `sinusoidal`."""
ADDED = ("sinusoidal", "learned")
"""Encodings that are added to the states."""

BUCKETS = 32
"""Number of distances in T5's table."""
FIRE_WIDTH, FIRE_SCALE, FIRE_THRESHOLD = 32, 0.1, 512.0
"""Hidden units of FIRE's network, and initial scale and threshold, as published."""


def encoding_of(positions: PositionKind) -> PositionEncoding:
    """The encoding with this name."""
    return "sinusoidal" if positions == "absolute" else positions


class Numbered(Module, kw_only=True):
    """Fields that determine the positions of columns, for models, encoders and decoders."""

    max_positions: PositiveInt = 2048
    """Longest row for learned or random positions, including answer slots and padding."""
    random_positions: bool = False
    """Draw the positions of a row's columns from 0 .. max_positions - 1, in ascending order (Ruoss et al. 2023), for
    any encoding. In training they are drawn anew at each step; otherwise they are the same for all rows of a length."""

    @property
    def numbering(self) -> dict[str, Any]:
        """Both fields, for submodules."""
        return {"max_positions": self.max_positions, "random_positions": self.random_positions}

    @nn.nowrap
    def numbered(self, mask: jax.Array, positions: PositionEncoding, *, deterministic: bool) -> jax.Array:
        """The positions of the columns bool[B, N]: 0 .. N - 1 int[N], or with `random_positions` int[B, N].

        Random positions depend on a row's own length, not on N. Each row draws them from the stream `address`; if
        `deterministic`, a constant key gives rows of equal length the same positions. Raises ValueError if N exceeds
        `max_positions` and positions are random or learned.
        """
        length = mask.shape[-1]
        if length > self.max_positions and (self.random_positions or positions == "learned"):
            raise ValueError(f"max_positions is {self.max_positions}; the padded rows have {length} positions")
        if not self.random_positions:
            return jnp.arange(length)
        lengths = jnp.sum(mask, axis=-1)
        if not deterministic:
            return ops.random_positions(self.make_rng("address"), lengths, length, self.max_positions)
        draw = jax.vmap(ops.random_positions, in_axes=(None, 0, None, None))
        return draw(jax.random.key(0), lengths, length, self.max_positions)

    @nn.nowrap
    def shifted(self, given: jax.Array, *, deterministic: bool) -> jax.Array:
        """The positions `given` int[B, N]. In training a random number is added to all positions of a row except 0, up
        to `max_positions` - 1, so that positions of longer rows are trained too (McLeish et al. 2024, Cho et al.
        2024)."""
        if deterministic:
            return given
        room = self.max_positions - jnp.max(given, axis=-1, keepdims=True)
        offset = jax.random.randint(self.make_rng("address"), room.shape, 0, jnp.maximum(room, 1))
        return jnp.where(given > 0, given + offset, 0)


SINUSOID_STD = 0.7
"""Root mean square of sinusoids, rounded. Learned positions beside token embeddings N(0, 1) start as large as these:
much smaller ones are hidden by the tokens, and answer slots, which differ in nothing else, learn slowly to differ."""


class PositionVectors(Part):
    """Vectors that are added to the states: sinusoids, rows of a learned table, initialised as N(0, std^2), or
    zeros."""

    positions: PositionEncoding = "sinusoidal"
    max_positions: int = 2048
    """Number of rows of the table."""
    std: float = BERT_STD
    """Initial standard deviation of a learned table: BERT's, whose tokens are as small."""

    @nn.compact
    def __call__(self, positions: jax.Array, width: int) -> jax.Array:
        """int[..., N] -> [..., N, width]; [1, width] for `none` and encodings of pairs."""
        if self.positions == "sinusoidal":
            return ops.sinusoidal(positions, width)
        if self.positions != "learned":
            return jnp.zeros((1, width))
        shape = self.max_positions, width
        table = self.param("embedding", nn.initializers.normal(self.std), shape, self.param_dtype)
        return jnp.take(table, positions, axis=0)


class AddPositions(nn.Module):
    """`input_scale` x + p, then dropout, if positions p are added; otherwise `input_scale` x.

    p are `position_scale` times sinusoids, or learned vectors that start with the root mean square of these.
    """

    positions: PositionEncoding
    input_scale: float = 1.0
    position_scale: float = 1.0
    dropout: float = 0.0
    max_positions: int = 2048
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, at: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d] at positions int[N] or int[B, N] -> [B, N, d]."""
        std = self.position_scale * SINUSOID_STD
        sizes: dict[str, Any] = {"max_positions": self.max_positions, "param_dtype": self.param_dtype, "std": std}
        vectors = PositionVectors(self.positions, **sizes, name="positions")
        states, signal = self.input_scale * states, vectors(at, states.shape[-1])
        if self.positions not in ADDED:
            return states
        if self.positions == "sinusoidal":
            signal = self.position_scale * signal
        return Dropout(self.dropout, deterministic=deterministic)(states + signal.astype(states.dtype))


class PositionScores(Part):
    """The effect of positions on the logits of attention, (q_i . k_j + s_ij) / sqrt(d_head), for each head.

        rotary     q_i and k_j are rotated                                                      Su et al. 2021
        relative   q_i + u for q_i;  s_ij = (q_i + v) . W p_{j-i}, sinusoids p                  Dai et al. 2019
        alibi      s_ij / sqrt(d_head) = -m |i - j|, a slope m for each head                    Press et al. 2022
        t5         s_ij / sqrt(d_head) = a learned number, for each bucket of distances         Raffel et al. 2020
        fire       s_ij / sqrt(d_head) = a network of one hidden layer, of relative distances   Li et al. 2024

    u and v are initialised as 0, T5's numbers as N(0, 1 / d). T5 shares these numbers between layers; here each layer
    has its own. Costs: O(N d^2 + N^2 d) for `relative`, with random positions `heads` times that; O(heads N^2) for the
    others, for `fire` 32 times that. Positions of keys with a single axis, int[K], must be consecutive, and the
    queries all of them or a single one.
    """

    positions: PositionEncoding
    heads: int
    features: int
    """d: width of queries and keys, all heads together."""
    causal: bool = False
    """Whether keys are never to the right of a query, so that all of T5's buckets are for keys on the left."""
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    """Initial distribution of W."""
    dropout: float = 0.0
    """Dropout of W p."""
    flat: bool = False
    """Store W as [d, heads d_head]; see `lenmem.nn.attention.Layout`."""

    def setup(self):
        shape = self.heads, self.features // self.heads
        params: dict[str, Any] = {"param_dtype": self.param_dtype}
        self.drop_positions = Dropout(self.dropout)
        if self.positions == "relative":
            zeros = nn.initializers.zeros
            kernel: dict[str, Any] = {"use_bias": False, "kernel_init": self.kernel_init, **self.dtypes}
            self.position = Dense(self.features, **kernel) if self.flat else DenseGeneral(shape, **kernel)
            self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
            self.position_bias = self.param("position_bias", zeros, shape, self.param_dtype)
        elif self.positions == "t5":
            normal = nn.initializers.normal(self.features**-0.5)
            self.buckets = self.param("buckets", normal, (BUCKETS, self.heads), self.param_dtype)
        elif self.positions == "fire":
            self.scale = self.param("scale", nn.initializers.constant(FIRE_SCALE), (), self.param_dtype)
            self.threshold = self.param("threshold", nn.initializers.ones, (), self.param_dtype)
            self.fire_in = Dense(FIRE_WIDTH, dtype=jnp.float32, **params)
            self.fire_out = Dense(self.heads, dtype=jnp.float32, **params)

    def mapped(self, vectors: jax.Array) -> jax.Array:
        """W applied to vectors [n, d]: [n, heads, d_head]."""
        return self.position(vectors).reshape(len(vectors), self.heads, -1)

    def keys_at(self, positions: jax.Array, dtype: Any, *, deterministic: bool = True) -> jax.Array:
        """W p for positions int[n]: [n, heads, d_head]."""
        keys = self.mapped(ops.sinusoidal(positions, self.features).astype(dtype))
        return self.drop_positions(keys, deterministic=deterministic)

    def table(self, count: int, dtype: Any, *, deterministic: bool = True) -> jax.Array | None:
        """W p for the offsets 1 - n .. n - 1 between n = `count` keys, [2n - 1, heads, d_head], if `relative`."""
        if self.positions != "relative":
            return None
        return self.keys_at(jnp.arange(1 - count, count), dtype, deterministic=deterministic)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        at: jax.Array,
        keys_at: jax.Array,
        table: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """q [B, Q, heads, d_head], k [B, K, heads, d_head], int[Q] or int[B, Q], int[K] or int[B, K] -> (q, k, s).

        s is [1 or B, heads, Q, K], or None. `table`: the precomputed result of `self.table`, if there is one.
        """
        root = (self.features // self.heads) ** 0.5
        if self.positions == "rotary":
            return _turned(query, at), _turned(key, keys_at), None
        if self.positions == "relative":
            placed = query + self.position_bias.astype(query.dtype)
            if table is None and at.ndim == 1:
                table = self.table(keys_at.shape[-1], query.dtype, deterministic=deterministic)
            return query + self.content_bias.astype(query.dtype), key, self.of_offsets(placed, at, keys_at, table)
        at, keys_at = jnp.atleast_2d(at), jnp.atleast_2d(keys_at)
        if self.positions == "alibi":
            return query, key, root * ops.alibi(at, keys_at, self.heads)
        if self.positions == "t5":
            found = ops.t5_buckets(at, keys_at, buckets=BUCKETS, causal=self.causal)
            return query, key, root * jnp.moveaxis(self.buckets[found], -1, -3)
        if self.positions == "fire":
            scale, threshold = jnp.abs(self.scale) + 1e-6, FIRE_THRESHOLD * jnp.abs(self.threshold)
            distances = ops.fire_distances(at, keys_at, scale, threshold)
            biases = self.fire_out(nn.relu(self.fire_in(distances[..., None])))
            return query, key, root * jnp.moveaxis(biases, -1, -3)
        return query, key, None

    def of_offsets(self, placed: jax.Array, at: jax.Array, keys_at: jax.Array, table: jax.Array | None) -> jax.Array:
        """(q_i + v) . W p_{j-i}, [B, heads, Q, K]."""
        if table is None or at.ndim > 1:  # offsets may be large, so a table of all of them would be large too
            kernel = self.mapped(jnp.eye(self.features, dtype=placed.dtype))
            vectors = jnp.einsum("bqhk,dhk->bhqd", placed, kernel).astype(jnp.float32)
            return ops.sinusoidal_logits(vectors, at[:, None], keys_at[:, None])
        if at.shape == keys_at.shape:
            return ops.offset_logits(placed, table)
        count = keys_at.shape[-1]
        if at.shape != (1,):
            raise ValueError(f"there are {at.shape[-1]} queries for {count} keys; allowed are 1 and {count}")
        scores = jnp.einsum("bqhk,ohk->bhqo", placed, table)
        return jax.lax.dynamic_slice_in_dim(scores, count - 1 - (at[0] - keys_at[0]), count, axis=-1)


def _turned(vectors: jax.Array, at: jax.Array) -> jax.Array:
    """[B, N, heads, d_head], int[N] or int[B, N]: applies rotary positions."""
    return jnp.swapaxes(ops.rotary(jnp.swapaxes(vectors, 1, 2), at[..., None, :]), 1, 2)
