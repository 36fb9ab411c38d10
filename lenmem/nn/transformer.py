"""Transformer layers, post-norm (Vaswani et al. 2017) and pre-norm (Xiong et al. 2020), and an encoder made of them.

A layer contains an attention module `(states [B, N, d], *seen, deterministic) -> [B, N, d]`, such as
`MultiHeadAttention` or one of `lenmem.nn.ndr`. `seen` is a mask of the visible states, and positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import Layout, MemoryAttention, Mixing, MultiHeadAttention, Weighting
from lenmem.nn.dropout import dropped
from lenmem.nn.linear import BERT_STD, Dense, glorot, uniform
from lenmem.nn.module import Part, in_pieces
from lenmem.nn.positions import (
    AddPositions,
    Numbered,
    PositionEncoding,
    PositionKind,
    PositionScores,
    PositionVectors,
    encoding_of,
)
from lenmem.types import Dtype

Initialization = Literal["lecun", "glorot", "normal"]


def linear_start(gain: float | None, fan_in: int) -> dict[str, Any]:
    """Initialisers of a linear map: `glorot(gain)`, or Torch's if None; the bias as in Torch."""
    plain = uniform(fan_in**-0.5)
    return {"kernel_init": plain if gain is None else glorot(gain), "bias_init": plain}


def feedforward(
    layer: Any,
    inputs: jax.Array,
    hidden_size: int,
    *,
    deterministic: bool,
    name: str = "feedforward",
    activation: Callable[[jax.Array], jax.Array] = nn.relu,
    linear: Callable[..., Any] | None = None,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    dropout: float | None = None,
) -> jax.Array:
    """W_2 drop(f(W_1 x)) inside a layer, with the layer's dtypes, and by default with its dropout rate.

    `first` and `second` are the initialisers of the two maps; None: Flax's. `linear` creates a map; None: `Dense`.
    """
    linear = linear or functools.partial(Dense, **layer.dtypes)
    hidden = activation(linear(hidden_size, **(first or {}), name=f"{name}_in")(inputs))
    hidden = dropped(hidden, layer.dropout if dropout is None else dropout, deterministic=deterministic)
    return linear(inputs.shape[-1], **(second or {}), name=f"{name}_out")(hidden)


class PostNormLayer(Part, kw_only=True):
    """a = LN(h + drop(Attention(h))), then LN(a + drop(W_2 drop(f(W_1 a)))), with biases."""

    encoding: nn.Module | None = None
    """The encoding of `attention`, if its parameters are stored in the layer."""
    attention: nn.Module
    feedforward_size: int = 512
    activation: Callable[[jax.Array], jax.Array] = nn.relu
    """f."""
    dropout: float = 0.0
    hidden_dropout: float | None = None
    """Dropout of the hidden units f(W_1 a); None: `dropout`."""
    epsilon: float = 1e-5
    """Added to the variance in LN."""
    initialization: Initialization = "lecun"
    """Initialisation of the feed-forward network: Flax's, that of Csordás et al.'s code, or N(0, 0.02^2)."""

    @nn.compact
    def __call__(self, states: jax.Array, *seen: Any, deterministic: bool = True) -> jax.Array:
        """[B, N, d], further inputs of the attention -> [B, N, d]."""
        start: dict[str, Any] = {"activation": self.activation, "dropout": self.hidden_dropout}
        if self.initialization == "glorot":
            start["first"] = linear_start(2**0.5, states.shape[-1])
            start["second"] = linear_start(1.0, self.feedforward_size)
        elif self.initialization == "normal":
            start["first"] = start["second"] = {"kernel_init": nn.initializers.normal(BERT_STD)}
        attended = self.attention(states, *seen, deterministic=deterministic)
        attended = dropped(attended, self.dropout, deterministic=deterministic)
        merged = nn.LayerNorm(self.epsilon, **self.dtypes, name="attention_norm")(states + attended)
        change = feedforward(self, merged, self.feedforward_size, deterministic=deterministic, **start)
        change = dropped(change, self.dropout, deterministic=deterministic)
        return nn.LayerNorm(self.epsilon, **self.dtypes, name="feedforward_norm")(merged + change).astype(states.dtype)


class PreNormLayer(Part, kw_only=True):
    """a = x + drop(Attention(LN(x))), then a + drop(W_2 drop(f(W_1 LN(a)))), with biases.

    With `kernel_size` above 1 both maps of the feed-forward network are convolutions over positions, for which padding
    is zero.
    """

    encoding: nn.Module | None = None
    """The encoding of `attention`, if its parameters are stored in the layer."""
    attention: nn.Module
    feedforward_size: int = 512
    kernel_size: int = 1
    causal: bool = False
    """Whether convolutions are causal."""
    activation: Callable[[jax.Array], jax.Array] = nn.gelu
    dropout: float = 0.0

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *seen: Any, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N], further inputs of the attention -> [B, N, d]."""

        def convolution(features, name):
            before = self.kernel_size - 1 if self.causal else self.kernel_size // 2
            padding = [(before, self.kernel_size - 1 - before)]
            module = nn.Conv(features, (self.kernel_size,), padding=padding, **self.dtypes, name=name)
            return lambda x: module(jnp.where(mask[..., None], x, 0))

        hidden = nn.LayerNorm(1e-6, **self.dtypes, name="attention_norm")(states)
        attended = self.attention(hidden, mask, *seen, deterministic=deterministic)
        states = states + dropped(attended, self.dropout, deterministic=deterministic)
        hidden = nn.LayerNorm(1e-6, **self.dtypes, name="feedforward_norm")(states)
        maps: dict[str, Any] = {"linear": convolution if self.kernel_size > 1 else None, "activation": self.activation}
        change = feedforward(self, hidden, self.feedforward_size, deterministic=deterministic, **maps)
        return states + dropped(change, self.dropout, deterministic=deterministic)


def glorot_attention(
    features: int,
    heads: int,
    positions: PositionEncoding,
    *,
    causal: bool = False,
    dtype: Dtype = None,
    param_dtype: Dtype = jnp.float32,
    **fields: Any,
) -> MultiHeadAttention:
    """Attention as in the code of Csordás, Irie & Schmidhuber (2021), https://arxiv.org/abs/2108.12284.

    There are no biases. The maps have Xavier initialisation or, with relative positions, Torch's, as in that code.
    """
    torch = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    shared: dict[str, Any] = {"heads": heads, "features": features, "causal": causal}
    shared |= {
        "kernel_init": torch if positions == "relative" else glorot(),
        "dtype": dtype,
        "param_dtype": param_dtype,
    }
    scores = PositionScores(positions, **shared, parent=None)
    layout = Layout(merge="merge", joined=True)
    return MultiHeadAttention(encoding=scores, use_bias=False, layout=layout, **shared, **fields)


class TransformerEncoder(Numbered, Part):
    """Post-norm layers over states, with any position encoding. An encoder (`lenmem.nn.interfaces`).

    With `shared_weights` one layer is applied `layers` times, as in a Universal Transformer without halting and without
    a step signal. States at padding are zero. Cost O(layers (N^2 d + N d (d + feedforward_size))).
    Encoders with other layers override `layer` and `last`.
    """

    layers: int = 4
    heads: int = 4
    feedforward_size: int = 512
    shared_weights: bool = False
    causal: bool = False
    """Position t sees only positions 0 .. t."""
    weighting: Weighting = "softmax"
    """The weights of attention. With `stick_breaking` and `forgetting` a position sees nothing to its right."""
    dropout: float = 0.0
    """Dropout of attention weights, hidden units, layer outputs, and of states with positions."""
    positions: PositionKind = "sinusoidal"
    initialization: Initialization = "lecun"
    """`lecun`: Flax's initialisation. `glorot`: that of the code of Csordás et al. (2021); attention then has no
    biases, and states are dropped only if positions are added."""
    input_scale: float = 1.0
    """Factor of the input states, with `glorot`."""
    position_scale: float = 1.0
    """Factor of sinusoids, and of the start of learned positions, with `glorot`."""
    position_std: float = BERT_STD
    """Initial standard deviation of learned positions, without `glorot`."""

    table: ClassVar[str] = "positions"
    """The parameter name of learned positions."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        at = self.numbered(mask, encoding_of(self.positions), deterministic=deterministic)
        return self.layered(states, mask, at, deterministic=deterministic)

    @nn.nowrap
    def layered(self, states: jax.Array, mask: jax.Array, at: jax.Array, *, deterministic: bool) -> jax.Array:
        """All layers, for states at positions int[N] or int[B, N]."""
        states = self.placed(jnp.where(mask[..., None], states, 0), at, deterministic=deterministic)
        stack: list[nn.Module] = []
        for number in range(self.layers):
            if not stack or not self.shared_weights:
                stack.append(self.layer(states.shape[-1], number))
            states = stack[-1](states, mask, at, deterministic=deterministic)
        return jnp.where(mask[..., None], self.last(states), 0)

    @nn.nowrap
    def vectors(self, at: jax.Array, width: int) -> jax.Array:
        """The position vectors that are added to states at positions int[..., N]."""
        sizes = {"max_positions": self.max_positions, "param_dtype": self.param_dtype, "std": self.position_std}
        return PositionVectors(encoding_of(self.positions), **sizes, name=self.table)(at, width)

    @nn.nowrap
    def placed(self, states: jax.Array, at: jax.Array, *, deterministic: bool) -> jax.Array:
        """The input of the first layer."""
        if self.initialization == "glorot":
            scales = {"input_scale": self.input_scale, "position_scale": self.position_scale, "dropout": self.dropout}
            sizes = {"max_positions": self.max_positions, "param_dtype": self.param_dtype}
            place = AddPositions(encoding_of(self.positions), **scales, **sizes, name="place")
            return place(states, at, deterministic=deterministic)
        states = states + self.vectors(at, states.shape[-1]).astype(states.dtype)
        return dropped(states, self.dropout, deterministic=deterministic)

    @nn.nowrap
    def scores(self, features: int) -> PositionScores:
        """The effect of positions on the logits of a layer with queries of width `features`."""
        sizes = {"heads": self.heads, "features": features, "causal": self.causal}
        return PositionScores(encoding_of(self.positions), **sizes, **self.dtypes, parent=None)

    @nn.nowrap
    def layer(self, width: int, number: int) -> nn.Module:
        """The layer with this number, for states of this width."""
        shared: dict[str, Any] = {"causal": self.causal, "weighting": self.weighting, "dropout": self.dropout}
        shared |= self.dtypes
        if self.initialization == "glorot":
            kind = encoding_of(self.positions)
            attention = glorot_attention(width, self.heads, kind, **shared, name=f"attention_{number}")
            encoding, name = None, f"layer_{number}"
        else:
            encoding, name = self.scores(width), "layer" if self.shared_weights else f"layer_{number}"
            nested = {"encoding": encoding, "layout": Layout(nested=True), "parent": None}
            attention = MultiHeadAttention(features=width, heads=self.heads, **nested, **shared)
        return PostNormLayer(
            encoding=encoding,
            attention=attention,
            feedforward_size=self.feedforward_size,
            dropout=self.dropout,
            initialization=self.initialization,
            **self.dtypes,
            name=name,
        )

    @nn.nowrap
    def last(self, states: jax.Array) -> jax.Array:
        """A function of the last layer's states: here the identity."""
        return states


class PreNormEncoder(TransformerEncoder):
    """Pre-norm layers over states with positions, and a final LayerNorm. States at padding are zero."""

    attention: Mixing = "outer_product"
    """The kind of attention."""
    mask_padding: bool = True
    attention_size: int | None = None
    """Width of queries, keys and values, all heads together; None: the states' width."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        at = self.numbered(mask, encoding_of(self.positions), deterministic=deterministic)
        if in_pieces(self):
            read = self.variable("memory", "read", jnp.zeros, mask.shape[:1], jnp.int32)
            at = read.value[:, None] + at
            read.value += jnp.sum(mask, axis=-1, dtype=jnp.int32)
        return self.layered(states, mask, at, deterministic=deterministic)

    @nn.nowrap
    def layer(self, width: int, number: int) -> nn.Module:
        """The layer with this number."""
        size = self.attention_size or width
        encoding, shared = self.scores(size), {"causal": self.causal, **self.dtypes}
        kind: dict[str, Any] = {"mixing": self.attention, "mask_padding": self.mask_padding, **shared}
        attention = MemoryAttention(
            features=size, heads=self.heads, encoding=encoding, out_features=width, **kind, parent=None
        )
        rest: dict[str, Any] = {"feedforward_size": self.feedforward_size, "dropout": self.dropout, **shared}
        return PreNormLayer(encoding=encoding, attention=attention, **rest, name=f"layer_{number}")

    @nn.nowrap
    def last(self, states: jax.Array) -> jax.Array:
        """A norm."""
        return nn.LayerNorm(1e-6, **self.dtypes, name="norm")(states)


class GivenPositionsEncoder(TransformerEncoder):
    """A `TransformerEncoder` with learned vectors for positions that the task gives (`lenmem.types.PositionRule`)."""

    positions: PositionKind = "learned"

    takes_positions: ClassVar[bool] = True
    """An interface passes the positions of the columns."""

    @nn.compact
    def __call__(
        self, states: jax.Array, mask: jax.Array, given: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """[B, N, d], bool[B, N], int[B, N] -> [B, N, d]."""
        if given is None:
            raise ValueError("the positions of the columns are missing; a task gives them to answers after its input")
        return self.layered(states, mask, self.shifted(given, deterministic=deterministic), deterministic=deterministic)
