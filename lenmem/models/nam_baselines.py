"""The baselines of Nam & Seo's table 2: Universal Transformer, a Transformer of BERT's shape, and LSTMs with attention.

"Neural Attention Memory", https://arxiv.org/abs/2302.09422, section 5.3. All three are encoders of the input followed
by a mask token for each answer slot, so they can be compared directly with LSAM and NAM-TM.

    Universal Transformer   Dehghani et al., ICLR 2019, https://arxiv.org/abs/1807.03819; without halting
    BERT                    Devlin et al. 2019, https://arxiv.org/abs/1810.04805
    LSTM with attention     an LSTM, dot-product attention over its states, and another LSTM

The sizes of the paper's code are given with each class. Cost for N positions of width d: O(N^2 d + N d^2) for each
layer or step.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.attention import MultiHeadAttention
from lenmem.nn.cells import LSTMCell
from lenmem.nn.dropout import dropped
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.linear import Dense, glorot
from lenmem.nn.module import Part
from lenmem.nn.positions import Numbered, PositionEncoding, PositionKind, encoding_of
from lenmem.nn.transformer import PreNormLayer, TransformerEncoder


class UniversalEncoder(TransformerEncoder):
    """x_t = Layer(x_{t-1} + position signal + sinusoids of t - 1), t = 1 .. layers, with one pre-norm layer."""

    kernel_size: int = 1

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        width, at = states.shape[-1], self.numbered(mask, encoding_of(self.positions), deterministic=deterministic)
        states, positions = jnp.where(mask[..., None], states, 0), self.vectors(at, width)
        layer = self.layer(width, 0)
        for step in ops.sinusoidal(jnp.arange(self.layers), width):
            states = layer(states + (positions + step).astype(states.dtype), mask, at, deterministic=deterministic)
        return jnp.where(mask[..., None], states, 0)

    @nn.nowrap
    def layer(self, width: int, number: int) -> nn.Module:
        """The single layer."""
        encoding, shared = self.scores(width), {"causal": self.causal, **self.dtypes}
        start: dict[str, Any] = {"use_bias": False, "kernel_init": glorot(), "parent": None}
        return PreNormLayer(
            encoding=encoding,
            attention=MultiHeadAttention(features=width, heads=self.heads, encoding=encoding, **start, **shared),
            feedforward_size=self.feedforward_size,
            kernel_size=self.kernel_size,
            activation=nn.relu,
            dropout=self.dropout,
            **shared,
            name="layer",
        )


class UniversalTransformer(Numbered, FlatModel):
    """Universal Transformer: one layer applied `steps` times, with sinusoidal signals for position and step.

    The paper's size: `UniversalTransformer(hidden_size=1536, steps=8, heads=24, feedforward_size=1536, kernel_size=3)`.
    It has 23.7 M parameters here and 26.0 M in the paper's code, which has another linear map of 1536 x 1536 after the
    embedding. This map does not change the set of functions.
    """

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    steps: PositiveInt = 4
    """Number of times the layer is applied."""
    heads: PositiveInt = 4
    """Number of attention heads; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """Hidden width of the feed-forward network."""
    kernel_size: PositiveInt = 1
    """Kernel size of the feed-forward network's maps: 1 is the plain network, larger sizes make them convolutions."""
    dropout: UnitInterval = 0.1
    """Dropout of hidden units and of the outputs of attention and feed-forward network."""
    positions: PositionEncoding = "sinusoidal"
    """Any encoding of `Transformer`. Encodings that are added to the states are added at each step."""
    column: Literal["last", "first"] = "last"
    """Whether a single answer is read at the end token or at the begin token."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = UniversalEncoder(
            layers=self.steps,
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            kernel_size=self.kernel_size,
            causal=require_spec(self.spec, self).causal,
            dropout=self.dropout,
            positions=self.positions,
            **self.numbering,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)


class BERTEncoder(TransformerEncoder):
    """Post-norm layers over states with positions, and a final LayerNorm."""

    max_positions: PositiveInt = dataclasses.field(default=512, kw_only=True)
    positions: PositionKind = "learned"

    table: ClassVar[str] = "Embed_0"

    @nn.nowrap
    def last(self, states: jax.Array) -> jax.Array:
        """A norm."""
        return nn.LayerNorm(1e-5, **self.dtypes, name="norm")(states)


class BERT(Numbered, FlatModel):
    """Transformer encoder of BERT's shape, with learned absolute positions and mask tokens for the answer.

    Positions beyond the longest training row are never trained, which is one reason why it fails on longer ones. The
    paper's size is BERT-medium: `BERT(hidden_size=512, layers=8, heads=8, feedforward_size=2048)`. It has 25.5 M
    parameters here and 28.7 M in the paper's code, which contains an unused ninth layer, of which the others are
    copies.
    """

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    layers: PositiveInt = 4
    """Number of layers."""
    heads: PositiveInt = 4
    """Number of attention heads per layer; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """Hidden width of the feed-forward networks."""
    max_positions: PositiveInt = dataclasses.field(default=512, kw_only=True)
    """Longest row for learned or random positions, including answer slots and padding."""
    dropout: UnitInterval = 0.1
    """Dropout of attention weights, hidden units, layer outputs and embeddings."""
    positions: PositionEncoding = "learned"
    """Any encoding of `Transformer`."""
    column: Literal["last", "first"] = "last"
    """Whether a single answer is read at the end token or at the begin token."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = BERTEncoder(
            layers=self.layers,
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            causal=require_spec(self.spec, self).causal,
            dropout=self.dropout,
            positions=self.positions,
            **self.numbering,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)


class LSTMAttentionEncoder(Part):
    """h = LSTM(x), c_t = sum_s softmax_s(h_s . W_in h_t) h_s, y = LSTM(tanh(W_out [c_t; h_t])); bidirectional LSTMs.

    If `causal`, both read forward and s runs up to t. Traces `attention` [B, N, N].
    """

    causal: bool = False
    dropout: float = 0.1

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        length, width = states.shape[1:]
        if width % 2 and not self.causal:
            raise ValueError(f"two directions need an even width; got a width of {width}")

        def drop(x):
            return dropped(x, self.dropout, deterministic=deterministic)

        def recur(x, name):
            size = width if self.causal else width // 2
            cell = LSTMCell(size, learned_start=False, **self.dtypes, parent=None)
            return Recurrent(cell, bidirectional=not self.causal, name=name)(x, mask)

        states = recur(drop(states), "first")
        query = Dense(width, use_bias=False, **self.dtypes, name="query")(states)
        scores = jnp.einsum("btd,bsd->bts", query, states, preferred_element_type=jnp.float32)
        visible = jnp.broadcast_to(mask[:, None, :], scores.shape)
        if self.causal:
            visible = visible & jnp.tril(jnp.ones((length, length), bool))
        weights = ops.masked_softmax(scores, visible)
        self.sow("traces", "attention", weights)
        context = jnp.einsum("bts,bsd->btd", weights.astype(states.dtype), states)
        mix = Dense(width, use_bias=False, **self.dtypes, name="mix")
        states = recur(drop(jnp.tanh(mix(jnp.concatenate([context, states], axis=-1)))), "second")
        return drop(states)


class LSTMAttention(FlatModel):
    """Two bidirectional LSTM layers with attention between them, and mask tokens for the answer.

    Unlike `lenmem.models.seq2seq.Attention` it has no decoder. The paper's size is `LSTMAttention(hidden_size=1448)`:
    31.5 M parameters.
    """

    hidden_size: PositiveInt = 128
    """d: width of the embedding, and of both directions of an LSTM together."""
    dropout: UnitInterval = 0.1
    """Dropout of the embedding and of the inputs of the second LSTM and of the head."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = LSTMAttentionEncoder(
            causal=require_spec(self.spec, self).causal, dropout=self.dropout, **self.dtypes, name="encoder"
        )
        return sequential(encoder, self, embedding_size=self.hidden_size)
