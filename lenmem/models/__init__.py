"""The models by name. A new paper adds one line to `MODELS` for each of its models."""

from __future__ import annotations

import inspect
from typing import Any

import flax.linen as nn

from lenmem.errors import choices
from lenmem.fields import settable
from lenmem.models.about import ABOUT
from lenmem.models.automaton import AnswerAutomaton
from lenmem.models.bert import BertSpans
from lenmem.models.chomsky import Elman, TapeRNN, VectorStackRNN
from lenmem.models.delta_net import DeltaNet
from lenmem.models.dnc import DNC
from lenmem.models.esbn import ESBN
from lenmem.models.lantm import LANTM, SLANTM
from lenmem.models.looped import LoopedTransformer
from lenmem.models.lstm import GRU, LSTM
from lenmem.models.mamba import Mamba2
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
from lenmem.models.pushdown import Pushdown
from lenmem.models.ram import RAM, RAMTape
from lenmem.models.seq2seq import Attention
from lenmem.models.stack_rnn import StackRNN
from lenmem.models.transformer import Transformer
from lenmem.models.transformer_seq2seq import TransformerSeq2Seq
from lenmem.models.two_way import TwoWay
from lenmem.models.xlstm import XLSTM
from lenmem.nn.interfaces.encoding import is_cell
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
    "XLSTM",
    "AnswerAutomaton",
    "Attention",
    "BertSpans",
    "DeltaNet",
    "Elman",
    "LSTMAttention",
    "LSTMClassifier",
    "LoopedTransformer",
    "Mamba2",
    "NAMTransformer",
    "NeuralStack",
    "PointerNetwork",
    "Pushdown",
    "RAMTape",
    "RecurrentLSAM",
    "StackRNN",
    "TapeRNN",
    "Transformer",
    "TransformerSeq2Seq",
    "TwoWay",
    "UniversalTransformer",
    "VectorStackRNN",
    "fields_of",
    "make",
    "name_of",
    "names",
    "supports",
]

_SHARED: dict[str, Any] = {"gated": False}
_RELATIVE: dict[str, Any] = {"attention": "relative", "embedding_init": "kaiming"}
_GEOMETRIC: dict[str, Any] = {"normalize": True, "embedding_init": "kaiming"}
"""Common fields of the Transformers without a copy gate of Csordás et al. (2022)."""

_PEEPHOLE: dict[str, Any] = {"controller": "peephole"}
_IMPROVED: dict[str, Any] = {"masking": True, "deallocation": True, "link_sharpness": True, "plain_lengths": True}
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
    "elman": (Elman, {}),
    "transformer": (Transformer, {}),
    **{f"transformer_{x}": (Transformer, {"positions": x}) for x in _POSITIONS},
    "transformer_xl": (Transformer, {"positions": "relative"}),
    "transformer_randomized": (Transformer, {"positions": "relative", "random_positions": True}),
    "transformer_stick_breaking": (Transformer, {"positions": "none", "attention": "stick_breaking"}),
    "transformer_forgetting": (Transformer, {"positions": "none", "attention": "forgetting"}),
    "looped_transformer": (LoopedTransformer, {}),
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
    "stack_rnn_vector": (VectorStackRNN, {}),
    "stack_lstm": (VectorStackRNN, {"controller": "lstm"}),
    "tape_rnn": (TapeRNN, {}),
    "nram": (NRAM, {}),
    "esbn": (ESBN, {}),
    "two_way": (TwoWay, {}),
    "two_way_indexed": (TwoWay, {"index": True}),
    "answer_automaton": (AnswerAutomaton, {}),
    "pushdown": (Pushdown, {}),
    "nam_transformer": (NAMTransformer, {"attention": "outer_product"}),
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
    "lstm_classifier": (LSTMClassifier, {"begin": False, "end": False}),
    "bilstm_classifier": (LSTMClassifier, {"bidirectional": True, "begin": False}),
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
    "bert_span": (BertSpans, {}),
    "bert_span_panm": (BertSpans, {"pointers": True}),
    "delta_net": (DeltaNet, {}),
    "delta_net_negative": (DeltaNet, {"negative_eigenvalues": True}),
    "gated_delta_net": (DeltaNet, {"decay": True, "gated_output": True}),
    "delta_product": (
        DeltaNet,
        {"negative_eigenvalues": True, "products": 2, "kernel_size": 0, "layers": 1, "heads": 8, "head_size": 32},
    ),
    "mamba2": (Mamba2, {}),
    "mlstm": (XLSTM, {"cell": "mlstm"}),
    "slstm": (XLSTM, {"cell": "slstm", "feedforward_size": 256}),
}
"""name -> (class, fields that differ from its defaults)."""


def names() -> tuple[str, ...]:
    """All model names."""
    return tuple(MODELS)


def fields_of(name: str) -> tuple[str, ...]:
    """The fields of a model that can be set."""
    kind, _ = _entry(name)
    return tuple(settable(kind))


def make(name: str, spec: Spec | None = None, **fields: Any) -> nn.Module:
    """A model by name, bound to `spec` if given.

    Raises ValueError for an unknown name or field, or for a task that the model cannot take.
    """
    kind, preset = _entry(name)
    allowed = fields_of(name)
    for field in fields:
        if field not in allowed:
            raise ValueError(f"model {name!r} has no field {field!r}.{choices(field, allowed)}")
    model = kind(**{"spec": spec, **preset, **fields})
    reason = supports(model, spec) if spec is not None else None
    if reason:
        raise ValueError(f"model {name!r} cannot take the task: {reason}")
    return model


def name_of(model: nn.Module) -> str | None:
    """The name of a model: the entry with its class and the most preset fields that it matches."""
    fitting = [
        (len(preset), name)
        for name, (kind, preset) in MODELS.items()
        if type(model) is kind and all(getattr(model, field) == value for field, value in preset.items())
    ]
    return max(fitting)[1] if fitting else None


def supports(model: nn.Module, spec: Spec) -> str | None:
    """None, or in one line why a model cannot take a task. A module without a method `supports` takes every task, if
    it has the interface of a model."""
    asked = getattr(model, "supports", None)
    reason = asked(spec) if asked is not None else None
    return _interface_problem(model) if reason is None else reason


def _interface_problem(model: nn.Module) -> str | None:
    """None, or how the arguments of a module differ from those of a model."""
    taken = inspect.signature(model.__call__ if callable(model) else lambda: None)
    try:
        taken.bind("inputs", "input_mask", "target_mask", targets=None, train=True)
    except TypeError:
        cell = "; lenmem.nn.Transducer makes a model of a recurrent cell" if is_cell(model) else ""
        names = ", ".join(taken.parameters)
        return f"a model is called with (inputs, input_mask, target_mask, *, targets, train), this with ({names}){cell}"
    return None


def _entry(name: str) -> tuple[type[nn.Module], dict[str, Any]]:
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}.{choices(name, MODELS, listed='lenmem list')}")
    return MODELS[name]
