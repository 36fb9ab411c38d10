"""The recurrent baselines of Csordás et al. (ICLR 2022, tables 1-3): LSTM and bidirectional LSTM.

LSTM layers read the row in one or two directions. A single answer is computed from their final states, several answers
position by position. There is no attention and no external memory. The paper's Transformers are variants of
`lenmem.models.ndr.NDR`. Cost per symbol: O(layers H^2).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import Initializer

from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.cells import LSTMCell
from lenmem.nn.dropout import dropped
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.linear import uniform
from lenmem.nn.module import Part
from lenmem.types import Spec


class TorchLSTMCell(LSTMCell):
    """An LSTM with Torch's initialisation: weights U(-1/sqrt(H), 1/sqrt(H)), biases the sum of two such, state 0."""

    forget_bias: float | None = None
    learned_start: bool = False

    @nn.nowrap
    def initializers(self, width: int) -> tuple[Initializer, Initializer]:
        """Those of W and b."""
        init = uniform(self.hidden_size**-0.5)

        def bias_init(key, shape, dtype):
            first, second = jax.random.split(key)
            return init(first, shape, dtype) + init(second, shape, dtype)

        return init, bias_init


class LSTMEncoder(Part):
    """LSTM layers in one or two directions; each layer reads both directions of the layer below. An encoder."""

    hidden_size: int
    layers: int = 1
    bidirectional: bool = False
    summary: bool = False
    """Return the row's final states in every column, instead of the state of each column."""
    published_readout: bool = False
    dropout: float = 0.0

    @property
    def causal(self) -> bool:
        """Whether state t depends only on states 0 .. t."""
        return not (self.bidirectional or self.summary)

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, H]."""
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(f"two directions need an even hidden_size; got a hidden_size of {self.hidden_size}")
        size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        finals = []  # layer 0 forward, layer 0 backward, layer 1 forward, ...
        for number in range(self.layers):
            layer = Recurrent(
                TorchLSTMCell(size, **self.dtypes, parent=None),
                bidirectional=self.bidirectional,
                name=f"layer_{number}",
            )
            states = layer(dropped(states, self.dropout, deterministic=deterministic), mask)
            final = layer.final(states, mask)
            finals += jnp.split(final, 2, axis=-1) if self.bidirectional else [final]
        if not self.summary:
            return states
        summary = finals[-1:]
        if self.bidirectional:
            summary = [finals[self.layers - 1], finals[-1]] if self.published_readout else finals[-2:]
        summary = jnp.concatenate(summary, axis=-1)
        return jnp.where(mask[..., None], summary[:, None], 0)


class LSTMClassifier(FlatModel):
    """LSTM or bidirectional LSTM that reads the whole row and then answers from its final states.

    The paper's size on CTL: 200 cells (bidirectional: 100 in each direction), embedding 16, dropout 0.5; on arithmetic
    2 layers of 200, embedding 200; on ListOps 4 layers of 512, embedding 512, dropout 0.1. The forget bias is not
    raised, as in Torch. Torch's second bias is redundant and left out. In the published code a slip keeps the embedding
    of token 1 at zero; here it is trained.
    """

    hidden_size: PositiveInt = 200
    """Number of cells of each layer, both directions together."""
    layers: PositiveInt = 1
    """Number of layers."""
    bidirectional: bool = False
    """Read in both directions, with half of the cells each."""
    embedding_size: PositiveInt = 16
    """Width of the input embedding."""
    dropout: UnitInterval = 0.5
    """Dropout of the embedding and between layers."""
    begin: bool = True
    """Read a begin token first, if the task has a single answer. The published networks do not."""
    end: bool = True
    """Read an end token last, if the task has a single answer. The published networks do so only with two
    directions."""
    published_readout: bool = False
    """Answer from the same states as the published code, which has a bug: with two or more bidirectional layers it does
    not read both directions of the last layer. With an even number of layers it reads the backward states of the middle
    and the last layer."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.causal and self.bidirectional:
            return "one direction reads the input from its end; the task is causal"
        return super().supports(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        spec = require_spec(self.spec, self)
        encoder = LSTMEncoder(
            self.hidden_size,
            layers=self.layers,
            bidirectional=self.bidirectional,
            summary=spec.alignment == "free" and bool(spec.single_answer),
            published_readout=self.published_readout,
            dropout=self.dropout,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.embedding_size, begin=self.begin, end=self.end)
