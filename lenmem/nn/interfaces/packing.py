"""The layout of rows for the interfaces: special symbols, packing without gaps, embedding."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.types import Spec, check_batch

SPECIAL = 3
"""Number of symbols that an interface may add to the vocabulary: begin, delimiter, blank."""
BEGIN, DELIMITER, BLANK = range(SPECIAL)


def require_spec(spec: Spec | None, module: nn.Module, *batch: jax.Array | None) -> Spec:
    """The bound spec. Raises ValueError if there is none, or if the arrays of `batch` do not fit it.

    `batch`: inputs, input_mask, target_mask, and targets if there are any.
    """
    if spec is None:
        raise ValueError(
            f"{type(module).__name__} has no spec: put it in an Experiment, or bind it with model.clone(spec=task.spec)"
        )
    if batch:
        check_batch(spec, *batch)
    return spec


def after_input(spec: Spec) -> str | None:
    """The reason why a model that answers after reading the whole input cannot take a task, or None."""
    return "answers come after the whole input; the task is causal" if spec.causal else None


class Embedding(Part):
    """Embeds inputs and `special` extra symbols as vectors [.., features].

    Token ids look up a table, initialised as N(0, std^2). Float inputs `[one-hot | channels]` go through a linear map.
    Special symbol i is id `vocabulary + i`, or an indicator column after the channels. With `features=None` the vectors
    are raw: everything is one-hot, with width `input_width + special`.
    """

    spec: Spec
    features: int | None
    special: int = 0
    std: float = 1.0

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """int[...] ids below vocabulary + special, or float[..., input_width + special]."""
        width = self.spec.input_width + self.special
        dtype = self.dtype or self.param_dtype
        if self.features is None:
            return jax.nn.one_hot(inputs, width, dtype=dtype) if self.spec.takes_tokens else inputs.astype(dtype)
        if self.spec.takes_tokens:
            normal = nn.initializers.normal(self.std)
            return nn.Embed(width, self.features, embedding_init=normal, **self.dtypes)(inputs)
        return Linear(self.features, **self.dtypes)(inputs.astype(dtype))


def place(
    inputs: jax.Array,
    input_lengths: jax.Array,
    special: jax.Array,
    spec: Spec,
    *,
    start: int = 0,
    kinds: int = SPECIAL,
) -> jax.Array:
    """Rows of symbols: the real inputs of each row from column `start` on, and special symbols in all other columns.

    inputs int[B, N] or float[B, N, D], input_lengths int[B], special int[1 or B, T] -> int[B, T] ids, or
    float[B, T, D + kinds]. Special symbol i (begin, delimiter, blank) is id V + i, V = vocabulary; float inputs get
    `kinds` more columns instead. Padding is never copied.
    """
    rows, capacity = inputs.shape[:2]
    source = jnp.arange(special.shape[-1]) - start
    reading = (source >= 0) & (source < input_lengths[:, None])
    source = jnp.clip(source, 0, capacity - 1)
    if spec.takes_tokens:
        return jnp.where(reading, inputs.astype(jnp.int32)[:, source], spec.vocabulary + special)
    values = jnp.where(reading[..., None], inputs[:, source], 0)
    columns = jax.nn.one_hot(jnp.broadcast_to(special, (rows, special.shape[-1])), kinds, dtype=inputs.dtype)
    return jnp.concatenate([values, jnp.where(reading[..., None], 0, columns)], axis=-1)


def with_computation(spec: Spec, steps: int) -> Spec:
    """The spec of a task with inputs from `computing`: it has one more token or, for float inputs, one more channel.

    The new token may have the id of the end symbol, because answers do not contain it. A network that answers by
    pointing at inputs must leave it out.
    """
    shapes: Any = spec.shapes

    def longer(capacity: int) -> tuple[int, int]:
        inputs, answers = shapes(capacity)
        return (1 + steps) * inputs, answers

    wider: dict[str, Any] = (
        {"vocabulary": spec.vocabulary + 1} if spec.takes_tokens else {"channels": spec.channels + 1}
    )
    return dataclasses.replace(spec, **wider, computation_steps=steps, shapes=longer if shapes else None)


def computing(inputs: jax.Array, input_mask: jax.Array, spec: Spec, steps: int) -> tuple[jax.Array, jax.Array]:
    """Rows of n inputs followed by `steps` n computation tokens, and their mask bool[B, (1 + steps) N].

    The token has the id V, the size of the vocabulary; float inputs get an indicator column.
    """
    lengths, columns = jnp.sum(input_mask, axis=-1), jnp.arange((1 + steps) * inputs.shape[1])
    rows = place(inputs, lengths, jnp.zeros((1, len(columns)), jnp.int32), spec, kinds=1)
    return rows, columns < (1 + steps) * lengths[:, None]


def tokens_of(symbols: jax.Array, spec: Spec) -> jax.Array:
    """int[B, T]: the ids of placed symbols; special symbol i is `vocabulary + i`, also among float inputs."""
    if spec.takes_tokens:
        return symbols
    special = symbols[..., -SPECIAL:]
    tokens = jnp.argmax(symbols[..., : spec.vocabulary], axis=-1) if spec.vocabulary else 0
    return jnp.where(jnp.any(special > 0, axis=-1), spec.vocabulary + jnp.argmax(special, axis=-1), tokens).astype(int)


class Packed(NamedTuple):
    """Rows ready to be scanned."""

    symbols: jax.Array
    """int[B, T] ids, or float[B, T, D + 3]."""
    decoding: jax.Array
    """bool[B, T]: True from the first answer on."""
    valid: jax.Array
    """bool[B, T]: True up to the last answer."""
    answer_steps: jax.Array
    """int[B, M]: the step that gives each answer."""
    reading_steps: int
    """Number of steps before the first answer, for the longest possible row."""


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
    """Rows `[begin? | inputs | delimiter? | blanks]`, each packed without gaps.

    Blanks are a separate symbol, or the delimiter again. There is no delimiter if the task itself marks the end of its
    input (`spec.delimited`).
    """
    delimiter = 0 if spec.delimited else 1
    before_answers = int(begin) + delimiter + delay - 1
    length = before_answers + inputs.shape[1] + answers
    time = jnp.arange(length)
    first_answer = (before_answers + input_lengths)[:, None]
    delimiting = (time - int(begin) == input_lengths[:, None]) & bool(delimiter)
    special = jnp.where(delimiting, DELIMITER, BLANK if own_blank else DELIMITER)
    if begin:
        special = jnp.where(time < 1, BEGIN, special)
    return Packed(
        symbols=place(inputs, input_lengths, special, spec, start=int(begin)),
        decoding=time >= first_answer,
        valid=time < first_answer + answer_lengths[:, None],
        answer_steps=jnp.clip(first_answer + jnp.arange(answers), 0, length - 1),
        reading_steps=before_answers + inputs.shape[1],
    )
