"""The neural stack: an LSTM with a stack whose pushes and pops have a strength.

Grefenstette et al., "Learning to Transduce with Unbounded Memory", NeurIPS 2015 (arXiv 1506.02516), sections 3.1 and
3.4. At each step the controller pops and pushes some strength between 0 and 1 and then sees the topmost strength of 1
of the stack. No value is ever overwritten: the memory grows by one slot per step, and the strengths say what of it is
still there. What comes out in reverse order can so be as long as one likes.

Notation: h controller output [B, H]; u, d strengths of pop and push [B]; v value pushed [B, W]; s strengths [B, T] of T
slots, one for each step of a row; V values [B, W, T]; r what was read [B, W]. Equation numbers are the paper's. A row
pushes while it answers too, as in the paper. Cost per step: O(H (X + W + H) + T W).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import Positive
from lenmem.nn.cells import LSTMCell
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Linear
from lenmem.nn.recurrence import AppendOnlyCell
from lenmem.ops.stacks import stack_read_weights, stack_update
from lenmem.types import Dtype, Spec, Step


class StackState(NamedTuple):
    """What a neural stack carries beside the values pushed."""

    controller: tuple[jax.Array, jax.Array]
    read: jax.Array
    """r, [B, W]."""
    strengths: jax.Array
    """s, [B, T]."""
    time: jax.Array
    """float[B]: steps so far, which is the slot of the next value. A float: a state is differentiated as a whole."""


class NeuralStackCell(AppendOnlyCell):
    """One step of a neural stack; see `NeuralStack` for the fields. Its output is tanh(W_o h + b_o).

    Only the values are append-only. Strengths change and belong to the state, so that a training step keeps the values
    once and not once per time step.
    """

    hidden_size: int = 256
    width: int = 128
    answers: int = 0
    """Slots beside those of the steps that read."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @property
    def initial_slots(self) -> int:
        """A stack starts empty."""
        return 0

    def setup(self):
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.controller = LSTMCell(self.hidden_size, **options)
        self.commands = Linear(2 + self.width, **options)
        self.output = Linear(self.hidden_size, **options)

    def start(self, batch_shape: tuple[int, ...], steps: int):
        """The controller's own start, and an empty stack with a slot for every step."""

        def zeros(*shape):
            return jnp.zeros((*batch_shape, *shape))

        slots = steps + self.answers
        state = StackState(self.controller.start(batch_shape), zeros(self.width), zeros(slots), zeros())
        return state, zeros(self.width, slots), jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state: StackState, memory: jax.Array, filled: jax.Array, step: Step):
        """Section 3.4: pop, push, read. `filled` misses what is pushed while answering; the strengths know better."""
        inputs = jnp.concatenate([step.inputs, state.read.astype(step.inputs.dtype)], axis=-1)
        controller = self.controller.update(state.controller, inputs)
        hidden = controller[1]
        pop, push, value = jnp.split(self.commands(hidden).astype(jnp.float32), [1, 2], axis=-1)
        pop, push, value = nn.sigmoid(pop[..., 0]), nn.sigmoid(push[..., 0]), jnp.tanh(value)

        strengths = stack_update(state.strengths, push, pop, state.time)
        weights = stack_read_weights(strengths)
        # The value of this step, whose weight is d_t, is not in the memory yet.
        below = jnp.where(jnp.arange(weights.shape[-1]) < state.time[:, None], weights, 0)
        read = push[:, None] * value + jnp.einsum("...t,...wt->...w", below, memory)

        self.sow("traces", "pop", pop)
        self.sow("traces", "push", push)
        self.sow("traces", "strengths", strengths)
        self.sow("traces", "read_weights", weights)
        output = jnp.tanh(self.output(hidden))
        return StackState(controller, read, strengths, state.time + 1), value, output


class NeuralStack(FlatModel):
    """An LSTM with a neural stack that reads the input, then answers."""

    hidden_size: Positive = 256
    """Cells of the LSTM controller."""
    width: Positive = 128
    """W: width of a value on the stack."""
    embedding_size: Positive = 128
    """Width of the input embedding."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        shared: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        cell = NeuralStackCell(self.hidden_size, self.width, target_mask.shape[-1], **shared, name="cell")
        reader = recurrent(cell, self, begin=True)
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)
