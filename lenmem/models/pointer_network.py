"""Pointer Network (Vinyals, Fortunato & Jaitly, NeurIPS 2015, https://arxiv.org/abs/1506.03134).

An encoder turns the input into a memory with one state per position. For each answer slot, a decoder points at one of
these positions: its output is the attention itself. Here answers are tokens, not positions, so the probability of a
token is the total weight of the positions with this token (as in the baseline of Le et al. 2024,
https://arxiv.org/abs/2404.11870).

Notation: a_ij is the weight of position j in answer slot i, x_j the one-hot token there (for inputs with channels,
their one-hot part). With K answer classes

    p_i = sum_j a_ij x_j,     output_i = log((1 - f) p_i + f / K)        with f = 1e-6

so the outputs are log-probabilities, and a token that does not occur in the input gets log(f / K) and no gradient. To
answer with the end symbol, if the task has one, the decoder points at the end delimiter after the input. Weight on
tokens that are not answers (ids from K on) is lost; a softmax of the outputs compensates for it.

Cost: O(N H^2) for the encoder, O(M (H^2 + N H)) for the decoder.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.models.seq2seq import CellKind, recurrent_cell
from lenmem.nn.attention_decoder import PointingDecoder
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import DELIMITER, EncoderDecoder, FlatModel, after_input, require_spec
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.types import Spec

FLOOR = 1e-6
"""f: probability divided among all classes."""


class SymbolMemory(Part):
    """An encoder with outputs [states of `encoder` for the embedded inputs | the one-hot symbol at each position].

    The last of the `spec.vocabulary` + 1 symbols marks the end delimiter; if answers have no end symbol, it does not
    occur. The begin position has no symbol.
    """

    encoder: nn.Module
    spec: Spec
    features: int
    """Width of the embedding."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Raw inputs with special columns [B, N, input_width + 3], bool[B, N] -> [B, N, d + vocabulary + 1]."""
        end = states[..., self.spec.input_width + DELIMITER, None]
        end = end if self.spec.end_id is not None else jnp.zeros_like(end)
        embed = Linear(self.features, **self.dtypes, name="embedding")
        encoded = self.encoder(embed(states), mask, deterministic=deterministic)
        return jnp.concatenate([encoded, states[..., : self.spec.vocabulary], end], axis=-1)


class LogMixture(nn.Module):
    """Converts symbol probabilities, [.., vocabulary + 1], to log-probabilities of answer classes, [.., K]."""

    spec: Spec

    @nn.compact
    def __call__(self, symbols: jax.Array) -> jax.Array:
        """The end symbol belongs to the class `end_id`. A class without a symbol gets the floor. A computation token,
        the last of the vocabulary, is no answer."""
        spec, classes = self.spec, self.spec.output_size
        known = min(spec.vocabulary - (spec.computation_steps > 0), classes)
        answers = jnp.zeros((*symbols.shape[:-1], classes), symbols.dtype).at[..., :known].set(symbols[..., :known])
        if spec.end_id is not None:
            answers = answers.at[..., spec.end_id].add(symbols[..., -1])
        return jnp.log((1 - FLOOR) * answers + FLOOR / classes)


class PointerNetwork(FlatModel):
    """A recurrent encoder, and a recurrent decoder that points at the input."""

    hidden_size: PositiveInt = 256
    """Number of cells of the decoder, and of each direction of the encoder."""
    embedding_size: PositiveInt = 128
    """Width of the embedding of inputs. Answers that are fed back are one-hot."""
    cell: CellKind = "lstm"
    """The kind of all cells."""
    bidirectional: bool = False
    """Whether the encoder reads in both directions."""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """Input of the decoder in addition to the value read last: nothing, or the answer so far."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.outputs != "tokens" or not spec.vocabulary or not spec.shared_ids:
            return "it answers with tokens of the input; the task's answers are not drawn from its inputs"
        return after_input(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        spec = require_spec(self.spec, self)

        def cell():
            return recurrent_cell(self.cell, self.hidden_size, **self.dtypes)

        encoder = Recurrent(cell(), bidirectional=self.bidirectional, parent=None)
        pointing = {"features": self.hidden_size, "symbols": spec.vocabulary + 1, **self.dtypes}
        return EncoderDecoder(
            encoder=SymbolMemory(encoder, spec=spec, features=self.embedding_size, **self.dtypes, name="encoder"),
            decoder=PointingDecoder(cell(), **pointing, name="decoder"),
            spec=spec,
            embedding_size=None,
            feedback=self.feedback,
            head=LogMixture(spec, parent=None),
            delimiters=True,
            **self.dtypes,
        )
