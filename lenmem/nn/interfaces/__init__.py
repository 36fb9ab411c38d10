"""Interfaces that apply a network to pairs of sequences. Each is a model: `(inputs, masks) -> outputs [B, M, K]`.

`Transducer(cell)`                  a recurrent cell: one scan over `[begin? | inputs | delimiter? | blanks]`
`Completion(encoder)`               one pass over `[inputs | mask tokens]`, read at the masks
`Readout(encoder)`                  one pass over `[begin? | inputs | end?]`, read from one column (one answer slot)
`EncoderDecoder(encoder, decoder)`  a memory of the input, then one step for each answer slot
`Aligned(cell or encoder)`          answer t is read at input t

A *cell* is described in `lenmem.nn.recurrence`, a *decoder* in `EncoderDecoder`. An *encoder* is a Linen module with
`__call__(states [B, N, d], mask bool[B, N]) -> states [B, N, d']`. Its optional argument `deterministic` is False in
training, where it may use dropout. If state t depends only on states 0 .. t, it has an attribute `causal = True`.
Interfaces own the embedding and the head.

All interfaces accept rows of different lengths in one batch and ignore padding. `supports(spec)` returns None, or in
one line the reason why the interface cannot be used for a task.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from lenmem.fields import NonNegativeInt
from lenmem.nn.interfaces.decoding import EncoderDecoder
from lenmem.nn.interfaces.encoding import Aligned, Completion, Readout
from lenmem.nn.interfaces.packing import (
    BEGIN,
    BLANK,
    DELIMITER,
    SPECIAL,
    Embedding,
    Packed,
    after_input,
    computing,
    pack,
    place,
    require_spec,
    with_computation,
)
from lenmem.nn.interfaces.recurrent import Transducer
from lenmem.nn.module import Part
from lenmem.types import Spec, check_batch

__all__ = [
    "BEGIN",
    "BLANK",
    "DELIMITER",
    "SPECIAL",
    "Aligned",
    "Completion",
    "Embedding",
    "EncoderDecoder",
    "FlatModel",
    "Packed",
    "Readout",
    "Transducer",
    "after_input",
    "computing",
    "pack",
    "place",
    "recurrent",
    "require_spec",
    "sequential",
    "with_computation",
]


def recurrent(cell: nn.Module, model: Any, *, head: Any = None, **fields: Any) -> nn.Module:
    """The interface of a recurrent `FlatModel` for its task: `Aligned` or `Transducer`.

    `spec`, `embedding_size`, `dtype` and `param_dtype` are those of `model`; `head` maps an output size to a module.
    `fields` are the Transducer's own (`begin`, `blank`, `delay`); `Aligned` adds no symbols and ignores them.
    """
    shared = _shared(model, model.embedding_size, head)
    return Aligned(cell, **shared) if _spec(model).alignment == "aligned" else Transducer(cell, **shared, **fields)


def sequential(
    encoder: nn.Module,
    model: Any,
    *,
    embedding_size: int | None,
    embedding_std: float = 1.0,
    head: Any = None,
    **fields: Any,
) -> nn.Module:
    """The interface of an encoder `FlatModel` for its task: `Aligned`, `Readout` or `Completion`.

    `Readout` if the task has a single answer slot at every length, `Completion` otherwise. `spec`, `dtype` and
    `param_dtype` are those of `model`. `fields` are the Readout's own (`begin`, `end`, `column`); the other interfaces
    ignore them.
    """
    shared = _shared(model, embedding_size, head)
    shared["embedding_std"] = embedding_std
    if _spec(model).alignment == "aligned":
        return Aligned(encoder, **shared)
    return Readout(encoder, **shared, **fields) if _spec(model).single_answer else Completion(encoder, **shared)


def _spec(model: Any) -> Spec:
    return require_spec(model.spec, model)


def _shared(model: Any, embedding_size: int | None, head: Any) -> dict[str, Any]:
    """The fields that all interfaces share, from those of a `FlatModel`."""
    spec = _spec(model)
    return {
        "spec": spec,
        "embedding_size": embedding_size,
        "head": head(spec.output_size) if head else None,
        "dtype": model.dtype,
        "param_dtype": model.param_dtype,
    }


class FlatModel(Part, kw_only=True):
    """Base of models that are configured by their fields; `reader` builds the network."""

    spec: Spec | None = None
    computation_steps: NonNegativeInt = 0
    """Number of computation tokens per input, which are read between the input and the answer. Delétang et al. (2023)
    use 0, 1 or 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.computation_steps and type(self).__call__ is not FlatModel.__call__:
            raise ValueError(f"{type(self).__name__} has its own way to read inputs; computation_steps must be 0")

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.causal and getattr(self, "random_positions", False):
            return "random positions depend on the length of the row, and the task is causal"
        if spec.alignment == "aligned":
            after = "computation tokens come after the input; the task's answers are aligned with its inputs"
            return after if self.computation_steps else None
        return after_input(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        """The network with the interface for its task: `recurrent`, `sequential`, or another one.

        `answers`: the number of answer slots.
        """
        raise NotImplementedError

    @nn.nowrap
    def laid_out(self, inputs: jax.Array, input_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The inputs and their mask as the module of `reader` takes them."""
        return inputs, input_mask

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        input_mask: jax.Array,
        target_mask: jax.Array,
        *,
        targets: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]; targets as in `Batch`."""
        spec = require_spec(self.spec, self)
        if reason := self.supports(spec):
            raise ValueError(f"{type(self).__name__} cannot take the task: {reason}")
        check_batch(spec, inputs, input_mask, target_mask, targets)
        model = self
        if self.computation_steps:
            inputs, input_mask = computing(inputs, input_mask, spec, self.computation_steps)
            # `model` is only a description. The network itself is created as a part of this module.
            model = self.clone(spec=with_computation(spec, self.computation_steps), computation_steps=0)
        reader = model.reader(answers=target_mask.shape[-1], train=train)
        return reader(*model.laid_out(inputs, input_mask), target_mask, targets=targets, train=train)
