"""How a network reads a pair of sequences. Every interface is a model: `(inputs, masks) -> outputs [B, M, K]`.

`Transducer(cell)`     the recurrent reading: one scan over `[begin? | inputs | delimiter? | blanks]`
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.cells import as_cell
from lenmem.nn.linear import Linear
from lenmem.nn.recurrence import scan_cell
from lenmem.types import Dtype, Spec, Step


def require_spec(spec: Spec | None, module: nn.Module) -> Spec:
    """The bound spec, or a ValueError that says how to bind one."""
    if spec is None:
        raise ValueError(
            f"{type(module).__name__} has no spec: put it in an Experiment, or bind it with model.clone(spec=task.spec)"
        )
    return spec


class Embedding(nn.Module):
    """Inputs and `special` extra symbols to vectors [.., features].

    Token ids look up a table, N(0, 1) at first. Float inputs `[one-hot | channels]` go through a linear map. Special
    symbol i is id `vocabulary + i`, or an indicator column after the channels. With `features=None` the vectors are raw:
    one-hot of everything, width `input_width + special`.
    """

    spec: Spec
    features: int | None
    special: int = 0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """int[...] ids below vocabulary + special, or float[..., input_width + special]."""
        width = self.spec.input_width + self.special
        dtype = self.dtype or self.param_dtype
        if self.features is None:
            return jax.nn.one_hot(inputs, width, dtype=dtype) if self.spec.takes_tokens else inputs.astype(dtype)
        options = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        if self.spec.takes_tokens:
            normal = nn.initializers.normal(1.0)
            return nn.Embed(width, self.features, embedding_init=normal, **options)(inputs)
        return Linear(self.features, **options)(inputs)


class Transducer(nn.Module):
    """A recurrent cell reads the input, then answers, in one scan of packed rows `[begin? | inputs | delimiter? | blanks]`.

    Rows are packed without gaps, so lengths may differ inside a batch. The answer's slot j is the cell's output at step
    `begin + n + delimiter - 1 + delay + j` of a row with n inputs: with `delay=0` the step that reads the delimiter
    already answers (Yang & Rush 2017), with `delay=1` the one after (Graves et al. 2016). From the first answer on the
    cell is told it is `decoding`. Answers are never fed back.
    """

    cell: nn.Module
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the input embedding; None: one-hot inputs."""
    begin: bool = False
    """Read a begin symbol first."""
    blank: Literal["delimiter", "own"] = "delimiter"
    """The symbol read while answering: the delimiter again, or one of its own."""
    delay: int = 0
    """Steps between the last symbol of the input and the first answer."""
    head: nn.Module | None = None
    """Maps the cell's outputs to `output_size` logits or values; None: a linear map."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def supports(self, spec: Spec) -> str | None:
        """None, or why this model cannot take the task."""
        return "answers come after the whole input; the task is causal" if spec.causal else None

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
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> float[B, M, K]."""
        spec = require_spec(self.spec, self)
        cell = as_cell(self.cell)
        packed = pack(
            inputs,
            jnp.sum(input_mask, axis=-1),
            jnp.sum(target_mask, axis=-1),
            answers=target_mask.shape[-1],
            spec=spec,
            begin=self.begin,
            delay=self.delay,
            own_blank=self.blank == "own",
        )
        embed = Embedding(spec, self.embedding_size, SPECIAL, self.dtype, self.param_dtype, name="embedding")
        steps = Step(embed(packed.symbols), packed.decoding, packed.valid)
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
        carry = cell.start(inputs.shape[:1], packed.reading_steps)
        _, outputs = scan_cell(cell, carry, steps, train=train)
        if self.is_mutable_collection("traces") and not self.is_initializing():
            tokens = packed.symbols if spec.takes_tokens else jnp.argmax(packed.symbols[..., : spec.vocabulary], -1)
            for name, value in (("token", tokens), ("decoding", packed.decoding), ("valid", packed.valid)):
                self.sow("traces", name, value.T)

        def answers(stacked):
            """[T, B, ...] at each row's answer steps: [B, M, ...]."""
            return stacked[packed.answer_steps, jnp.arange(inputs.shape[0])[:, None]]

        head = self.head or Linear(spec.output_size, dtype=self.dtype, param_dtype=self.param_dtype, name="head")
        return head(jax.tree.map(answers, outputs))


SPECIAL = 3
"""Symbols an interface adds to the vocabulary: begin, delimiter, blank."""


class Packed(NamedTuple):
    """Rows ready to be scanned."""

    symbols: jax.Array
    """int[B, T] ids, or float[B, T, D + 3]."""
    decoding: jax.Array
    """bool[B, T]: from the first answer on."""
    valid: jax.Array
    """bool[B, T]: up to the last answer."""
    answer_steps: jax.Array
    """int[B, M]: the step that gives each answer."""
    reading_steps: int
    """Steps before any decoding, of the longest possible row."""


def pack(
    inputs: jax.Array,
    input_lengths: jax.Array,
    answer_lengths: jax.Array,
    *,
    answers: int,
    spec: Spec,
    begin: bool,
    delay: int,
    own_blank: bool,
) -> Packed:
    """Rows `[begin? | inputs | delimiter? | blanks]`, one after the other without gaps.

    begin = id V, delimiter = V + 1, blank = V + 2 (or the delimiter again), V = vocabulary; float inputs get three more
    columns instead. A task that marks the end of its input itself (`spec.delimited`) gets no delimiter.
    """
    begin_id, delimiter_id = spec.vocabulary, spec.vocabulary + 1
    blank_id = spec.vocabulary + 2 if own_blank else delimiter_id
    delimiter = 0 if spec.delimited else 1
    capacity = inputs.shape[1]
    before_answers = int(begin) + delimiter + delay - 1
    length = before_answers + capacity + answers
    time = jnp.arange(length)
    first_answer = (before_answers + input_lengths)[:, None]
    source = time - int(begin)
    reading = (source >= 0) & (source < input_lengths[:, None])
    delimiting = (source == input_lengths[:, None]) & bool(delimiter)
    special_id = jnp.where(delimiting, delimiter_id, blank_id)
    if begin:
        special_id = jnp.where(time < 1, begin_id, special_id)
    source = jnp.clip(source, 0, capacity - 1)
    if spec.takes_tokens:
        symbols = jnp.where(reading, inputs[:, source], special_id)
    else:
        columns = jax.nn.one_hot(special_id - spec.vocabulary, SPECIAL, dtype=inputs.dtype)
        values = jnp.where(reading[..., None], inputs[:, source], 0)
        symbols = jnp.concatenate([values, jnp.where(reading[..., None], 0, columns)], axis=-1)
    return Packed(
        symbols=symbols,
        decoding=time >= first_answer,
        valid=time < first_answer + answer_lengths[:, None],
        answer_steps=jnp.minimum(first_answer + jnp.arange(answers), length - 1),
        reading_steps=before_answers + capacity,
    )


def recurrent(cell: nn.Module, model: nn.Module, *, head: Any = None, **fields: Any) -> nn.Module:
    """The interface through which a flat recurrent model reads its task: `Aligned` or `Transducer`.

    `model` lends its `spec`, `embedding_size`, `dtype` and `param_dtype`; `head` maps an output size to a module.
    """
    spec = require_spec(model.spec, model)
    return Transducer(
        cell,
        spec=spec,
        embedding_size=model.embedding_size,
        head=head(spec.output_size) if head else None,
        dtype=model.dtype,
        param_dtype=model.param_dtype,
        **fields,
    )
