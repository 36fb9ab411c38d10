"""Pointer-Augmented Neural Memory (PANM).

Le, Nguyen, Do, Venkatesh & Tran, "Enhancing Length Extrapolation in Sequential Models with Pointer-Augmented Neural
Memory", 2024, https://arxiv.org/abs/2404.11870 (TMLR 2024, with code at https://github.com/thaihungle/PANM).

An encoder turns the input into a memory with one slot per position. Each slot has a physical address, a binary number.
Addresses are consecutive, and the first one, the base, is drawn at random for every training sequence. Pointer units
compute addresses from addresses and never see data, so the rules they learn ("the next address") hold for new data and
new positions. The value at a pointer is read from the memory (Mode 1), is used as a query for related values (Mode 2),
and is passed directly to the answer. Equations 1 to 7 are in `lenmem.nn.pointers`.

Notation: M memory [B, N, d]; A addresses [B, N, b] of b bits; p_B, p_E base and end address, which are those of the
first and the last slot; p a pointer, *p the value at its address; w its weights over the slots; H_a address heads of
width H, H_c content heads; z_t an additional input of the controller: nothing in open loop, the last answer under
teacher forcing, or the output of another decoder. Cost per step: O(H_a (H^2 + N H) + H_c N d + H (H + (H_a + H_c) d)).

The variants of the paper, of the authors' code, and our defaults, which were the best at copying up to 80 tokens:

    ==================  ======================  ==========================================  =====================
    .                   `PAPER`                 `PUBLISHED`                                 default
    ==================  ======================  ==========================================  =====================
    encoder             LSTM                    GRUs in both directions, summed             as published
    slots of M          the inputs              begin, the inputs, end                      as published
    width H             256                     128                                         256
    bits b              10                      8                                           10
    attention           cosine                  scaled dot product of linear maps           cosine x temperature
    g_a, g_c, g_o       one hidden layer, 128   linear                                      as in the paper
    controller reads    Mode 1, Mode 2, z       z, Mode 1, an additive attention over M     as in the paper
    the answer reads    Mode 1, Mode 2, h_t^c   the same, and that attention                as in the paper
    Mode-2 weights      no dropout              dropout 0.5                                 as in the paper
    base at test        0                       random                                      0
    ==================  ======================  ==========================================  =====================

Some details of the code are not reproduced. In batches with more than one row, it mixes the pointers of different rows
(a reshape instead of a transposition). It draws address 0 twice as often as others. Its additive attention has a ReLU
(here tanh), and projected values pass through two successive linear maps (here one). Its controller starts from the
last state of the forward GRU; here it starts from the last slot, which differs by the state of the backward GRU at the
end delimiter, a constant vector. The order of the bits is reversed, which makes no difference to learned maps.

`BEYOND` is our variant for lengths far beyond training. A softmax over the slots of short memories only learns to
distinguish nearby addresses: for 10 inputs the last four bits suffice, but these repeat after 16 slots. Here pointers
choose from all 2^b addresses, over which the memory is repeated, so that in training, too, a wrong address gives a
wrong value. Adding 1 to a binary number requires carries; long carries are rare in training, and copying fails at
carries that were not learned. Addresses are therefore phases, for which adding 1 is a rotation. The pointers are the
only state: the units are feed-forward, the memory contains the input tokens themselves, and the answer is computed from
the values at the pointers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import NonNegativeInt, PositiveInt, UnitInterval
from lenmem.models.stack_rnn import StackRNNCell
from lenmem.nn.cells import GRUCell, LSTMCell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import (
    BEGIN,
    BLANK,
    DELIMITER,
    SPECIAL,
    EncoderDecoder,
    FlatModel,
    place,
    recurrent,
    require_spec,
)
from lenmem.nn.module import Part
from lenmem.nn.panm import PointerCell, PointerDecoder
from lenmem.nn.pointers import MLP, Candidates, Code, Controller, TestBase, Unit
from lenmem.nn.transformer import TransformerEncoder
from lenmem.ops.pointers import Similarity
from lenmem.types import Spec

Encoder = Literal["lstm", "bigru", "transformer", "none"]
Sharpening = Literal["none", "evaluation", "straight_through"]
Decoder = Literal["none", "stack_rnn"]

PAPER: dict[str, Any] = {"encoder": "lstm", "delimiters": False, "attention": "cosine"}
"""The fields for PANM as in the paper's text."""
PUBLISHED: dict[str, Any] = {
    "hidden_size": 128,
    "bits": 8,
    "attention": "dot",
    "mlp_size": None,
    "controller": "attentive",
    "dropout": 0.5,
    "test_base": "random",
}
"""The fields for PANM as in its authors' code."""
BEYOND: dict[str, Any] = {
    "encoder": "none",
    "bits": 8,
    "content_heads": 0,
    "controller": "none",
    "pointer_unit": "feedforward",
    "candidates": "space",
    "address_code": "phases",
}
"""The fields for a PANM whose only state is its pointers."""


class Encoded(Part):
    """The encoder of `PANM`, whose output for embedded inputs is M. A bidirectional encoder sums its directions."""

    kind: Encoder = "bigru"
    hidden_size: int = 256
    layers: int = 2
    heads: int = 4

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, H], or the same states for `none`."""
        if self.kind == "none":
            return states
        if self.kind == "transformer":
            sizes = {"layers": self.layers, "heads": self.heads, "feedforward_size": 2 * self.hidden_size}
            encoder: nn.Module = TransformerEncoder(**sizes, **self.dtypes, name="transformer")
        elif self.kind == "lstm":
            cell: nn.Module = LSTMCell(self.hidden_size, learned_start=False, **self.dtypes, parent=None)
            encoder = Recurrent(cell, name="lstm")
        else:
            cell = GRUCell(self.hidden_size, **self.dtypes, parent=None)
            encoder = Recurrent(cell, bidirectional=True, name="gru")
        states = encoder(states, mask, deterministic=deterministic)
        return jnp.add(*jnp.split(states, 2, axis=-1)) if self.kind == "bigru" else states


class AnswerHead(Part):
    """g_o, which maps the decoder's output to logits or values."""

    features: int
    mlp_size: int | None = 128

    @nn.compact
    def __call__(self, outputs: jax.Array) -> jax.Array:
        """[..., d] -> [..., features]."""
        return MLP(self.mlp_size, **self.dtypes, name="mlp")(outputs, self.features)


class PANM(FlatModel):
    """Pointer-Augmented Neural Memory; `PANM(**PAPER)`, `PANM(**PUBLISHED)` and `PANM(**BEYOND)` are presets.

    If answers are aligned with inputs (Dyck languages), there is no encoder and there are no delimiters. The memory
    then consists of the embedded inputs so far, and z_t is the current input or the output of a `decoder`.
    """

    hidden_size: PositiveInt = 256
    """H: width of encoder, pointer units and controller."""
    embedding_size: PositiveInt | None = None
    """Width of the embeddings; None: one-hot, as in the paper. With a Transformer encoder it is `hidden_size`."""
    encoder: Encoder = "bigru"
    """The encoder. `bigru`: GRUs in both directions, summed. `none`: the slots contain the embedded inputs
    themselves."""
    delimiters: bool = True
    """Add slots for a begin and an end symbol around the inputs. The base and the end pointer start there."""
    bits: PositiveInt = 10
    """b: bits of an address. The (padded) memory must have fewer than 2^b slots."""
    address_heads: NonNegativeInt = 2
    """H_a: pointers that start at the base, the end and the middle address, in this order; 0 to 3."""
    content_heads: NonNegativeInt = 1
    """H_c: heads of Mode 2; 0 to 2."""
    attention: Similarity = "cosine_temperature"
    """`cosine`: equations 2 and 5. `cosine_temperature`: cosines times a learned number for each head. `dot`: as in the
    published code."""
    mlp_size: PositiveInt | None = 128
    """Hidden width of the MLPs g_a, g_c and g_o; None: linear maps."""
    controller: Controller = "gru"
    """`gru`: equation 7. `attentive`: reads z_t, Mode-1 values and its own additive attention over M, which also enters
    the answer. `none`: there is no controller; the answer is computed from the values that the heads read and z_t."""
    pointer_unit: Unit = "gru"
    """`gru`: equation 1. `feedforward`: an MLP of the last pointer, without a state."""
    candidates: Candidates = "memory"
    """A pointer is a mean of the addresses of the memory's slots (`memory`), or of all 2^b addresses, over which the
    memory is repeated (`space`)."""
    sharpening: Sharpening = "none"
    """When pointers are rounded to the address with the largest weight: never (`none`), outside training
    (`evaluation`), or always, with the gradient of the softmax (`straight_through`)."""
    address_code: Code = "bits"
    """Representation of addresses: bits 0 and 1, `signs` -1 and 1, or `phases`, for which adding 1 is a linear map."""
    test_base: TestBase = "zero"
    """p_B outside training: 0, or drawn with a constant key: once for each length, or once if answers are aligned."""
    dropout: UnitInterval = 0.0
    """Dropout of the Mode-2 weights."""
    decoder: Decoder = "none"
    """A network whose output is z_t. `stack_rnn` has 8 units (section 3.2) and requires answers that are aligned with
    inputs. (`lenmem.models.TransformerSeq2Seq` has PANM as the last layer of its decoder.)"""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """z_t: nothing, or the previous answer (in training the target; otherwise the model's own greedy answer)."""
    layers: PositiveInt = 2
    """Layers of a Transformer encoder."""
    heads: PositiveInt = 4
    """Attention heads of a Transformer encoder; they must divide `hidden_size`."""

    @nn.nowrap
    def laid_out(self, inputs: jax.Array, input_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        spec = require_spec(self.spec, self)
        if spec.alignment == "aligned" or not self.delimiters:
            return inputs, input_mask
        return delimited(inputs, input_mask, spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        spec = require_spec(self.spec, self)
        pointers = {
            "hidden_size": self.hidden_size,
            "bits": self.bits,
            "address_heads": self.address_heads,
            "content_heads": self.content_heads,
            "attention": self.attention,
            "mlp_size": self.mlp_size,
            "controller": self.controller,
            "pointer_unit": self.pointer_unit,
            "candidates": self.candidates,
            "hard": self.sharpening == "straight_through" or (self.sharpening == "evaluation" and not train),
            "address_code": self.address_code,
            "test_base": self.test_base,
            "dropout": self.dropout,
            **self.dtypes,
        }

        def head(size: int) -> nn.Module:
            return AnswerHead(size, mlp_size=self.mlp_size, **self.dtypes, name="head")

        if spec.alignment == "aligned":
            width = self.embedding_size or spec.input_width + SPECIAL
            below = StackRNNCell(**self.dtypes, parent=None) if self.decoder == "stack_rnn" else None
            return recurrent(PointerCell(below, **pointers, memory_width=width, name="cell"), self, head=head)
        if self.decoder != "none":
            raise ValueError(f"decoder={self.decoder!r} needs answers aligned with inputs, as in Dyck languages")
        spec = with_delimiters(spec) if self.delimiters else spec
        sizes = {"hidden_size": self.hidden_size, "layers": self.layers, "heads": self.heads, **self.dtypes}
        return EncoderDecoder(
            encoder=Encoded(self.encoder, **sizes, name="encoder"),
            decoder=PointerDecoder(**pointers, reads=self.feedback == "teacher_forced", name="decoder"),
            spec=spec,
            embedding_size=self.hidden_size if self.encoder == "transformer" else self.embedding_size,
            feedback=self.feedback,
            head=head(spec.output_size),
            **self.dtypes,
        )


def delimited(inputs: jax.Array, mask: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """Rows `[begin | inputs | end]` with their mask."""
    lengths, columns = jnp.sum(mask, axis=-1), jnp.arange(mask.shape[-1] + 2)
    rows = place(inputs, lengths, jnp.where(columns < 1, BEGIN, DELIMITER)[None], spec, start=1, kinds=BLANK)
    return rows, columns < lengths[:, None] + 2


def with_delimiters(spec: Spec) -> Spec:
    """The spec of a task with two more input symbols."""
    wider = {"vocabulary": spec.vocabulary + BLANK} if spec.takes_tokens else {"channels": spec.channels + BLANK}
    return dataclasses.replace(spec, **wider)
