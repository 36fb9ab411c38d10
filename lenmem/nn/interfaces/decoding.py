"""`EncoderDecoder`: an encoder turns the input into a memory, from which a decoder answers slot by slot."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Out

from lenmem.nn.interfaces.encoding import encoded
from lenmem.nn.interfaces.packing import (
    BEGIN,
    BLANK,
    DELIMITER,
    SPECIAL,
    Embedding,
    after_input,
    place,
    require_spec,
)
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part, told
from lenmem.nn.recurrence import scan_cell
from lenmem.ops.chunks import varying_like
from lenmem.types import SOWN, STREAMS, PyTree, Spec, Step


class EncoderDecoder(Part):
    """An encoder reads the input; a decoder then fills one answer slot per step.

    A *decoder* is a cell with a memory, a Linen module with

        start(states [B, N, d], mask bool[B, N]) -> (carry, memory)     `memory` stays the same in all steps
        __call__(carry, Step, memory) -> (carry, output)                one answer slot

    for instance `lenmem.nn.attention_decoder.AttentionDecoder(cell)`. A decoder that stores its earlier slots has an
    attribute `needs_slots = True`, and is passed the mask of slots: `start(states, mask, valid bool[B, M])` (see
    `start_decoder`). `start` and `decode_all` may have an argument `deterministic`, which is False in training. A
    decoder that can process all slots at once also has

        decode_all(states, mask, reads [B, M, e], valid bool[B, M]) -> outputs [B, M, ...]

    which replaces the steps if all inputs are known in advance. With `feedback="open_loop"` every step reads the same
    learned vector. With "teacher_forced" step 0 reads a begin symbol, and step j reads answer j - 1: the target if
    targets are passed, as in training and to measure perplexity, and otherwise the model's own greedy answer. Raises
    ValueError for "teacher_forced" training without targets.
    """

    encoder: nn.Module
    decoder: nn.Module
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the embedding of inputs, and of the answers that are fed back; None: one-hot."""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """Input of the decoder: a blank, or the answer so far."""
    head: nn.Module | None = None
    """Maps the decoder's outputs to `output_size` logits or values; None: a linear map."""
    delimiters: bool = False
    """Add a begin and an end symbol to the encoder's input, and thereby to the memory."""

    def setup(self):
        spec = require_spec(self.spec, self)
        self.embedding = Embedding(spec, features=self.embedding_size, special=SPECIAL, **self.dtypes)
        if self.head is None:
            self.readout = Linear(spec.output_size, **self.dtypes)
        if self.feedback == "open_loop":
            normal = nn.initializers.normal(1.0)
            self.blank = self.param("blank", normal, (self.embedding_size or spec.output_size + 1,), self.param_dtype)
        else:
            self.answer_embedding = Embedding(
                answers_as_inputs(spec), features=self.embedding_size, special=1, **self.dtypes
            )

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return after_input(spec)

    def __call__(
        self,
        inputs: jax.Array,
        input_mask: jax.Array,
        target_mask: jax.Array,
        *,
        targets: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> float[B, M, K]; targets as in `Batch`."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        symbols, mask = self.laid_out(inputs, input_mask)
        states = encoded(self.encoder, self.embedding(symbols), mask, deterministic=not train)
        if self.feedback == "teacher_forced" and not train and targets is None:
            carry, memory = start_decoder(self.decoder, states, mask, target_mask, deterministic=True)
            start = varying_like((carry, begin_answers(spec, inputs.shape[0])), memory, target_mask)
            outputs = scan_slots(_answer_greedily)(self, start, memory, target_mask.T)[1]
            return jnp.swapaxes(outputs, 0, 1)
        if self.feedback == "open_loop":
            blank = self.blank.astype(self.dtype or self.param_dtype)
            reads = jnp.broadcast_to(blank, (*target_mask.shape, blank.shape[-1]))
        elif targets is None:
            raise ValueError("teacher forcing needs the targets in training: call the model with targets=batch.targets")
        else:
            reads = self.answer_embedding(shifted_answers(targets, target_mask, spec))
        if hasattr(self.decoder, "decode_all"):
            together: Any = self.decoder
            return self.answer(told(together.decode_all, states, mask, reads, target_mask, deterministic=not train))
        carry, memory = start_decoder(self.decoder, states, mask, target_mask, deterministic=not train)
        answering = jnp.ones_like(target_mask)
        steps = Step(reads, answering, target_mask, not train)
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
        outputs = scan_cell(self.decoder, carry, steps, memory)[1]
        return self.answer(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs))

    @nn.nowrap
    def laid_out(self, inputs: jax.Array, input_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The encoder's input, as `Embedding` takes it, and its mask."""
        spec, lengths = require_spec(self.spec, self), jnp.sum(input_mask, axis=-1)
        if not self.delimiters:
            return place(inputs, lengths, jnp.full((1, inputs.shape[1]), BLANK), spec), input_mask
        columns = jnp.arange(inputs.shape[1] + 2)
        special = jnp.where(columns < 1, BEGIN, DELIMITER)[None]
        return place(inputs, lengths, special, spec, start=1), columns < lengths[:, None] + 2

    def answer(self, outputs: PyTree) -> jax.Array:
        """The decoder's outputs [..., d] -> logits or values [..., K]."""
        return (self.readout if self.head is None else self.head)(outputs)


def scan_slots(body: Any) -> Any:
    """`nn.scan` of `body(module, carry, memory, xs)` over the answer slots, which are the first axis of `xs`."""
    return nn.scan(
        body,
        variable_broadcast="params",
        variable_axes=dict.fromkeys(SOWN, Out(0)),  # values that the encoder has sown stay outside
        split_rngs={"params": False, **dict.fromkeys(STREAMS, True)},
        in_axes=(nn.broadcast, 0),  # pyright: ignore[reportArgumentType]
    )


def start_decoder(
    decoder: Any, states: jax.Array, mask: jax.Array, valid: jax.Array | None, *, deterministic: bool = True
) -> tuple[PyTree, PyTree]:
    """`decoder.start(states, mask)`, with the answer slots for a decoder that needs them."""
    slots = (valid,) if getattr(decoder, "needs_slots", False) else ()
    return told(decoder.start, states, mask, *slots, deterministic=deterministic)


def _answer_greedily(module: EncoderDecoder, carry: PyTree, memory: PyTree, valid: jax.Array):
    """One slot that reads the previous answer."""
    state, last = carry
    step = Step(module.answer_embedding(last), jnp.ones_like(valid), valid)
    state, output = module.decoder(state, step, memory)
    output = module.answer(output)
    return (state, as_answers(output, require_spec(module.spec, module))), output


# Answers as inputs. Tokens: ids 0 .. K - 1, begin is id K. Values: [K values | begin].


def answers_as_inputs(spec: Spec) -> Spec:
    """The spec for answers of `spec` as inputs."""
    if spec.outputs == "tokens":
        return Spec(vocabulary=spec.output_size, output_size=spec.output_size)
    return Spec(vocabulary=0, channels=spec.output_size, output_size=spec.output_size)


def begin_answers(spec: Spec, rows: int) -> jax.Array:
    """The begin symbol for each row: int[B] or float[B, K + 1]."""
    if spec.outputs == "tokens":
        return jnp.full((rows,), spec.output_size, jnp.int32)
    return jnp.zeros((rows, spec.output_size + 1)).at[:, -1].set(1.0)


def as_answers(outputs: jax.Array, spec: Spec) -> jax.Array:
    """Converts outputs [..., K] to answers: the likeliest class int[...], or float[..., K + 1]."""
    if spec.outputs == "tokens":
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)
    values = outputs > 0 if spec.outputs == "multi_hot" else outputs
    return jnp.pad(values.astype(jnp.float32), [(0, 0)] * (outputs.ndim - 1) + [(0, 1)])


def shifted_answers(targets: jax.Array, target_mask: jax.Array, spec: Spec) -> jax.Array:
    """`[begin | targets]` without the last target, [B, M] or [B, M, K + 1]; padding, which is arbitrary, becomes 0.

    Targets after the end of the answer may be arbitrary too, in slots that are filled but not scored. They are replaced
    by valid ids.
    """
    begin = begin_answers(spec, targets.shape[0])[:, None]
    if spec.outputs == "tokens":
        answers = jnp.where(target_mask, jnp.clip(targets, 0, spec.output_size - 1), 0).astype(jnp.int32)
    else:
        values = jnp.nan_to_num(targets.astype(jnp.float32), posinf=0.0, neginf=0.0)
        answers = jnp.pad(jnp.where(target_mask[..., None], values, 0), [(0, 0), (0, 0), (0, 1)])
    return jnp.concatenate([begin, answers], axis=1)[:, :-1]
