"""Flax parts that two or more networks use: cells, encoders, and interfaces that apply them to a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy
from lenmem.nn.attention import AdditiveAttention, MultiHeadAttention
from lenmem.nn.attention_decoder import AttentionDecoder
from lenmem.nn.cells import FlaxCell, GRUCell, LSTMCell, Stacked
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import Aligned, Completion, EncoderDecoder, Readout, Transducer
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.nn.recurrence import AppendOnlyCell, scan_cell
from lenmem.nn.transformer import PostNormLayer, PreNormLayer, TransformerEncoder
from lenmem.nn.transformer_decoder import TransformerDecoder

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "AdditiveAttention",
    "Aligned",
    "AppendOnlyCell",
    "AttentionDecoder",
    "Completion",
    "EncoderDecoder",
    "FlaxCell",
    "GRUCell",
    "LSTMCell",
    "Linear",
    "MultiHeadAttention",
    "Part",
    "PostNormLayer",
    "PreNormLayer",
    "Readout",
    "Recurrent",
    "Stacked",
    "Transducer",
    "TransformerDecoder",
    "TransformerEncoder",
    "scan_cell",
]
