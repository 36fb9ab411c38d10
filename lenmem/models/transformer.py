"""The Transformer (Vaswani et al., NeurIPS 2017, https://arxiv.org/abs/1706.03762), as one encoder.

The input and a mask token for each answer slot go through post-norm layers of attention in one pass, and the answer is
read at the masks; a task with a single answer slot is read at an end token. Positions are absolute and sinusoidal,
which is why it is the baseline that fails beyond its training length, or encoded in any other way (`positions`).
`shared_weights` applies one layer again and again, as a Universal Transformer does (Dehghani et al. 2019).

Cost: O(layers ((N + M)^2 d + (N + M) d (d + feedforward_size))).
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import Positive, Share
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.positions import PositionEncoding
from lenmem.nn.transformer import TransformerEncoder
from lenmem.types import Dtype, Spec


class Transformer(FlatModel):
    """Transformer encoder with mask tokens for the answer."""

    hidden_size: Positive = 128
    """d: width of the states and of the embedding."""
    layers: Positive = 4
    """Number of layers."""
    heads: Positive = 4
    """Attention heads of each layer; they divide `hidden_size`."""
    feedforward_size: Positive = 512
    """Hidden width of the feed-forward networks."""
    shared_weights: bool = False
    """All layers share their weights."""
    dropout: Share = 0.1
    """Dropout of attention weights, hidden units, layer outputs and embeddings."""
    positions: PositionEncoding = "sinusoidal"
    """Added to the states: `sinusoidal`, `learned`. In attention: `relative` (Transformer-XL), `rotary`, `alibi`, `t5`,
    `fire`. Or `none`."""
    max_positions: Positive = 2048
    """Longest row of learned or random positions, answer slots and padding included."""
    random_positions: bool = False
    """Number the columns of a row by ascending draws from 0 .. max_positions - 1 (Ruoss et al. 2023), with any
    encoding: afresh in training, else the same for all rows of a length."""
    column: Literal["last", "first"] = "last"
    """Where a single answer is read: at the end token, or at the begin token."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        input_mask: jax.Array,
        target_mask: jax.Array,
        *,
        targets: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        encoder = TransformerEncoder(
            self.layers,
            self.heads,
            self.feedforward_size,
            self.shared_weights,
            require_spec(self.spec, self).causal,
            self.dropout,
            self.positions,
            self.max_positions,
            self.random_positions,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="encoder",
        )
        reader = sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)
