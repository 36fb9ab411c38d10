"""Parts of the Neural Data Router (Csordás, Irie & Schmidhuber 2022): geometric attention, and a layer with a copy
gate.

The softmax attention of the paper's other Transformers is here too. Initial distributions are those of the published
code. Traces `attention` [B, heads, N, N], with a row for each target, and `gate` [B, N].
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import Initializer, constant, zeros

from lenmem import ops
from lenmem.nn.attention import Entries, Layout, MultiHeadAttention
from lenmem.nn.dropout import dropped
from lenmem.nn.linear import Dense, glorot, uniform
from lenmem.nn.module import Part
from lenmem.nn.transformer import feedforward, linear_start

Update = Literal["norm", "tanh"]

UNSEEN = -1e9
"""A logit whose sigmoid is exactly 0 in float32."""


class ContentAttention(MultiHeadAttention):
    """Multi-head attention without biases, with uniform initialisation."""

    use_bias: bool = False
    layout: Layout = Layout(merge="merge", flat=True)

    @nn.nowrap
    def starts(self) -> tuple[Initializer, Initializer, Initializer]:
        """U(-b, b) with b = sqrt(3 / d), sqrt(2 / d) and sqrt(1 / d)."""
        return uniform((3 / self.features) ** 0.5), uniform((2 / self.features) ** 0.5), uniform(self.features**-0.5)


class GatedPositionAttention(ContentAttention):
    """Softmax attention with a gate between relative and absolute positions (appendix B of the paper).

    As `MultiHeadAttention` with `relative` positions, but p_{j-i} is replaced, for each head, by

        r_i p_{j-i} + (1 - r_i) p_j,  r_i = sigmoid(W_r h_i + b_r)            (16-17)

    The paper has one gate r_i for all heads and writes p_{i-j}; its code has one gate per head. Cost O(N^2 d).
    """

    def setup(self):
        super().setup()
        start: dict[str, Any] = linear_start(None, self.features)
        self.relative_gate = Dense(self.heads, **start, **self.dtypes)

    def logits(self, queries: jax.Array, query: jax.Array, seen: Entries, *, deterministic: bool) -> jax.Array:
        """[B, heads, Q, N]."""
        encoding: Any = self.scores
        mode: dict[str, Any] = {"deterministic": deterministic}
        by_content, key, relative = encoding(query, seen.keys, seen.positions, seen.positions, **mode)
        keys = encoding.keys_at(seen.positions, query.dtype, **mode)
        absolute = jnp.einsum("bqhk,nhk->bhqn", query + encoding.position_bias.astype(query.dtype), keys)
        gate = jnp.swapaxes(nn.sigmoid(self.relative_gate(queries).astype(jnp.float32)), 1, 2)[..., None]
        return jnp.einsum("bqhk,bnhk->bhqn", by_content, key) + gate * relative + (1 - gate) * absolute


class GeometricAttention(ContentAttention):
    """Attention to the nearest match by content and direction: with weights A of Eq. 6-8 (`ops`), y = W_o A W_v h.

        logit_ij = alpha (W_q h_i + b_q) . W_k h_j + beta D_ij + gamma                                          (10)
        D_ij = w_R . h_i + b_R for j right of i, w_L . h_i + b_L for j left of i                                 (9)

    for each head; alpha, beta and gamma (initially 1 / sqrt(d_head), 1 and 0) are shared by all heads. The weights of a
    target sum to at most 1; with `normalize` they sum to 1, as in the published models without a gate. If `causal`,
    columns on the right are ignored, like padding. Cost O(N^2 d); memory O(N block_size) with a `block_size`. Raises
    ValueError for `normalize` with `block_size` or `tolerance`.
    """

    normalize: bool = False
    """Divide the weights of a target by their sum."""
    block_size: int | None = None
    """Number of targets that are processed at a time, for long inputs; None: all."""
    tolerance: float | None = None
    """Stop when at most this probability is left; None: process all keys."""

    @nn.nowrap
    def starts(self) -> tuple[Initializer, Initializer, Initializer]:
        """U(-b, b) with b = sqrt(6 / (d + d_head))."""
        init = uniform((6 / (self.features + self.features // self.heads)) ** 0.5)
        return init, init, init

    def setup(self):
        super().setup()
        size, kind = self.features // self.heads, self.param_dtype
        self.direction = Dense(2 * self.heads, **linear_start(None, self.features), **self.dtypes)
        self.query_bias = self.param("query_bias", zeros, (self.heads, size), kind)
        self.content_scale = self.param("content_scale", constant(size**-0.5), (), kind)
        self.direction_scale = self.param("direction_scale", constant(1.0), (), kind)
        self.offset = self.param("offset", zeros, (), kind)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, states: jax.Array, mask: jax.Array, *_: Any, deterministic: bool = True
    ) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]; a column that sees no other column gets 0."""
        if self.normalize and not (self.block_size is None and self.tolerance is None):
            raise ValueError("block_size and tolerance need weights that are not normalized")

        def heads_first(x: jax.Array) -> jax.Array:
            return jnp.swapaxes(x.reshape(*x.shape[:2], self.heads, -1), 1, 2)

        query = self.projections("query", states)
        query = heads_first(query + self.query_bias.astype(query.dtype))
        key, value = (heads_first(self.projections(name, states)) for name in ("key", "value"))
        key = self.drop_keys(key, deterministic=deterministic)
        direction = heads_first(self.direction(states))
        direction = self.direction_scale.astype(direction.dtype) * direction
        if self.causal:
            direction = direction.at[..., 1].set(UNSEEN)
        scores = {"direction": direction, "scale": self.content_scale, "offset": self.offset}
        if self.normalize or self.is_mutable_collection("traces"):
            logits = ops.geometric_attention_logits(query, key, **scores)
            weights = ops.geometric_attention_weights(logits, mask[:, None], normalize=self.normalize)
            self.sow("traces", "attention", weights)
            mixed = weights.astype(value.dtype) @ value
        else:
            blocks: dict[str, Any] = {"block_size": self.block_size, "tolerance": self.tolerance}
            mixed = ops.geometric_attention(query, key, value, key_mask=mask[:, None], **scores, **blocks)
        return self.projections.merged(jnp.swapaxes(mixed, 1, 2))


class GatedLayer(Part):
    """A layer with a copy gate (section 2.1), which copies a column until its operands have been computed.

        a = LayerNorm(h + drop(Attention(h)))                                (1)
        u = LayerNorm(W_2 drop(relu(W_1 a)))                                 (2)   or tanh(W_2 drop(relu(W_1 a)))
        g = sigmoid(V_2 drop(relu(V_1 a)))                                   (3)   a vector
        h' = (1 - g) h + g u                                                 (4)

    All maps have biases; that of V_2 is initialised as -3, which makes g small. There is no other residual connection.
    In training, each column is copied regardless of its gate with probability `gate_drop`, as in the paper's code; its
    text does not mention this. The trace is the mean of g over the d units.
    """

    attention: nn.Module
    feedforward_size: int = 512
    gate_size: int | None = None
    """Hidden width of the gate's network; None: d."""
    update: Update = "norm"
    """`norm`: LayerNorm in (2), with geometric attention; `tanh`: with the other kinds."""
    dropout: float = 0.0
    gate_drop: float = 0.0

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *seen: Any, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N], further inputs of the attention -> [B, N, d]."""
        width = states.shape[-1]
        mode: dict[str, Any] = {"deterministic": deterministic}
        attended = dropped(self.attention(states, mask, *seen, **mode), self.dropout, **mode)
        merged = nn.LayerNorm(1e-5, **self.dtypes, name="attention_norm")(states + attended)

        def network(name: str, hidden_size: int, second: dict[str, Any]) -> jax.Array:
            first = linear_start(2**0.5, width)
            return feedforward(self, merged, hidden_size, name=name, first=first, second=second, **mode)

        by_norm = self.update == "norm"
        change = network(
            "feedforward", self.feedforward_size, linear_start(5 / 3 if by_norm else None, self.feedforward_size)
        )
        change = nn.LayerNorm(1e-5, **self.dtypes, name="update_norm")(change) if by_norm else jnp.tanh(change)
        shut = {"kernel_init": glorot(), "bias_init": nn.initializers.constant(-3.0)}
        gate = nn.sigmoid(network("gate", self.gate_size or width, shut).astype(jnp.float32))
        if self.gate_drop and not deterministic:
            kept = jax.random.bernoulli(self.make_rng("gate"), 1 - self.gate_drop, (*mask.shape, 1))
            gate = jnp.where(kept, gate, 0)
        self.sow("traces", "gate", jnp.mean(gate, axis=-1))
        return (states + gate * (change - states)).astype(states.dtype)
