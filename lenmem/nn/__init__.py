"""Flax parts that two or more networks use: cells, encoders, and the interfaces through which they read a task."""

from lenmem.nn.attention import AdditiveAttention, AttentionDecoder, MultiHeadAttention
from lenmem.nn.cells import FlaxCell, GRUCell, LSTMCell, Stacked
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import Aligned, Completion, EncoderDecoder, Readout, Transducer
from lenmem.nn.linear import Linear
from lenmem.nn.recurrence import AppendOnlyCell, scan_cell
from lenmem.nn.transformer import TransformerEncoder, TransformerLayer
from lenmem.nn.transformer_decoder import PostNormEncoder, TransformerDecoder

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
    "PostNormEncoder",
    "Readout",
    "Recurrent",
    "Stacked",
    "Transducer",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerLayer",
    "scan_cell",
]
