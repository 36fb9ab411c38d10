"""The Transformer encoder (Vaswani et al. 2017), with separate or shared layers (Dehghani et al. 2019)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import MultiHeadAttention
from lenmem.nn.positions import PositionEncoding, PositionScores, PositionVectors, numbered
from lenmem.types import Dtype


class TransformerLayer(nn.Module):
    """One post-norm layer: a = LN(x + drop(Attention(x))), LN(a + drop(W_2 drop(relu(W_1 a)))).

    The width is that of the states.
    """

    heads: int = 4
    feedforward_size: int = 512
    dropout: float = 0.0
    encoding: PositionScores | None = None
    """What positions do to the logits of attention; None: nothing."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """[B, N, d], bool[B, N or 1, N] of what each may see, int[N] or int[B, N] for the encoding -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def drop(x):
            return nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x) if self.dropout else x

        attend = MultiHeadAttention(self.heads, self.dropout, self.encoding, **options, name="attention")
        attended = attend(states, states, mask, None if positions is None else (positions, positions))
        states = nn.LayerNorm(1e-5, **options, name="attention_norm")(states + drop(attended))
        hidden = drop(nn.relu(nn.Dense(self.feedforward_size, **options, name="feedforward_in")(states)))
        change = nn.Dense(states.shape[-1], **options, name="feedforward_out")(hidden)
        return nn.LayerNorm(1e-5, **options, name="feedforward_norm")(states + drop(change))


class TransformerEncoder(nn.Module):
    """Layers over states with any encoding of positions. An encoder (`lenmem.nn.interfaces`).

    With `shared_weights` one layer is applied `layers` times, as in a Universal Transformer (without halting, and
    without a signal of the time step). States at padding are zero. Cost O(layers (N^2 d + N d (d + feedforward_size))).
    """

    layers: int = 4
    heads: int = 4
    feedforward_size: int = 512
    shared_weights: bool = False
    causal: bool = False
    """Position t sees positions 0 .. t only."""
    dropout: float = 0.0
    positions: PositionEncoding = "sinusoidal"
    max_positions: int = 2048
    """Longest row of learned or random positions."""
    random_positions: bool = False
    """See `lenmem.nn.positions.numbered`."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        length, width = states.shape[1:]
        positions = numbered(self, mask)
        vectors = PositionVectors(self.positions, self.max_positions, self.param_dtype, name="positions")
        states = jnp.where(mask[..., None], states, 0)
        states = states + vectors(positions, width).astype(states.dtype)
        if self.dropout:
            states = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(states)
        visible = mask[:, None, :]
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((length, length), bool))
        layer = None
        for number in range(self.layers):
            if layer is None or not self.shared_weights:
                name = "layer" if self.shared_weights else f"layer_{number}"
                encoding = PositionScores(self.positions, self.heads, width, self.causal, **options, parent=None)
                shape = self.heads, self.feedforward_size, self.dropout
                layer = TransformerLayer(*shape, encoding, **options, name=name)
            states = layer(states, visible, positions)
        return jnp.where(mask[..., None], states, 0)
