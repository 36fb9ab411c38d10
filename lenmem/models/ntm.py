"""The neural Turing machine (NTM).

Graves, Wayne & Danihelka, "Neural Turing Machines", 2014 (arXiv 1410.5401), sections 3 and 4. A controller moves heads
over a memory of N slots. Each head moves to similar content or stays at its position, and then shifts to a neighbouring
slot. It can therefore look up values and step through them in the order of writing.

Notation: h controller output [B, H]; M memory [B, N, W]; w weights of R write heads, then R read heads [B, 2R, N]; k
keys [B, 2R, W], v write vectors [B, R, W]; r reads [B, R W]. Equation numbers are the paper's. In each step the write
heads address M_{t-1} and write M_t; then the read heads address and read M_t. No learned parameter depends on N.
Cost per step: O(H (X + R W + H) + R N (W + S)) with S shifts.

The paper does not specify the initial memory. Here every slot contains the same small number, which learned fastest
among the initialisations compared by Collier & Beel, "Implementing Neural Turing Machines", 2018 (arXiv 1807.08518).
All heads start at slot 0, so that shifts have an effect from the first step on.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.cells import as_cell
from lenmem.nn.controllers import Kind, MemoryReadout, controlled, make_controller, make_interface, oneplus
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.module import Part
from lenmem.types import PyTree, Step

START_VALUE = 1e-6


class NTMState(NamedTuple):
    """The carry of an NTM."""

    controller: PyTree
    memory: jax.Array
    weights: jax.Array
    """Weights of the write heads, then of the read heads, [B, 2R, N]."""
    reads: jax.Array
    """The last read values, [B, R W]."""


class NTMCell(Part):
    """One step of an NTM; see `NTM` for the fields. Its output is [h; r^1; ..; r^R]."""

    controller: nn.Module
    """Any recurrent cell."""
    slots: int = 128
    width: int = 20
    heads: int = 1
    shifts: int = 3
    clip: float | None = 20.0

    def setup(self):
        if not 1 <= self.shifts <= self.slots:
            raise ValueError(f"shifts is {self.shifts}; allowed are 1 to the number of slots, {self.slots}")
        heads = 2 * self.heads
        shapes: dict[str, tuple[int, ...]] = {
            "keys": (heads, self.width),
            "strengths": (heads,),
            "gates": (heads,),
            "shifts": (heads, self.shifts),
            "sharpness": (heads,),
            "erase": (self.heads, self.width),
            "vectors": (self.heads, self.width),
        }
        self.command_shapes = shapes
        self.cell = as_cell(self.controller)
        self.interface = make_interface(shapes, **self.dtypes)

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> NTMState:
        """The controller's initial state, a memory filled with a small number, and all heads at slot 0."""
        memory = jnp.full((*batch_shape, self.slots, self.width), START_VALUE)
        weights = jnp.zeros((*batch_shape, 2 * self.heads, self.slots)).at[..., 0].set(1)
        reads = jnp.full((*batch_shape, self.heads * self.width), START_VALUE)
        return NTMState(self.cell.start(batch_shape, steps), memory, weights, reads)

    def __call__(self, state: NTMState, step: Step) -> tuple[NTMState, jax.Array]:
        """Applies the controller, writes, then reads."""
        controller, hidden, commands = controlled(self, state, step)
        memory, weights, reads = access(state.memory, state.weights, commands)

        write_weights, read_weights = jnp.split(weights, 2, axis=-2)
        self.sow("traces", "read_weights", read_weights)
        self.sow("traces", "write_weights", write_weights)
        self.sow("traces", "interpolation_gate", nn.sigmoid(commands["gates"]))
        self.sow("traces", "shift", nn.softmax(commands["shifts"]))
        return NTMState(controller, memory, weights, reads), jnp.concatenate(
            [hidden, reads.astype(hidden.dtype)], axis=-1
        )


def access(
    memory: jax.Array, weights: jax.Array, commands: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moves all write heads and writes, then moves all read heads and reads: (memory [B, N, W], weights [B, 2 R, N],
    concatenated reads [B, R W]), for R write and R read heads. `commands` have an axis of 2 R heads, write heads first;
    `erase` and `vectors` have one of R."""
    moving = (commands[name] for name in ("keys", "strengths", "gates", "shifts", "sharpness"))
    of_write, of_read = zip(*(jnp.split(command, 2, axis=1) for command in (weights, *moving)), strict=True)
    write_weights = move(memory, *of_write)
    memory = ops.erase_and_write(memory, write_weights, nn.sigmoid(commands["erase"]), commands["vectors"])
    read_weights = move(memory, *of_read)
    reads = jnp.einsum("brn,bnw->brw", read_weights, memory)
    return memory, jnp.concatenate([write_weights, read_weights], axis=1), reads.reshape(len(reads), -1)


def move(memory, weights, keys, strengths, gates, shifts, sharpness) -> jax.Array:
    """The addressing mechanism (figure 2): by content, then a shift from there or from the old position, [B, R, N]."""
    content = ops.content_weights(memory, keys, nn.softplus(strengths))  # equation 5
    weights = ops.interpolate(nn.sigmoid(gates), content, weights)  # equation 7
    weights = ops.shift(weights, nn.softmax(shifts))  # equation 8
    return ops.sharpen(weights, oneplus(sharpness))  # equation 9


class NTM(FlatModel):
    """A neural Turing machine that reads the input, then answers. While it answers, its input is zero."""

    hidden_size: PositiveInt = 100
    """Width of the controller."""
    slots: PositiveInt = 128
    """N: rows of the memory. No parameter depends on it, so a trained machine can be evaluated with more."""
    width: PositiveInt = 20
    """W: columns of the memory."""
    heads: PositiveInt = 1
    """R: number of write heads and of read heads."""
    shifts: PositiveInt = 3
    """Number of allowed shifts. 3: -1, 0 and 1."""
    controller: Kind = "lstm"
    """`lstm`; `peephole`: an LSTM that feeds back its cell state instead of its hidden state; `feedforward`: no
    state."""
    clip: float | None = 20.0
    """Bound on the controller's output and state and on the answer."""
    forget_bias: float = 0.0
    """Added to the input of the LSTM's forget gate."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        controller = make_controller(self.controller, self.hidden_size, forget_bias=self.forget_bias, **self.dtypes)
        cell = NTMCell(
            controller,
            slots=self.slots,
            width=self.width,
            heads=self.heads,
            shifts=self.shifts,
            clip=self.clip,
            **self.dtypes,
            name="cell",
        )

        def head(size: int) -> nn.Module:
            return MemoryReadout(size, clip=self.clip, **self.dtypes, name="head")

        return recurrent(cell, self, head=head, delay=1)
