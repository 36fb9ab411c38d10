"""The neural stack: an LSTM with a stack whose pushes and pops have a strength.

Grefenstette et al., "Learning to Transduce with Unbounded Memory", NeurIPS 2015 (arXiv 1506.02516), sections 3.1 and
3.4. At each step the controller pops and pushes with strengths between 0 and 1, and then reads the top of the stack,
down to a total strength of 1. Values are never overwritten: the memory grows by one slot per step, and the strengths
tell how much of each value is still on the stack. A neural stack can reverse sequences of any length.

Notation: h controller output [B, H]; u, d strengths of pop and push [B]; v value pushed [B, W]; s strengths [B, T] of T
slots, one for each step of a row; V values [B, W, T]; r read [B, W]. Equation numbers are the paper's. A row also
pushes while it answers, as in the paper. Cost per step: O(H (X + W + H) + T W).
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.nn.cells import LSTMCell
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.nn.recurrence import AppendOnlyCell
from lenmem.ops.stacks import stack_read_weights, stack_update
from lenmem.types import Step


class StackState(NamedTuple):
    """The carry of a neural stack, without the pushed values."""

    controller: tuple[jax.Array, jax.Array]
    read: jax.Array
    """r, [B, W]."""
    strengths: jax.Array
    """s, [B, T]."""
    time: jax.Array
    """float[B]: number of steps so far, which is the slot of the next value. A float, because the state is
    differentiated."""


class NeuralStackCell(AppendOnlyCell, Part):
    """One step of a neural stack; see `NeuralStack` for the fields. Its output is tanh(W_o h + b_o).

    Only the values are append-only, so training stores them once and not once per time step. The strengths change, and
    are a part of the state.
    """

    hidden_size: int = 256
    width: int = 128
    answers: int = 0
    """Number of slots in addition to those of the reading steps."""

    @property
    def initial_slots(self) -> int:
        """A stack starts empty."""
        return 0

    def setup(self):
        self.controller = LSTMCell(self.hidden_size, **self.dtypes)
        self.commands = Linear(2 + self.width, **self.dtypes)
        self.output = Linear(self.hidden_size, **self.dtypes)

    def start(self, batch_shape: tuple[int, ...], steps: int):
        """The controller's initial state, and an empty stack with a slot for every step."""

        def zeros(*shape):
            return jnp.zeros((*batch_shape, *shape))

        slots = steps + self.answers
        state = StackState(self.controller.start(batch_shape), zeros(self.width), zeros(slots), zeros())
        return state, zeros(self.width, slots), jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state: StackState, memory: jax.Array, filled: jax.Array, step: Step):
        """Section 3.4: pops, pushes and reads. Ignores `filled`, which lacks the values pushed while answering."""
        inputs = jnp.concatenate([step.inputs, state.read.astype(step.inputs.dtype)], axis=-1)
        controller = self.controller.update(state.controller, inputs)
        hidden = controller[1]
        pop, push, value = jnp.split(self.commands(hidden).astype(jnp.float32), [1, 2], axis=-1)
        pop, push, value = nn.sigmoid(pop[..., 0]), nn.sigmoid(push[..., 0]), jnp.tanh(value)

        strengths = stack_update(state.strengths, push, pop, state.time)
        weights = stack_read_weights(strengths)
        # The value of this step, with weight d_t, is not in the memory yet.
        below = jnp.where(jnp.arange(weights.shape[-1], dtype=state.time.dtype) < state.time[:, None], weights, 0)
        read = push[:, None] * value + jnp.einsum("...t,...wt->...w", below, memory)

        self.sow("traces", "pop", pop)
        self.sow("traces", "push", push)
        self.sow("traces", "strengths", strengths)
        self.sow("traces", "read_weights", weights)
        output = jnp.tanh(self.output(hidden))
        return StackState(controller, read, strengths, state.time + 1), value, output


class NeuralStack(FlatModel):
    """An LSTM with a neural stack that reads the input, then answers."""

    hidden_size: PositiveInt = 256
    """Number of cells of the LSTM controller."""
    width: PositiveInt = 128
    """W: width of a value on the stack."""
    embedding_size: PositiveInt = 128
    """Width of the input embedding."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cell = NeuralStackCell(
            hidden_size=self.hidden_size, width=self.width, answers=answers, **self.dtypes, name="cell"
        )
        return recurrent(cell, self, begin=True)
