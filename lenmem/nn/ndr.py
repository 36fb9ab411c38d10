"""Parts of the Neural Data Router (Csordás, Irie & Schmidhuber 2022) and of the Transformers it is compared with.

Three kinds of self-attention, each `(states [B, N, d], mask bool[B, N]) -> [B, N, d]`: `GeometricAttention`,
`RelativeAttention` and `ContentAttention`; and two kinds of layer around one of them: `GatedLayer`, in which a column
may be copied unchanged, and `PostNormLayer`, the Transformer's. The initial distributions are those of the published
code. Traces `attention` [B, heads, N, N], row = target, and `gate` [B, N].
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.nn.linear import check_choices, uniform
from lenmem.nn.positions import PositionEncoding, PositionScores, numbered
from lenmem.types import Dtype

Update = Literal["norm", "tanh"]

UNSEEN = -1e9
"""A logit whose sigmoid, and whose share of a softmax, is exactly 0 in float32."""


def glorot(gain: float = 1.0) -> nn.initializers.Initializer:
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")


def dropped(module: nn.Module, x: jax.Array, rate: float) -> jax.Array:
    """`x` with entries dropped where `module` has a stream `dropout`."""
    return nn.Dropout(rate, deterministic=not module.has_rng("dropout"))(x) if rate else x


class Attention(nn.Module):
    """What the three kinds share: bias-free maps to and from `heads` heads, and a softmax over what may be seen."""

    heads: int = 1
    key_dropout: float = 0.0
    """Dropout of keys, afresh in every call; the weights themselves are not dropped."""
    causal: bool = False
    """Position t sees positions 0 .. t only."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.nowrap
    def head_size(self, width: int) -> int:
        """d_head = d / heads."""
        if width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {width}")
        return width // self.heads

    @nn.nowrap
    def linear(self, features: int, name: str, bound: float, *, bias: bool = False) -> nn.Dense:
        """A map whose weights (and bias, if any) are U(-bound, bound) at first."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        return nn.Dense(
            features, use_bias=bias, kernel_init=uniform(bound), bias_init=uniform(bound), name=name, **options
        )

    @nn.nowrap
    def split(self, x: jax.Array) -> jax.Array:
        """[..., N, heads k] -> [..., heads, N, k]."""
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.heads, -1), -2, -3)

    @nn.nowrap
    def join(self, x: jax.Array) -> jax.Array:
        """[..., heads, N, k] -> [..., N, heads k]."""
        x = jnp.swapaxes(x, -2, -3)
        return x.reshape(*x.shape[:-2], -1)

    @nn.nowrap
    def heads_of(self, states: jax.Array, bounds: tuple[float, float]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(queries, keys, values) [B, heads, N, d_head]. `bounds`: of the weights of queries; keys, values."""
        width = states.shape[-1]
        query = self.split(self.linear(width, "query", bounds[0])(states))
        key = self.split(self.linear(width, "key", bounds[1])(states))
        value = self.split(self.linear(width, "value", bounds[1])(states))
        return query, dropped(self, key, self.key_dropout), value

    @nn.nowrap
    def head_bias(self, name: str, size: int, like: jax.Array) -> jax.Array:
        """A vector for each head, [heads, 1, d_head], 0 at first."""
        bias = self.param(name, nn.initializers.zeros, (self.heads, size), self.param_dtype)
        return bias[:, None].astype(like.dtype)

    @nn.nowrap
    def softmax_mean(self, logits: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
        """sum_j softmax_j(logits) value_j over the columns that may be seen."""
        length = logits.shape[-1]
        visible = jnp.broadcast_to(mask[:, None, None, :], logits.shape)
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((length, length), bool))
        weights = ops.masked_softmax(logits.astype(jnp.float32), visible)
        self.sow("traces", "attention", weights)
        return weights.astype(value.dtype) @ value


class GeometricAttention(Attention):
    """Attention to the nearest match, of content and direction: with A the weights of Eq. 6-8 (`ops`), y = W_o A W_v h.

        logit_ij = alpha (W_q h_i + b_q) . W_k h_j + beta D_ij + gamma                                          (10)
        D_ij = w_R . h_i + b_R for j right of i, w_L . h_i + b_L for j left of i                                 (9)

    for each head; alpha (1 / sqrt(d_head) at first), beta and gamma are shared by all heads. The paper's results are
    with weights that do not add to 1; with `normalize` they do, as in its models without a gate. If `causal`, columns
    on the right are transparent, as padding is. Cost O(N^2 d); memory O(N block_size) where that is set.
    """

    normalize: bool = False
    """Divide the weights of a target by their sum."""
    block_size: int | None = None
    """Targets that are worked on at a time; None: all. For long inputs."""
    tolerance: float | None = None
    """Stop looking further out where at most this probability is left; None: look at everything."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]; a column that sees no other gets 0."""
        if self.normalize and (self.block_size or self.tolerance):
            raise ValueError("block_size and tolerance are for weights that are not normalized")
        width = states.shape[-1]
        size = self.head_size(width)
        bound = (6 / (width + size)) ** 0.5
        query, key, value = self.heads_of(states, (bound, bound))
        query = query + self.head_bias("query_bias", size, query)
        direction = self.split(self.linear(2 * self.heads, "direction", width**-0.5, bias=True)(states))
        constant, scalar = nn.initializers.constant, ((), self.param_dtype)
        alpha = self.param("content_scale", constant(size**-0.5), *scalar)
        beta = self.param("direction_scale", constant(1.0), *scalar)
        gamma = self.param("offset", nn.initializers.zeros, *scalar)
        direction = beta.astype(direction.dtype) * direction
        if self.causal:
            direction = direction.at[..., 1].set(UNSEEN)
        scores = {"direction": direction, "scale": alpha, "offset": gamma}
        if self.normalize or self.is_mutable_collection("traces"):
            logits = ops.geometric_attention_logits(query, key, **scores)
            weights = ops.geometric_attention_weights(logits, mask[:, None], normalize=self.normalize)
            self.sow("traces", "attention", weights)
            mixed = weights.astype(value.dtype) @ value
        else:
            blocks: dict[str, Any] = {"block_size": self.block_size, "tolerance": self.tolerance}
            mixed = ops.geometric_attention(query, key, value, key_mask=mask[:, None], **scores, **blocks)
        return self.linear(width, "merge", bound)(self.join(mixed))


class RelativeAttention(Attention):
    """Attention by content and relative position (Dai et al. 2019), or by a gate between relative and absolute ones.

        logit_ij = alpha ((W_q h_i + b_c) . W_k h_j + (W_q h_i + b_p) . W_p p_{j-i})
        with `absolute` p_{j-i} becomes r_i p_{j-i} + (1 - r_i) p_j,  r_i = sigmoid(W_r h_i + b_r)            (16-17)

    for each head, r_i too (the paper has one r for all heads; its code one for each); p are sinusoids, and alpha
    (1 / sqrt(d_head) at first) is shared by all heads. Cost O(N^2 d).
    """

    absolute: bool = False
    """Gate between relative and absolute positions."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        length, width = states.shape[1:]
        size = self.head_size(width)
        query, key, value = self.heads_of(states, ((3 / width) ** 0.5, (2 / width) ** 0.5))
        project = self.linear(width, "position", (3 / width) ** 0.5)

        def position_keys(positions: jax.Array) -> jax.Array:
            """[heads, positions, d_head]."""
            keys = self.split(project(ops.sinusoidal(positions, width).astype(states.dtype)))
            return dropped(self, keys, self.key_dropout)

        placed = query + self.head_bias("position_bias", size, query)
        offsets = jnp.arange(1 - length, length)
        scores = ops.shifted(jnp.einsum("bhik,hok->bhio", placed, position_keys(offsets)))
        if self.absolute:
            gate = self.split(nn.sigmoid(self.linear(self.heads, "relative_gate", width**-0.5, bias=True)(states)))
            absolute = jnp.einsum("bhik,hjk->bhij", placed, position_keys(jnp.arange(length)))
            scores = gate * scores + (1 - gate) * absolute
        query = query + self.head_bias("content_bias", size, query)
        scale = self.param("scale", nn.initializers.constant(size**-0.5), (), self.param_dtype)
        logits = scale.astype(scores.dtype) * (jnp.einsum("bhik,bhjk->bhij", query, key) + scores)
        mixed = self.softmax_mean(logits, value, mask)
        return self.linear(width, "merge", width**-0.5)(self.join(mixed))


class ContentAttention(Attention):
    """Scaled dot products (Vaswani et al. 2017): logit_ij = (W_q h_i) . (W_k h_j) / sqrt(d_head). Cost O(N^2 d).

    `positions` acts as `lenmem.nn.positions.PositionScores` says; what is added to states is not added here.
    """

    positions: PositionEncoding = "none"
    max_positions: int = 2048
    random_positions: bool = False

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        width = states.shape[-1]
        query, key, value = self.heads_of(states, ((3 / width) ** 0.5, (2 / width) ** 0.5))
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        encoding = PositionScores(self.positions, self.heads, width, self.causal, **options, name="encoding")
        at = numbered(self, mask)
        query, key, scores = encoding(*(jnp.swapaxes(x, 1, 2) for x in (query, key)), at, at)
        logits = jnp.einsum("bhik,bhjk->bhij", jnp.swapaxes(query, 1, 2), jnp.swapaxes(key, 1, 2))
        logits = (logits if scores is None else logits + scores) * self.head_size(width) ** -0.5
        return self.linear(width, "merge", width**-0.5)(self.join(self.softmax_mean(logits, value, mask)))


class GatedLayer(nn.Module):
    """A layer with a copy gate (section 2.1): a column is transformed once its operands are there, and copied until.

        a = LayerNorm(h + drop(Attention(h)))                                (1)
        u = LayerNorm(W_2 drop(relu(W_1 a)))                                 (2)   or tanh(...)
        g = sigmoid(V_2 drop(relu(V_1 a)) - 3)                               (3)   at first, a vector
        h' = (1 - g) h + g u                                                 (4)

    All maps have biases; that of V_2 starts at -3, which makes g small. There is no other residual connection. Gate
    drop forces whole columns to be copied in training, with probability `gate_drop` and where there is a stream `gate`;
    the paper does not mention it, its code has it. The trace is the mean of g over the d units.
    """

    attention: nn.Module
    feedforward_size: int = 512
    gate_size: int | None = None
    """Hidden width of the gate's network; None: d."""
    update: Update = "norm"
    """`norm`: LayerNorm in (2), with geometric attention; `tanh`: with the other kinds."""
    dropout: float = 0.0
    gate_drop: float = 0.0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        check_choices(self, update=get_args(Update))
        width = states.shape[-1]
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        attended = dropped(self, self.attention(states, mask), self.dropout)
        merged = nn.LayerNorm(1e-5, **options, name="attention_norm")(states + attended)
        by_norm = self.update == "norm"
        change = _feedforward(self, "feedforward", merged, self.feedforward_size, glorot(5 / 3) if by_norm else None)
        change = nn.LayerNorm(1e-5, **options, name="update_norm")(change) if by_norm else jnp.tanh(change)
        shut = nn.initializers.constant(-3.0)
        gate = nn.sigmoid(_feedforward(self, "gate", merged, self.gate_size or width, glorot(), shut))
        if self.gate_drop and self.has_rng("gate"):
            gate = gate * jax.random.bernoulli(self.make_rng("gate"), 1 - self.gate_drop, (*mask.shape, 1))
        self.sow("traces", "gate", jnp.mean(gate.astype(jnp.float32), axis=-1))
        return (states + gate * (change - states)).astype(states.dtype)


class PostNormLayer(nn.Module):
    """A Transformer layer: a = LN(h + drop(Attention(h))), then LN(a + drop(W_2 drop(relu(W_1 a)))), with biases."""

    attention: nn.Module
    feedforward_size: int = 256
    dropout: float = 0.0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        attended = dropped(self, self.attention(states, mask), self.dropout)
        merged = nn.LayerNorm(1e-5, **options, name="attention_norm")(states + attended)
        change = _feedforward(self, "feedforward", merged, self.feedforward_size, glorot())
        change = dropped(self, change, self.dropout)
        return nn.LayerNorm(1e-5, **options, name="feedforward_norm")(merged + change).astype(states.dtype)


def _feedforward(
    layer: Any,
    name: str,
    inputs: jax.Array,
    hidden_size: int,
    kernel_init: nn.initializers.Initializer | None,
    bias_init: nn.initializers.Initializer | None = None,
) -> jax.Array:
    """W_2 drop(relu(W_1 x)) inside a layer; what is None starts as Torch's linear maps do, U(+-1 / sqrt(fan_in))."""
    width = inputs.shape[-1]
    options: dict[str, Any] = {"dtype": layer.dtype, "param_dtype": layer.param_dtype}
    first = {"kernel_init": glorot(2**0.5), "bias_init": uniform(width**-0.5)}
    plain = uniform(hidden_size**-0.5)
    second = {"kernel_init": kernel_init or plain, "bias_init": bias_init or plain}
    hidden = nn.relu(nn.Dense(hidden_size, **first, **options, name=f"{name}_in")(inputs))
    hidden = dropped(layer, hidden, layer.dropout)
    return nn.Dense(width, **second, **options, name=f"{name}_out")(hidden)
