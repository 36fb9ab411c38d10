"""Recurrent encoder-decoder with attention by content, by location, or by both.

Content: Bahdanau, Cho & Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", ICLR 2015,
https://arxiv.org/abs/1409.0473. Location: Luong, Pham & Manning, "Effective Approaches to Attention-based Neural
Machine Translation", EMNLP 2015, https://arxiv.org/abs/1508.04025. Hybrid, a baseline of Le et al. (2024,
https://arxiv.org/abs/2404.11870): the results of both kinds of attention, concatenated.

An encoder, by default bidirectional, turns the input into a memory with one state per position. A decoder fills one
answer slot per step. Each step reads a weighted mean of the memory. The weights are computed by a small network from
the decoder's state and each entry (content), or by a linear map from the decoder's state alone (location).

Cost: O(N H^2) for the encoder, O(M (H^2 + N H)) for the decoder.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn

from lenmem.fields import PositiveInt
from lenmem.nn.attention_decoder import AttentionDecoder, AttentionKind
from lenmem.nn.cells import GRUCell, LSTMCell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import EncoderDecoder, FlatModel, after_input
from lenmem.nn.linear import Init
from lenmem.types import Spec

CellKind = Literal["gru", "lstm"]


def recurrent_cell(kind: CellKind, size: int, **options: Any) -> nn.Module:
    """A `GRUCell` or `LSTMCell` with zero initial state."""
    cells = {"gru": GRUCell, "lstm": LSTMCell}
    return cells[kind](size, learned_start=False, parent=None, **options)


class Attention(FlatModel):
    """A recurrent encoder, and a recurrent decoder with attention."""

    hidden_size: PositiveInt = 256
    """Number of cells of the decoder, and of each direction of the encoder."""
    embedding_size: PositiveInt = 128
    """Width of the embeddings of inputs and fed-back answers."""
    attention: AttentionKind = "content"
    """Whether weights depend on the content of the entries, on their location, or both, in two heads (`hybrid`)."""
    max_positions: PositiveInt = 512
    """Longest input for attention by location, including padding. Weights of locations beyond training are
    untrained."""
    cell: CellKind = "gru"
    """The kind of all cells."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions."""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """Input of the decoder: nothing, or the answer so far (in training the target; otherwise its own greedy answer)."""
    initialization: Init = "fan_in"
    """The weights and biases of the cells. `fan_in`: Torch's default. `uniform`: U(-1, 1). In both, an LSTM's forget
    biases are 1."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return after_input(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:

        def cell():
            return recurrent_cell(self.cell, self.hidden_size, initialization=self.initialization, **self.dtypes)

        looking = {"attention": self.attention, "max_positions": self.max_positions, **self.dtypes}
        return EncoderDecoder(
            encoder=Recurrent(cell(), bidirectional=self.bidirectional, name="encoder"),
            decoder=AttentionDecoder(cell(), features=self.hidden_size, **looking, name="decoder"),
            spec=self.spec,
            embedding_size=self.embedding_size,
            feedback=self.feedback,
            **self.dtypes,
        )
