"""The baselines of Nam & Seo's table 2: Universal Transformer, a BERT-shaped Transformer, and LSTMs with attention.

"Neural Attention Memory", https://arxiv.org/abs/2302.09422, section 5.3. All three are encoders of the input followed
by a mask token for each answer slot, and so directly comparable with LSAM and NAM-TM.

    Universal Transformer   Dehghani et al., ICLR 2019, https://arxiv.org/abs/1807.03819; without halting
    BERT                    Devlin et al. 2019, https://arxiv.org/abs/1810.04805
    LSTM with attention     an LSTM, dot-product attention over its states, and another LSTM

Sizes of the paper's code are given with each class. Cost for N positions of width d: O(N^2 d + N d^2) for each layer or
step.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import Positive, Share
from lenmem.nn.cells import LSTMCell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.nam import PreNormLayer
from lenmem.nn.positions import PositionEncoding, PositionScores, PositionVectors, numbered
from lenmem.nn.transformer import TransformerLayer
from lenmem.types import Dtype, Spec


class UniversalEncoder(nn.Module):
    """x_t = Layer(x_{t-1} + position signal + sinusoids of step t), t = 1 .. steps, with one pre-norm layer."""

    steps: int = 4
    heads: int = 4
    feedforward_size: int = 512
    kernel_size: int = 1
    causal: bool = False
    dropout: float = 0.0
    positions: PositionEncoding = "sinusoidal"
    max_positions: int = 2048
    random_positions: bool = False
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width, at = states.shape[-1], numbered(self, mask)
        states = jnp.where(mask[..., None], states, 0)
        vectors = PositionVectors(self.positions, self.max_positions, self.param_dtype, name="positions")
        positions = vectors(at, width)
        steps = ops.sinusoidal(jnp.arange(self.steps), width)
        layer = PreNormLayer(
            self.heads,
            self.feedforward_size,
            "softmax",
            self.causal,
            kernel_size=self.kernel_size,
            activation=nn.relu,
            dropout=self.dropout,
            encoding=PositionScores(self.positions, self.heads, width, self.causal, **options, parent=None),
            **options,
            name="layer",
        )
        for step in range(self.steps):
            states = layer(states + (positions + steps[step]).astype(states.dtype), mask, at)
        return jnp.where(mask[..., None], states, 0)


class UniversalTransformer(FlatModel):
    """Universal Transformer: one layer applied `steps` times, with sinusoidal signals of position and step.

    The paper's size: `UniversalTransformer(hidden_size=1536, steps=8, heads=24, feedforward_size=1536, kernel_size=3)`.
    We count 23.7 M parameters and the paper's code 26.0 M: it has one more linear map of 1536 x 1536 after the
    embedding, which adds nothing to what an embedding can be.
    """

    hidden_size: Positive = 128
    """d: width of the states and of the embedding."""
    steps: Positive = 4
    """How often the layer is applied."""
    heads: Positive = 4
    """Attention heads; they divide `hidden_size`."""
    feedforward_size: Positive = 512
    """Hidden width of the feed-forward network."""
    kernel_size: Positive = 1
    """Positions that the feed-forward network's maps see: 1 is the plain one, more make them convolutions."""
    dropout: Share = 0.1
    """Dropout of hidden units and of what attention and feed-forward network add."""
    positions: PositionEncoding = "sinusoidal"
    """Any encoding; see `Transformer`. What is added is so at each step."""
    max_positions: Positive = 2048
    """Longest row of learned or random positions, answer slots and padding included."""
    random_positions: bool = False
    """Number the columns of a row by random draws; see `Transformer`."""
    column: Literal["last", "first"] = "last"
    """Where a single answer is read: at the end token, or at the begin token."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        encoder = UniversalEncoder(
            self.steps,
            self.heads,
            self.feedforward_size,
            self.kernel_size,
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


class BERTEncoder(nn.Module):
    """Post-norm layers over states with positions, and a last LayerNorm."""

    layers: int = 4
    heads: int = 4
    feedforward_size: int = 512
    max_positions: int = 512
    causal: bool = False
    dropout: float = 0.0
    positions: PositionEncoding = "learned"
    random_positions: bool = False
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]; a ValueError for learned or random positions above `max_positions`."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        length, width = states.shape[1:]
        positions = numbered(self, mask)
        # The name that the table has in saved results.
        vectors = PositionVectors(self.positions, self.max_positions, self.param_dtype, name="Embed_0")
        states = jnp.where(mask[..., None], states, 0)
        states = states + vectors(positions, width).astype(states.dtype)
        if self.dropout:
            states = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(states)
        visible = mask[:, None, :]
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((length, length), bool))
        shape = self.heads, self.feedforward_size, self.dropout
        for number in range(self.layers):
            encoding = PositionScores(self.positions, self.heads, width, self.causal, **options, parent=None)
            layer = TransformerLayer(*shape, encoding, **options, name=f"layer_{number}")
            states = layer(states, visible, positions)
        return jnp.where(mask[..., None], nn.LayerNorm(1e-5, **options, name="norm")(states), 0)


class BERT(FlatModel):
    """BERT-shaped Transformer encoder: learned absolute positions and masked completion.

    Positions beyond the longest training row are never trained, which is one reason why it cannot do longer ones. The
    paper's size, BERT-medium: `BERT(hidden_size=512, layers=8, heads=8, feedforward_size=2048)`. We count 25.5 M
    parameters and the paper's code 28.7 M: it holds a ninth layer, the one that the eight are copied from, which is
    never used.
    """

    hidden_size: Positive = 128
    """d: width of the states and of the embedding."""
    layers: Positive = 4
    """Number of layers."""
    heads: Positive = 4
    """Attention heads of each layer; they divide `hidden_size`."""
    feedforward_size: Positive = 512
    """Hidden width of the feed-forward networks."""
    max_positions: Positive = 512
    """Longest row of learned or random positions, answer slots and padding included."""
    dropout: Share = 0.1
    """Dropout of attention weights, hidden units, layer outputs and embeddings."""
    positions: PositionEncoding = "learned"
    """Any encoding; see `Transformer`."""
    random_positions: bool = False
    """Number the columns of a row by random draws; see `Transformer`."""
    column: Literal["last", "first"] = "last"
    """Where a single answer is read: at the end token, or at the begin token."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        encoder = BERTEncoder(
            self.layers,
            self.heads,
            self.feedforward_size,
            self.max_positions,
            require_spec(self.spec, self).causal,
            self.dropout,
            self.positions,
            self.random_positions,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="encoder",
        )
        reader = sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)


class LSTMAttentionEncoder(nn.Module):
    """h = LSTM(x), c_t = sum_s softmax_s(h_s . W_in h_t) h_s, y = LSTM(tanh(W_out [c_t; h_t])); both LSTMs two-way.

    If `causal`, both read forward and s runs up to t. Traces `attention` [B, N, N].
    """

    causal: bool = False
    dropout: float = 0.1
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        length, width = states.shape[1:]
        if width % 2 and not self.causal:
            raise ValueError(f"two directions share the width evenly; got a width of {width}")

        def drop(x):
            return nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x) if self.dropout else x

        def recur(x, name):
            size = width if self.causal else width // 2
            cell = LSTMCell(size, learned_start=False, **options, parent=None)
            return Recurrent(cell, bidirectional=not self.causal, name=name)(x, mask)

        states = recur(drop(states), "first")
        query = nn.Dense(width, use_bias=False, **options, name="query")(states)
        scores = jnp.einsum("btd,bsd->bts", query, states, preferred_element_type=jnp.float32)
        visible = jnp.broadcast_to(mask[:, None, :], scores.shape)
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((length, length), bool))
        weights = ops.masked_softmax(scores, visible)
        self.sow("traces", "attention", weights)
        context = jnp.einsum("bts,bsd->btd", weights.astype(states.dtype), states)
        mix = nn.Dense(width, use_bias=False, **options, name="mix")
        states = recur(drop(jnp.tanh(mix(jnp.concatenate([context, states], axis=-1)))), "second")
        return drop(states)


class LSTMAttention(FlatModel):
    """Two bidirectional LSTM layers with attention between them, and mask tokens for the answer.

    Unlike `lenmem.models.seq2seq.Attention` it has no decoder. The paper's size is `LSTMAttention(hidden_size=1448)`:
    31.5 M parameters.
    """

    hidden_size: Positive = 128
    """d: width of the embedding and of both directions of an LSTM together."""
    dropout: Share = 0.1
    """Dropout of the embedding and of what the second LSTM and the head read."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        encoder = LSTMAttentionEncoder(require_spec(self.spec, self).causal, self.dropout, **options, name="encoder")
        reader = sequential(encoder, self, embedding_size=self.hidden_size)
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)
