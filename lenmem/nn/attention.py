"""Multi-head scaled dot-product attention, additive attention, and attention by location."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import Initializer, constant

from lenmem.nn.dropout import Dropout
from lenmem.nn.linear import Dense, DenseGeneral, Linear, glorot
from lenmem.nn.module import Part, in_pieces
from lenmem.nn.positions import ADDED, PositionScores
from lenmem.ops import (
    forgetting,
    linear_attention,
    masked_softmax,
    normalized_outer_product_attention,
    stick_breaking_attention,
    stick_breaking_weights,
)

Weighting = Literal["softmax", "stick_breaking", "forgetting"]
Mixing = Literal["outer_product", "linear", "softmax"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The storage of attention parameters, which differs between saved networks. The computation is the same."""

    nested: bool = False
    """The four linear maps are in their own scope, `projections`."""
    merge: str = "out"
    """The name of the output map."""
    flat: bool = False
    """Kernels are [d, heads d_head], not [d, heads, d_head]."""
    joined: bool = False
    """The parameters of positions are beside the maps, not in their own scope."""


class Entries(NamedTuple):
    """The entries that queries attend to: N entries with precomputed keys and values."""

    keys: jax.Array
    """[B, N, heads, d_head]."""
    values: jax.Array
    """[B, N, heads, d_head]."""
    visible: jax.Array
    """bool[B or 1, Q or 1, N]: the entries that each query may see."""
    positions: jax.Array | None = None
    """int[N] or int[B, N]: positions of the entries; None: they have no effect."""
    at: jax.Array | None = None
    """int[Q] or int[B, Q]: positions of the queries; None: query i is entry i."""
    table: jax.Array | None = None
    """[2N - 1, heads, d_head]: keys of the offsets between entries, if positions are relative."""


class Projections(Part):
    """The linear maps of attention: from states to the queries, keys and values of all heads, and the output map.

    Fields as in `MultiHeadAttention`.
    """

    features: int
    heads: int
    out_features: int
    use_bias: bool
    starts: tuple[Initializer, Initializer, Initializer]
    """Initial distributions of the query map, the key and value maps, and the output map."""
    layout: Layout

    def setup(self):
        options: dict[str, Any] = {"use_bias": self.use_bias, **self.dtypes}
        of_query, of_key, of_result = self.starts

        def to_heads(init: Initializer) -> nn.Module:
            if self.layout.flat:
                return Dense(self.features, kernel_init=init, **options)
            return DenseGeneral((self.heads, self.features // self.heads), kernel_init=init, **options)

        self.query, self.key, self.value = to_heads(of_query), to_heads(of_key), to_heads(of_key)
        options |= {"kernel_init": of_result, "name": self.layout.merge}
        wide = self.out_features
        self.merge = Dense(wide, **options) if self.layout.flat else DenseGeneral(wide, axis=(-2, -1), **options)

    def __call__(self, name: Literal["query", "key", "value"], states: jax.Array) -> jax.Array:
        """[B, N, e] -> [B, N, heads, d_head]."""
        return getattr(self, name)(states).reshape(*states.shape[:-1], self.heads, self.features // self.heads)

    def merged(self, means: jax.Array) -> jax.Array:
        """[B, Q, heads, d_head] -> [B, Q, d]."""
        return self.merge(means.reshape(*means.shape[:-2], self.heads * means.shape[-1]) if self.layout.flat else means)


class MultiHeadAttention(Part):
    """Scaled dot-product attention with `heads` heads (Vaswani et al. 2017). Cost O(Q N d).

        logit_ij = (q_i . k_j + s_ij) / sqrt(d_head),  y_i = W_o sum_j softmax_j(logit_ij) v_j

    for each head; q, k and v are linear in the states, and `encoding` computes s from positions and transforms q. The
    softmax is in float32. Keys and values can be precomputed (`entries`). Traces `attention` [B, heads, Q, N].

    Two other weightings are for causal self-attention. With `stick_breaking` (Tan et al. 2025) a state takes the
    nearest match before it. With `forgetting` (Lin et al. 2025) each state l has a gate f_l = sigmoid(w . h_l + b) for
    each head, and the weight of entry j for query i is multiplied by the gates f_{j+1} .. f_i.

    Weights are [B, heads, Q, N]. Stick-breaking attention computes no weights, but calls
    `ops.stick_breaking_attention` (a kernel on a TPU), unless weights are traced or dropped, positions add to the
    logits, or `seen` hides some of the earlier real states. Raises ValueError if `heads` do not divide `features`.
    """

    features: int
    """Width of queries, keys and values, all heads together."""
    heads: int
    encoding: PositionScores | None = None
    """The effect of positions on the logits; None: no effect."""
    causal: bool = False
    """State t sees only states 0 .. t."""
    weighting: Weighting = "softmax"
    """The weights of the logits."""
    dropout: float = 0.0
    """Dropout of the weights."""
    key_dropout: float = 0.0
    """Dropout of the keys."""
    learned_scale: bool = False
    """Learn the scale, starting from 1 / sqrt(d_head)."""
    out_features: int | None = None
    """d: width of the output; None: `features`."""
    use_bias: bool = True
    """Whether the linear maps have biases."""
    kernel_init: Initializer = nn.initializers.lecun_normal()
    """Initial distribution of the linear maps."""
    layout: Layout = Layout()
    """The storage of the parameters."""

    def setup(self):
        if self.features % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.features}")
        self.projections = Projections(
            features=self.features,
            heads=self.heads,
            out_features=self.out_features or self.features,
            use_bias=self.use_bias,
            starts=self.starts(),
            layout=self.layout,
            **self.dtypes,
        )
        if not self.layout.nested:
            nn.share_scope(self, self.projections)
        self.scores = self.encoding
        if self.layout.joined and self.encoding is not None:
            self.scores = self.encoding.clone()  # a field has its own scope inside `nn.scan`
            nn.share_scope(self, self.scores)
        root = (self.features // self.heads) ** -0.5
        self.scale = self.param("scale", constant(root), (), self.param_dtype) if self.learned_scale else root
        if self.weighting == "forgetting":
            self.forget = Dense(self.heads, **self.dtypes)
        self.drop, self.drop_keys = Dropout(self.dropout), Dropout(self.key_dropout)

    @nn.nowrap
    def starts(self) -> tuple[Initializer, Initializer, Initializer]:
        """Initial distributions of the query map, the key and value maps, and the output map."""
        return self.kernel_init, self.kernel_init, self.kernel_init

    def entries(
        self, states: jax.Array, mask: jax.Array, positions: jax.Array | None = None, *, deterministic: bool = True
    ) -> Entries:
        """Entries for states [B, N, e] at `positions`; `mask` as in the call. Masked states must be finite."""
        keys = self.drop_keys(self.projections("key", states), deterministic=deterministic)
        visible = mask[:, None] if mask.ndim == 2 else mask
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((states.shape[1],) * 2, bool))
        return Entries(keys, self.projections("value", states), visible, positions)

    def table(self, count: int, dtype: Any) -> jax.Array | None:
        """Keys of the offsets between any two of `count` entries, [2 count - 1, heads, d_head], if `relative`."""
        return None if self.scores is None else self.scores.table(count, dtype)

    def __call__(
        self,
        queries: jax.Array,
        seen: jax.Array | Entries,
        positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """States [B, Q, e] attend to `Entries`, or to themselves -> [B, Q, d]. Where nothing is visible, the mean of
        the values is zero, and the output is the bias of the output map.

        `seen` for self-attention: bool[B, N], the real states, or bool[B or 1, Q or 1, N], the states visible to each
        query.
        """
        query, mask = self.projections("query", queries), None
        if not isinstance(seen, Entries):
            mask, seen = seen, self.entries(queries, seen, positions, deterministic=deterministic)
        traced = self.is_mutable_collection("traces") or (self.dropout and not deterministic)
        if self.weighting == "stick_breaking" and mask is not None and mask.ndim == 2 and not traced:
            query, key, scores = self.placed(query, seen, deterministic=deterministic)
            if scores is None:
                query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, seen.values))
                means = stick_breaking_attention(query, key, value, scale=self.scale, key_mask=mask[:, None])
                return self.projections.merged(jnp.swapaxes(means, 1, 2))
        logits = self.logits(queries, query, seen, deterministic=deterministic)
        logits, visible = logits.astype(jnp.float32) * self.scale, seen.visible[:, None]
        if self.weighting == "stick_breaking":
            weights = stick_breaking_weights(logits, visible & jnp.tri(*logits.shape[-2:], k=-1, dtype=bool))
        elif self.weighting == "forgetting":
            gates = nn.log_sigmoid(self.forget(queries).astype(jnp.float32))
            logits = logits + forgetting(jnp.swapaxes(gates, 1, 2))
            weights = masked_softmax(logits, visible & jnp.tri(*logits.shape[-2:], dtype=bool))
        else:
            weights = masked_softmax(logits, visible)
        self.sow("traces", "attention", weights)
        weights = self.drop(weights, deterministic=deterministic).astype(seen.values.dtype)
        return self.projections.merged(jnp.einsum("bhqn,bnhk->bqhk", weights, seen.values))

    def logits(self, queries: jax.Array, query: jax.Array, seen: Entries, *, deterministic: bool) -> jax.Array:
        """q_i . k_j + s_ij, [B, heads, Q, N], from states [B, Q, e] and their queries [B, Q, heads, d_head]."""
        query, key, scores = self.placed(query, seen, deterministic=deterministic)
        logits = jnp.einsum("bqhk,bnhk->bhqn", query, key)
        return logits if scores is None else logits + scores

    def placed(
        self, query: jax.Array, seen: Entries, *, deterministic: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Queries, keys and s at their positions; None: s is 0."""
        if self.scores is None or seen.positions is None:
            return query, seen.keys, None
        at = seen.positions if seen.at is None else seen.at
        return self.scores(query, seen.keys, at, seen.positions, seen.table, deterministic=deterministic)


class MemoryAttention(MultiHeadAttention):
    """Multi-head attention without biases, with one of three kinds of weights.

    Nam & Seo, https://arxiv.org/abs/2302.09422, section 4.1:

        outer_product   y_i = (sum_s v_s k_s^T) q_i with unit q and k; no denominator
        linear          y_i = (sum_s v_s phi(k_s)^T) phi(q_i) / sum_s phi(k_s).phi(q_i), phi = elu + 1
        softmax         y_i = sum_s softmax_s(q_i.k_s / sqrt(d_k)) v_s

    The three are the same in all other respects, so that comparisons isolate the attention. Cost for N states of width
    d: O(N d^2 / heads) for the first two, O(N^2 d) for softmax.

    If the first two are causal and the collection `memory` is mutable, they start from the sums in this collection and
    store there the sums including these states, so a sequence can be read in pieces (`NAMTransformer.step`). Raises
    ValueError for an encoding that acts on logits of pairs, which only softmax has.
    """

    mixing: Mixing = "outer_product"
    mask_padding: bool = True
    """Ignore padding. False: padding is written too, as in the published code, so results depend on the padded
    length."""
    use_bias: bool = False
    kernel_init: nn.initializers.Initializer = glorot()

    def __call__(
        self, queries: jax.Array, seen: Any, positions: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """[B, N, d], bool[B, N], int[N] or int[B, N] for the encoding -> [B, N, d]."""
        seen = seen if self.mask_padding else jnp.ones_like(seen)
        if self.mixing == "softmax":
            return super().__call__(queries, seen, positions, deterministic=deterministic)
        if self.encoding is not None and self.encoding.positions not in (*ADDED, "none"):
            raise ValueError(
                f"positions is {self.encoding.positions!r}, which acts on logits of pairs; {self.mixing!r} attention "
                f"has none and allows {', '.join(ADDED)}, none"
            )
        kernel = normalized_outer_product_attention if self.mixing == "outer_product" else linear_attention
        query, key, value = (jnp.swapaxes(self.projections(x, queries), 1, 2) for x in ("query", "key", "value"))
        options: dict[str, Any] = {"causal": self.causal, "key_mask": seen[:, None, :]}
        if in_pieces(self):
            carry = self.get_variable("memory", "sums", None)
            read, carry = kernel(query, key, value, carry=carry, return_carry=True, **options)
            self.put_variable("memory", "sums", carry)
        else:
            read: Any = kernel(query, key, value, **options)
        return self.projections.merged(jnp.swapaxes(read, 1, 2).astype(value.dtype))


class AdditiveAttention(Part):
    """Attention by a small network (Bahdanau, Cho & Bengio 2015): e_j = v . tanh(W q + U m_j), weights softmax(e).

    `keys(memory)` gives U m_j, which is the same for all queries.
    """

    features: int
    """Width of the network's hidden layer."""

    def setup(self):
        self.of_query = Linear(self.features, **self.dtypes)
        self.of_memory = Linear(self.features, **self.dtypes)
        self.score = Linear(1, **self.dtypes)

    def keys(self, memory: jax.Array) -> jax.Array:
        """[B, N, d] -> U m_j, [B, N, features]."""
        return self.of_memory(memory)

    def __call__(self, query: jax.Array, keys: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, q], [B, N, features], bool[B, N] -> weights float32[B, N], exactly 0 where masked."""
        scores = self.score(jnp.tanh(self.of_query(query)[:, None] + keys))[..., 0]
        return masked_softmax(scores.astype(jnp.float32), mask)


class LocationAttention(Part):
    """Attention by location, independent of content (Luong, Pham & Manning 2015, Eq. 8): weights softmax(W q + b).

    Each of `max_positions` locations has its own row of W. Rows beyond the longest training input are never trained.
    The softmax is over the real positions of a row.
    """

    max_positions: int
    """Longest memory, including padding."""

    @nn.nowrap
    def keys(self, memory: jax.Array) -> None:
        """None, since content has no effect. Raises ValueError for a memory longer than `max_positions`."""
        if memory.shape[1] > self.max_positions:
            raise ValueError(
                f"an input of {memory.shape[1]} positions (padding included) is longer than max_positions, "
                f"{self.max_positions}"
            )

    @nn.compact
    def __call__(self, query: jax.Array, keys: None, mask: jax.Array) -> jax.Array:
        """[B, q], bool[B, N] -> weights float32[B, N], exactly 0 where masked."""
        scores = Linear(self.max_positions, **self.dtypes, name="score")(query)
        return masked_softmax(scores[:, : mask.shape[-1]].astype(jnp.float32), mask)
