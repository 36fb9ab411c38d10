"""The models by name. A later paper joins with one line of `MODELS` for each of its models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import flax.linen as nn

from lenmem.errors import nearest
from lenmem.models.dnc import DNC
from lenmem.models.esbn import ESBN
from lenmem.models.lantm import LANTM, SLANTM
from lenmem.models.lstm import GRU, LSTM
from lenmem.models.nam import LSAM, NAMTransformer, RecurrentLSAM
from lenmem.models.nam_baselines import BERT, LSTMAttention, UniversalTransformer
from lenmem.models.namtm import NAMTM
from lenmem.models.ndr import NDR
from lenmem.models.ndr_baselines import LSTMClassifier
from lenmem.models.neural_stack import NeuralStack
from lenmem.models.nram import NRAM
from lenmem.models.ntm import NTM
from lenmem.models.panm import BEYOND, PANM, PAPER, PUBLISHED
from lenmem.models.pointer_network import PointerNetwork
from lenmem.models.ram import RAM, RAMTape
from lenmem.models.seq2seq import Attention
from lenmem.models.stack_rnn import StackRNN
from lenmem.models.transformer import Transformer
from lenmem.models.transformer_seq2seq import TransformerSeq2Seq
from lenmem.types import Spec

__all__ = [
    "ABOUT",
    "BERT",
    "DNC",
    "ESBN",
    "GRU",
    "LANTM",
    "LSAM",
    "LSTM",
    "MODELS",
    "NAMTM",
    "NDR",
    "NRAM",
    "NTM",
    "PANM",
    "RAM",
    "SLANTM",
    "Attention",
    "LSTMAttention",
    "LSTMClassifier",
    "NAMTransformer",
    "NeuralStack",
    "PointerNetwork",
    "RAMTape",
    "RecurrentLSAM",
    "StackRNN",
    "Transformer",
    "TransformerSeq2Seq",
    "UniversalTransformer",
    "fields_of",
    "make",
    "name_of",
    "names",
    "supports",
]

_SHARED: dict[str, Any] = {"gated": False}
_RELATIVE: dict[str, Any] = {"attention": "relative", "embedding_init": "kaiming"}
_GEOMETRIC: dict[str, Any] = {"normalize": True, "embedding_init": "kaiming"}
"""What the Transformers without a copy gate of Csordas et al. (2022) have in common."""

_PEEPHOLE: dict[str, Any] = {"controller": "peephole"}
_IMPROVED: dict[str, Any] = {"masking": True, "deallocation": True, "link_sharpness": True}
_POSITIONS = ("none", "learned", "rotary", "alibi", "t5", "fire")

MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lantm": (LANTM, {}),
    "lantm_s": (LANTM, {"weighting": "softmax"}),
    "slantm": (SLANTM, {}),
    "slantm_s": (SLANTM, {"weighting": "softmax"}),
    "ram": (RAM, {}),
    "ram_tape": (RAMTape, {}),
    "lstm": (LSTM, {}),
    "gru": (GRU, {}),
    "transformer": (Transformer, {}),
    **{f"transformer_{x}": (Transformer, {"positions": x}) for x in _POSITIONS},
    "transformer_xl": (Transformer, {"positions": "relative"}),
    "transformer_randomized": (Transformer, {"positions": "relative", "random_positions": True}),
    "transformer_seq2seq": (TransformerSeq2Seq, {}),
    "transformer_seq2seq_relative": (TransformerSeq2Seq, {"positions": "relative", "embedding": "xavier"}),
    "transformer_seq2seq_universal": (TransformerSeq2Seq, {"shared_layers": True}),
    "transformer_panm": (TransformerSeq2Seq, {"pointers": True}),
    "attention": (Attention, {}),
    "location_attention": (Attention, {"attention": "location"}),
    "hybrid_attention": (Attention, {"attention": "hybrid"}),
    "pointer_network": (PointerNetwork, {}),
    "neural_stack": (NeuralStack, {}),
    "stack_rnn": (StackRNN, {}),
    "nram": (NRAM, {}),
    "esbn": (ESBN, {}),
    "nam_transformer": (NAMTransformer, {}),
    "linear_transformer": (NAMTransformer, {"attention": "linear"}),
    "lsam": (LSAM, {}),
    "lsam_cell": (RecurrentLSAM, {}),
    "nam_tm": (NAMTM, {}),
    "nam_tm_no_jump": (NAMTM, {"jump": False}),
    "universal_transformer": (UniversalTransformer, {}),
    "bert": (BERT, {}),
    "lstm_attention": (LSTMAttention, {}),
    "ndr": (NDR, {}),
    "ndr_relative_gate": (NDR, {"attention": "relative", "update": "tanh"}),
    "ndr_absolute_relative_gate": (NDR, {"attention": "absolute_relative", "update": "tanh"}),
    "transformer_shared": (NDR, _SHARED | {"attention": "absolute"}),
    "transformer_relative": (NDR, _SHARED | _RELATIVE),
    "transformer_geometric": (NDR, _SHARED | _GEOMETRIC),
    "act": (NDR, _SHARED | {"attention": "absolute", "halting": "graves"}),
    "act_relative": (NDR, _SHARED | _RELATIVE | {"halting": "graves"}),
    "act_geometric": (NDR, _SHARED | _GEOMETRIC | {"halting": "graves"}),
    "act_universal": (NDR, _SHARED | {"attention": "absolute", "halting": "dehghani"}),
    "act_universal_relative": (NDR, _SHARED | _RELATIVE | {"halting": "dehghani"}),
    "act_universal_geometric": (NDR, _SHARED | _GEOMETRIC | {"halting": "dehghani"}),
    "lstm_classifier": (LSTMClassifier, {}),
    "bilstm_classifier": (LSTMClassifier, {"bidirectional": True}),
    "dnc": (DNC, {}),
    "dnc_stateless": (DNC, {"controller": "feedforward"}),
    "dnc_peephole": (DNC, _PEEPHOLE),
    "dnc_compression": (DNC, _PEEPHOLE | {"compression": True}),
    "dnc_regularized": (DNC, _PEEPHOLE | {"regularization": 0.1}),
    "dnc_compression_regularized": (DNC, _PEEPHOLE | {"compression": True, "regularization": 0.1}),
    "dnc_lstm_compression": (DNC, {"compression": True}),
    "dnc_lstm_regularized": (DNC, {"regularization": 0.1}),
    "dnc_lstm_compression_regularized": (DNC, {"compression": True, "regularization": 0.1}),
    "dnc_improved": (DNC, _IMPROVED),
    "ntm": (NTM, {}),
    "panm": (PANM, {}),
    "panm_paper": (PANM, PAPER),
    "panm_published": (PANM, PUBLISHED),
    "panm_beyond": (PANM, BEYOND),
}
"""name -> (class, fields that differ from its defaults)."""

ABOUT: dict[tuple[str, ...], tuple[str, str]] = {
    ("lantm", "lantm_s"): (
        "Lie-access memory: heads shift over the plane, reads by inverse-square distance or by a softmax of it (`_s`)",
        "Yang & Rush 2017",
    ),
    ("slantm", "slantm_s"): ("the same on the sphere, heads move by rotations", "Yang & Rush 2017"),
    ("ram", "ram_tape"): (
        "random-access memory with content keys, and with a tape head beside them",
        "baselines of the same paper",
    ),
    ("lstm", "gru"): ("recurrent encoder-decoders of one or more layers", "baselines"),
    ("attention",): ("recurrent encoder, decoder with additive attention", "baseline"),
    ("location_attention", "hybrid_attention"): (
        "the decoder of `attention`, looking at places instead of contents, and at both",
        "baselines of Le et al. 2024",
    ),
    ("pointer_network",): ("answers by pointing at tokens of the input", "Vinyals et al. 2015"),
    ("nam_tm", "nam_tm_no_jump"): (
        "NAM Turing machine: tapes written and read by outer products, heads that move left, stay, move right or jump",
        "Nam & Seo 2022",
    ),
    ("lsam", "lsam_cell"): (
        "an LSTM whose cell state is a matrix memory: the two-layer model of the paper, and the cell alone",
        "Nam & Seo 2022",
    ),
    ("nam_transformer", "linear_transformer"): (
        "Transformer on normalised outer-product attention, and on linear attention",
        "Nam & Seo 2022",
    ),
    ("bert", "universal_transformer", "lstm_attention"): (
        "BERT-shaped and Universal Transformer, bidirectional LSTMs with attention between",
        "baselines of the same paper",
    ),
    ("transformer", "transformer_none", "transformer_learned"): (
        "post-norm Transformer encoder with sinusoidal positions, with none, and with learned ones",
        "baselines",
    ),
    ("transformer_xl", "transformer_rotary", "transformer_alibi", "transformer_t5", "transformer_fire"): (
        "the same with positions that act on pairs: Transformer-XL's, RoPE, ALiBi, T5's buckets, FIRE",
        "Dai et al. 2019, Su et al. 2021, Press et al. 2022, Raffel et al. 2020, Li et al. 2024",
    ),
    ("transformer_randomized",): (
        "`transformer_xl` whose columns are numbered by random draws; a field, `random_positions`, of all of them",
        "Ruoss et al. 2023",
    ),
    ("transformer_seq2seq", "transformer_seq2seq_relative", "transformer_seq2seq_universal"): (
        "encoder-decoder Transformer with cached answers; with relative positions; with one layer's weights for all",
        "Csordás et al. 2021",
    ),
    ("ndr",): (
        "Neural Data Router: one layer again and again, a gate that copies columns, attention to the nearest match",
        "Csordás et al. 2022",
    ),
    ("ndr_relative_gate", "ndr_absolute_relative_gate"): (
        "the same with relative positions, and with a gate between relative and absolute ones",
        "ablations of the same paper",
    ),
    ("transformer_shared", "transformer_relative", "transformer_geometric"): (
        "Transformers with one layer's weights for all, without a gate",
        "baselines of the same paper",
    ),
    ("act", "act_relative", "act_geometric"): (
        "the same with adaptive computation time by Graves' rule",
        "baselines of the same paper",
    ),
    ("act_universal", "act_universal_relative", "act_universal_geometric"): (
        "the same by the Universal Transformer's rule",
        "baselines of the same paper",
    ),
    ("dnc", "dnc_stateless"): (
        "differentiable neural computer: writes where it is free or alike, reads by content and in order; stateless",
        "Graves et al. 2016",
    ),
    ("dnc_peephole", "dnc_compression", "dnc_regularized", "dnc_compression_regularized"): (
        "the same with constraints on the controller's states",
        "Ofner & Kern 2021",
    ),
    ("dnc_lstm_compression", "dnc_lstm_regularized", "dnc_lstm_compression_regularized"): (
        "these constraints on a plain LSTM",
        "ablations of the same paper",
    ),
    ("dnc_improved",): (
        "the same with masked lookup, erasure of freed slots, sharper links",
        "Csordás & Schmidhuber 2019",
    ),
    ("ntm",): ("neural Turing machine: heads that look up by content and shift", "Graves et al. 2014"),
    ("lstm_classifier", "bilstm_classifier"): (
        "LSTMs of one and of two directions that answer from their last states",
        "baselines of Csordás et al. 2022",
    ),
    ("panm", "panm_paper", "panm_published"): (
        "pointers that walk over physical addresses and never see data; to the letter of the paper; as in its code",
        "Le et al. 2024",
    ),
    ("panm_beyond",): ("the same with nothing carried but the pointers, for lengths far from training", "ours"),
    ("transformer_panm",): ("encoder-decoder Transformer with PANM as its last layer", "Le et al. 2024"),
    ("neural_stack",): ("LSTM with a stack whose pushes and pops have a strength", "Grefenstette et al. 2015"),
    ("stack_rnn",): (
        "Elman network with a mean of pushed and popped stacks",
        "Joulin & Mikolov 2015, Suzgun et al. 2019",
    ),
    ("nram",): ("registers of random integers, wired to fixed modules by a controller", "Kurach et al. 2016"),
    ("esbn",): ("an LSTM that sees keys bound to inputs, and never the inputs", "Webb et al. 2021"),
}
"""names -> (what they are, where they come from)."""


def names() -> tuple[str, ...]:
    """All model names."""
    return tuple(MODELS)


def fields_of(name: str) -> tuple[str, ...]:
    """The fields of a model that can be set."""
    kind, _ = _entry(name)
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in ("parent", "name", "spec"))


def make(name: str, spec: Spec | None = None, **fields: Any) -> nn.Module:
    """A model by name, bound to `spec` if given.

    A ValueError for an unknown name or field, or for a task it cannot take.
    """
    kind, preset = _entry(name)
    allowed = fields_of(name)
    for field in fields:
        if field not in allowed:
            raise ValueError(f"model {name!r} has no field {field!r}{_allowed(field, allowed)}")
    model = kind(**{"spec": spec, **preset, **fields})
    reason = supports(model, spec) if spec is not None else None
    if reason:
        raise ValueError(f"model {name!r} cannot take the task: {reason}")
    return model


def name_of(model: nn.Module) -> str | None:
    """The name a model goes by: the entry of its class whose preset fields it has, the most specific one."""
    fitting = [
        (len(preset), name)
        for name, (kind, preset) in MODELS.items()
        if type(model) is kind and all(getattr(model, field) == value for field, value in preset.items())
    ]
    return max(fitting)[1] if fitting else None


def supports(model: nn.Module, spec: Spec) -> str | None:
    """None, or in one line why a model cannot take a task. A module without a `supports` of its own takes them all."""
    asked = getattr(model, "supports", None)
    return asked(spec) if asked is not None else None


def _entry(name: str) -> tuple[type[nn.Module], dict[str, Any]]:
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}{_allowed(name, MODELS)}")
    return MODELS[name]


def _allowed(got: str, allowed: Iterable[str]) -> str:
    return f".{nearest(got, allowed)} Allowed: {', '.join(allowed)}"
