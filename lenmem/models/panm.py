"""Pointer-Augmented Neural Memory (PANM).

Le, Nguyen, Do, Venkatesh & Tran, "Enhancing Length Extrapolation in Sequential Models with Pointer-Augmented Neural
Memory", 2024, https://arxiv.org/abs/2404.11870 (TMLR 2024, with code at https://github.com/thaihungle/PANM).

An encoder turns the input into a memory with one slot per position. Each slot is bound to a physical address: a binary
number, counted up from a base that is drawn for every training sequence. Pointer units move over addresses and never
see data, so the rules they learn ("the next address") hold for new data and new positions. The value at a pointer is
read from the memory (Mode 1), is used as a query for related values (Mode 2), and goes directly to the answer.
Equations 1 to 7 are in `lenmem.nn.pointers`.

Notation: M memory [B, N, d]; A addresses [B, N, b] of b bits; p_B, p_E base and end address, of the first and the last
slot; p a pointer, *p the value that it points at; w its weights over the slots; H_a address heads of width H, H_c
content heads; z_t an additional input of the controller: nothing in open loop, the last answer under teacher forcing,
or the output of another decoder. Cost per step: O(H_a (H^2 + N H) + H_c N d + H (H + (H_a + H_c) d)).

The paper, the authors' code, and the defaults here (the best at copying up to 80 tokens):

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
    Mode-2 weights      as they are             dropout 0.5                                 as in the paper
    base at test        0                       random                                      0
    ==================  ======================  ==========================================  =====================

Not adopted from the code: batches with more than one row mix up the addresses in pointers (a reshape instead of a
transposition); address 0 is drawn twice as often as others; the additive attention has a ReLU, here tanh; the projected
values go through two successive linear maps, here one. Its controller starts from the forward GRU's last state, here
from the last slot, which differs by a constant vector, the backward GRU's state at the end delimiter. The order of the
bits makes no difference to learned maps.

`BEYOND` is for lengths far from training. A softmax over the slots of short memories only learns to distinguish nearby
addresses: four bits suffice for 10 inputs, and repeat after 16 slots. Here pointers choose from the whole address
space, in which the memory is repeated: pointing at a wrong address then reads a wrong value. Adding 1 to a binary
number needs carries; the longer a carry, the rarer it is, and copying fails at carries that were not learned. Addresses
are therefore phases, for which adding 1 is a rotation. Nothing else is carried from step to step: units have no state,
the memory holds the bare tokens, and the answer is made from the values at the pointers.
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
"""The fields of PANM as in the paper's text."""
PUBLISHED: dict[str, Any] = {
    "hidden_size": 128,
    "bits": 8,
    "attention": "dot",
    "mlp_size": None,
    "controller": "attentive",
    "dropout": 0.5,
    "test_base": "random",
}
"""The fields of PANM as in its authors' code."""
BEYOND: dict[str, Any] = {
    "encoder": "none",
    "bits": 8,
    "content_heads": 0,
    "controller": "none",
    "pointer_unit": "feedforward",
    "candidates": "space",
    "address_code": "phases",
}
"""The fields of a PANM whose steps are all the same map, at any length."""


class Encoded(Part):
    """M: the output of `PANM.encoder` on embedded inputs. A bidirectional encoder sums its directions."""

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
    """g_o: the decoder's output to logits or values."""

    features: int
    mlp_size: int | None = 128

    @nn.compact
    def __call__(self, outputs: jax.Array) -> jax.Array:
        """[..., d] -> [..., features]."""
        return MLP(self.mlp_size, **self.dtypes, name="mlp")(outputs, self.features)


class PANM(FlatModel):
    """Pointer-Augmented Neural Memory; `PANM(**PAPER)`, `PANM(**PUBLISHED)` and `PANM(**BEYOND)` are presets.

    If answers are aligned with inputs (Dyck languages) there are no encoder and no delimiters: the memory is the
    embedded inputs so far, and z_t is the current one or the output of a `decoder`.
    """

    hidden_size: PositiveInt = 256
    """H: width of encoder, pointer units and controller."""
    embedding_size: PositiveInt | None = None
    """Width of the embeddings; None: one-hot, as in the paper. A Transformer encoder embeds in `hidden_size`."""
    encoder: Encoder = "bigru"
    """The encoder. `bigru`: GRUs in both directions, summed. `none`: slots hold the embedded inputs themselves."""
    delimiters: bool = True
    """Slots for a begin and an end symbol around the inputs, at which base and end pointer start."""
    bits: PositiveInt = 10
    """b: bits of an address. There must be more addresses, 2^b, than slots in the (padded) memory."""
    address_heads: NonNegativeInt = 2
    """H_a: pointers that start at the base, the end and the middle address, in this order; 0 to 3."""
    content_heads: NonNegativeInt = 1
    """H_c: heads of Mode 2; 0 to 2."""
    attention: Similarity = "cosine_temperature"
    """`cosine`: equations 2 and 5. `cosine_temperature`: times a learned number per head. `dot`: as published."""
    mlp_size: PositiveInt | None = 128
    """Hidden width of the MLPs g_a, g_c and g_o; None: linear maps."""
    controller: Controller = "gru"
    """`gru`: equation 7. `attentive`: reads z_t, Mode-1 values and its own additive attention over M. `none`: the
    answer is made from the heads' reads and z_t."""
    pointer_unit: Unit = "gru"
    """`gru`: equation 1. `feedforward`: an MLP of the last pointer alone, so that all steps are the same map."""
    candidates: Candidates = "memory"
    """A pointer mixes the addresses of the memory's slots, or all 2^b addresses, over which the memory is repeated."""
    sharpening: Sharpening = "none"
    """Round pointers to the address of their largest weight: never; outside training; always (straight-through)."""
    address_code: Code = "bits"
    """Representation of addresses: bits 0 and 1, `signs` -1 and 1, or `phases`, for which adding 1 is a linear map."""
    test_base: TestBase = "zero"
    """p_B outside training: 0, or drawn with a constant key for each length."""
    dropout: UnitInterval = 0.0
    """Dropout of the Mode-2 weights."""
    decoder: Decoder = "none"
    """The network below the pointers, whose output is then z_t. `stack_rnn` has 8 units (section 3.2) and needs answers
    aligned with inputs. (`lenmem.models.TransformerSeq2Seq` uses PANM as its decoder's last layer.)"""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """z_t: nothing, or the previous answer (in training the target; otherwise the model's own greedy one)."""
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
