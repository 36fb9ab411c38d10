"""The one-pass interfaces: an encoder reads a row with slots for the answer, or answers position by position."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.cells import Stacked
from lenmem.nn.interfaces.packing import (
    BEGIN,
    BLANK,
    DELIMITER,
    SPECIAL,
    Embedding,
    after_input,
    place,
    require_spec,
    tokens_of,
)
from lenmem.nn.interfaces.recurrent import run_cell
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part, told
from lenmem.types import Spec, Step

GIVES_NONE = "positions='given' needs a task that gives positions to its tokens and answers after its input"
"""The reason why a task is refused."""


class Completion(Part):
    """An encoder reads the inputs followed by mask tokens, in one pass; the answer is read at the masks.

    Each row is `[inputs | masks]` without a gap: one mask for each answer slot of the row, right after its last input.
    Works for any number of slots.
    """

    encoder: nn.Module
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the embedding and of the encoder; None: one-hot inputs."""
    embedding_std: float = 1.0
    """Initial standard deviation of the token embeddings."""
    head: nn.Module | None = None
    """Maps states to `output_size` logits or values; None: a linear map."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return after_input(spec)

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
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        answers = target_mask.shape[-1]
        lengths, answer_lengths = jnp.sum(input_mask, axis=-1), jnp.sum(target_mask, axis=-1)
        columns = inputs.shape[1] + answers
        symbols = place(inputs, lengths, jnp.full((1, columns), BLANK), spec)
        size: dict[str, Any] = {"features": self.embedding_size, "std": self.embedding_std, **self.dtypes}
        embed = Embedding(spec, special=SPECIAL, **size, name="embedding")
        mask = jnp.arange(columns) < (lengths + answer_lengths)[:, None]
        given = self.given(inputs, input_mask, target_mask)
        states = encoded(self.encoder, embed(symbols), mask, *given, deterministic=not train)
        at = lengths[:, None] + jnp.arange(answers)
        states = jnp.take_along_axis(states, at[..., None], axis=1)
        head = self.head or Linear(spec.output_size, **self.dtypes, name="head")
        return head(states)

    @nn.nowrap
    def given(self, inputs: jax.Array, input_mask: jax.Array, target_mask: jax.Array) -> tuple[jax.Array, ...]:
        """The positions that the task gives to the columns, int[B, N + M], if the encoder takes them.

        Raises ValueError if they may reach the encoder's `max_positions`.
        """
        encoder: Any = self.encoder
        if not getattr(encoder, "takes_positions", False):
            return ()
        rule = require_spec(self.spec, self).position_rule
        if rule is None:
            raise ValueError(GIVES_NONE)
        largest = rule.largest(inputs.shape[1], target_mask.shape[1])
        if largest >= encoder.max_positions:
            raise ValueError(f"max_positions is {encoder.max_positions}; the positions of these rows reach {largest}")
        read, asked = rule.ids(jnp.where(input_mask, inputs, 0), input_mask, target_mask)
        column, lengths = jnp.arange(inputs.shape[1] + target_mask.shape[1]), jnp.sum(input_mask, axis=-1)[:, None]
        slot = jnp.clip(column - lengths, 0, target_mask.shape[1] - 1)
        behind = jnp.take_along_axis(jnp.where(target_mask, asked, 0), slot, axis=1)
        read = jnp.pad(read, ((0, 0), (0, target_mask.shape[1])))
        past = column >= lengths + jnp.sum(target_mask, axis=-1)[:, None]
        return (jnp.where(past, 0, jnp.where(column < lengths, read, behind)),)


class Readout(Part):
    """An encoder reads `[begin? | inputs | end?]`; the single answer slot is read from the last or the first column.

    The end token follows each row's last input. Without it, the last column is that of the last input. Raises
    ValueError for more than one answer slot.
    """

    encoder: nn.Module
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the embedding and of the encoder; None: one-hot inputs."""
    embedding_std: float = 1.0
    """Initial standard deviation of the token embeddings."""
    begin: bool = True
    """Read a begin token first."""
    end: bool = True
    """Read an end token last."""
    column: Literal["last", "first"] = "last"
    """Whether the answer is read at the last or at the first token."""
    head: nn.Module | None = None
    """Maps a state to `output_size` logits or values; None: a linear map."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.single_answer is False:
            return "one answer is read from one column; the task has several answer slots"
        return after_input(spec)

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
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, 1] -> float[B, 1, K]."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        if target_mask.shape[-1] != 1:
            raise ValueError(f"Readout gives one answer slot; got {target_mask.shape[-1]}. Use Completion")
        lengths = jnp.sum(input_mask, axis=-1)
        begin, end = int(self.begin), int(self.end)
        columns = jnp.arange(begin + inputs.shape[1] + end)
        special = jnp.where(columns < begin, BEGIN, DELIMITER)[None]
        symbols = place(inputs, lengths, special, spec, start=begin, kinds=BLANK)
        lengths = begin + lengths + end
        size: dict[str, Any] = {"features": self.embedding_size, "std": self.embedding_std, **self.dtypes}
        embed = Embedding(spec, special=BLANK, **size, name="embedding")  # without a blank
        states = encoded(self.encoder, embed(symbols), columns < lengths[:, None], deterministic=not train)
        at = lengths - 1 if self.column == "last" else jnp.zeros_like(lengths)
        state = jnp.take_along_axis(states, at[:, None, None], axis=1)
        head = self.head or Linear(spec.output_size, **self.dtypes, name="head")
        return head(state)


class Aligned(Part):
    """Output t is read at input t: by a recurrent cell as it reads, or by an encoder in one pass.

    Nothing is added to the inputs. `decoding` is always False for a cell, so a memory is written and read at every
    step. Causal tasks (`spec.causal`), whose answer t may depend only on inputs 0 .. t, need cells or encoders with
    `causal = True`. Raises ValueError if there are more answer slots than inputs.
    """

    cell: nn.Module
    """A recurrent cell, or an encoder."""
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the input embedding; None: one-hot inputs."""
    embedding_std: float = 1.0
    """Initial standard deviation of the token embeddings."""
    head: nn.Module | None = None
    """Maps outputs to `output_size` logits or values; None: a linear map."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.alignment != "aligned":
            return "answer t is read at input t; the task's answers are not aligned with its inputs"
        if spec.causal and not (is_cell(self.cell) or getattr(self.cell, "causal", False)):
            return f"{type(self.cell).__name__} sees the whole input at once; the task is causal"
        if spec.causal and (getattr(self.cell, "random_positions", False) or _asks_for_lengths(self.cell)):
            return f"{type(self.cell).__name__} depends on the length of the whole input; the task is causal"
        return None

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
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] with M <= N -> float[B, M, K]."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        reason = self.supports(spec)
        capacity, answers = inputs.shape[1], target_mask.shape[-1]
        if reason is None and answers > capacity:
            reason = f"answer t is read at input t; got {answers} answer slots for {capacity} inputs"
        if reason:
            raise ValueError(reason)
        lengths = jnp.sum(input_mask, axis=-1)
        symbols = place(inputs, lengths, jnp.full((1, capacity), BLANK), spec)
        size: dict[str, Any] = {"features": self.embedding_size, "std": self.embedding_std, **self.dtypes}
        embed = Embedding(spec, special=SPECIAL, **size, name="embedding")
        states = embed(symbols)
        if is_cell(self.cell):
            steps = Step(states, jnp.zeros_like(input_mask), input_mask, not train)
            outputs = run_cell(self, steps, tokens_of(symbols, spec), capacity, lengths)
            outputs = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)
        else:
            outputs = told(self.cell, states, input_mask, deterministic=not train)
        head = self.head or Linear(spec.output_size, **self.dtypes, name="head")
        return head(jax.tree.map(lambda x: x[:, :answers], outputs))


def encoded(encoder: nn.Module, states: jax.Array, mask: jax.Array, *given: jax.Array, **known: Any) -> Any:
    """The states that an encoder makes of states [B, N, d] and their mask. ValueError if it returns anything else than
    [B, N, d'], takes no mask, or is a recurrent cell."""
    name, arguments = type(encoder).__name__, inspect.signature(encoder.__call__).parameters.values()
    if is_cell(encoder):
        raise ValueError(f"{name} is a recurrent cell, not an encoder; lenmem.nn.Transducer makes a model of a cell")
    positional = [x for x in arguments if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(x.kind == x.VAR_POSITIONAL for x in arguments):
        raise ValueError(f"{name} takes {len(positional)} argument(s); an encoder is called with (states, mask)")
    outputs = told(encoder, states, mask, *given, **known)
    if not isinstance(outputs, jax.Array):
        raise ValueError(f"{name} returns a {type(outputs).__name__}; an encoder returns states, float[B, N, d]")
    if outputs.shape[:2] != states.shape[:2]:
        raise ValueError(f"{name} maps states {list(states.shape)} to {list(outputs.shape)}; the first two sizes stay")
    return outputs


def _asks_for_lengths(cell: nn.Module) -> bool:
    """Whether a cell, or one of stacked cells, is told the length of the input."""
    if isinstance(cell, Stacked):
        return any(map(_asks_for_lengths, cell.cells))
    return hasattr(cell, "start") and "lengths" in inspect.signature(cell.start).parameters


def is_cell(module: nn.Module) -> bool:
    """Whether a module that may be a cell or an encoder is a recurrent cell."""
    return isinstance(module, nn.RNNCellBase) or hasattr(module, "start")
