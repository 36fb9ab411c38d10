"""Random-access memories, the baselines of the Lie-access machines: RAM and RAM/tape.

Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017, section 2 and appendix A.
https://arxiv.org/abs/1611.02854.

As in `lenmem.models.lantm`, an LSTM appends an entry (key, value, strength) at each step and reads a weighted mean of
the values. Unlike there, the controller emits the keys and the read address directly, and they are compared by their
inner product. RAM/tape can also address the left or right neighbours (in the order of writing) of its last read.

Notation: h controller output [B, H]; q read address [B, d]; Sigma memory of keys k_i [B, d, slots], values v_i
[B, m, slots], strengths s_i [B, slots]; w_i read weights; rho read value [B, m]; k_L, k_R mean keys left and right of
the last read [B, d]. Cost per step: O(H^2 + slots (d + m)).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.models.lantm import STRENGTH_OFFSET, Memory
from lenmem.nn.cells import LSTMCell, start_vector
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Init, Linear, uniform
from lenmem.nn.module import Part
from lenmem.nn.recurrence import AppendOnlyCell
from lenmem.types import Step


class RandomAccessState(NamedTuple):
    """The carry of a random-access cell, without its memory."""

    controller: tuple[jax.Array, jax.Array]
    read_value: jax.Array
    neighbours: tuple[jax.Array, ...]
    """(k_L, k_R), each [B, d], for a tape; else empty."""


class RandomAccessCell(AppendOnlyCell, Part):
    """One step of RAM, or with `tape` of RAM/tape; see `RAM` and `RAMTape` for the fields. Its output is (h, rho)."""

    hidden_size: int = 50
    memory_width: int = 20
    key_size: int = 20
    tape: bool = False
    sharpening: bool = False
    sharpening_order: Literal["before_strengths", "after_strengths"] = "before_strengths"
    initialization: Init = "fan_in"
    forget_bias: float | None = 1.0

    @property
    def initial_slots(self) -> int:
        """One learned entry; a tape starts with two."""
        return 2 if self.tape else 1

    def setup(self):
        of_tape = (3, int(self.sharpening)) if self.tape else ()
        self.command_sizes = (self.memory_width, 1, self.key_size, self.key_size, *of_tape)
        options = {"initialization": self.initialization, **self.dtypes}
        self.controller = LSTMCell(self.hidden_size, forget_bias=self.forget_bias, **options)
        self.commands = Linear(sum(self.command_sizes), **options)

        def entries(name, *shape):
            return self.param(name, uniform(1.0), (*shape, self.initial_slots), self.param_dtype)

        self.start_memory = Memory(
            entries("start_keys", self.key_size),
            entries("start_values", self.memory_width),
            entries("start_strengths"),
        )
        self.start_read_value = start_vector(self, "start_read_value", self.memory_width)
        names = ("left", "right") if self.tape else ()
        self.start_neighbours = [start_vector(self, f"start_{name}_key", self.key_size) for name in names]

    def start(self, batch_shape: tuple[int, ...], steps: int):
        """Learned initial controller, read value and neighbours, and a memory with `initial_slots` learned entries."""

        def batched(x):
            return jnp.broadcast_to(x.astype(jnp.float32), (*batch_shape, *x.shape))

        neighbours = tuple(batched(key) for key in self.start_neighbours)
        state = RandomAccessState(
            self.controller.start(batch_shape), batched(jnp.tanh(self.start_read_value)), neighbours
        )
        keys, values, strengths = self.start_memory
        entries = Memory(keys, jnp.tanh(values), nn.sigmoid(strengths + STRENGTH_OFFSET))
        memory = jax.tree.map(lambda x: jnp.pad(batched(x), [(0, 0)] * x.ndim + [(0, steps)]), entries)
        return state, memory, jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state: RandomAccessState, memory: Memory, filled: jax.Array, step: Step):
        """RW of section 2: chooses the address, reads, and returns the entry to append."""
        # Section 2: h = RNN([x; rho], h), and one linear map for all commands.
        read_value = state.read_value.astype(step.inputs.dtype)
        controller = self.controller.update(state.controller, jnp.concatenate([step.inputs, read_value], axis=-1))
        hidden = controller[1]
        commands = self.commands(hidden).astype(jnp.float32)
        splits = np.cumsum(self.command_sizes)[:-1]
        value, strength, address, write_key, *of_tape = jnp.split(commands, splits, axis=-1)

        # Appendix A: the address is a mixture of the emitted one and the neighbours of the last read.
        sharpness = None
        if self.tape:
            choice, *_ = of_tape
            choices = jnp.stack([address, *state.neighbours], axis=-2)
            address = jnp.einsum("...c,...cd->...d", nn.softmax(choice), choices)
        if self.tape and self.sharpening:
            sharpness = 1 + nn.softplus(of_tape[1][..., 0])

        # Section 2: read the entries written before this step, then write.
        keys = jnp.swapaxes(memory.keys, -1, -2)
        of_logits = sharpness if self.sharpening_order == "before_strengths" else None
        weights = ops.dot_product_weights(address, keys, memory.strengths, of_logits, filled)
        if sharpness is not None and self.sharpening_order == "after_strengths":
            weights = ops.sharpen(weights, sharpness)
        read_value = jnp.einsum("...t,...mt->...m", weights, memory.values)
        neighbours = ops.shifted_keys(weights, keys, filled) if self.tape else ()
        entry = Memory(write_key, jnp.tanh(value), nn.sigmoid(strength[..., 0]))

        self.sow("traces", "read_head", address)
        self.sow("traces", "write_head", entry.keys)
        self.sow("traces", "write_strength", entry.strengths)
        self.sow("traces", "read_weights", weights)
        output = (hidden, read_value.astype(hidden.dtype))
        return RandomAccessState(controller, read_value, neighbours), entry, output


class ReadoutHead(Part):
    """Logits W_o h + b_o + W_r rho + b_r: the controller's answer plus the read."""

    features: int
    initialization: Init = "fan_in"

    @nn.compact
    def __call__(self, outputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        """(h [..., H], rho [..., m]) -> [..., features]."""
        hidden, read_value = outputs
        options = {"initialization": self.initialization, **self.dtypes}
        own = Linear(self.features, **options, name="hidden")(hidden)
        return own + Linear(self.features, **options, name="read")(read_value)


class RAM(FlatModel):
    """Random-access memory: w_i ~ s_i exp <q, k_i> with q and k_i emitted by the controller (section 2)."""

    hidden_size: PositiveInt = 50
    """Number of cells of the LSTM controller."""
    memory_width: PositiveInt = 20
    """m: width of a memory value."""
    embedding_size: PositiveInt = 14
    """Width of the input embedding."""
    key_size: PositiveInt = 20
    """d: width of a key. The paper's grid has 2 and 20; 14 of its 16 published configurations have 20."""
    initialization: Init = "fan_in"
    """`fan_in`: Torch's default. `uniform`: U(-1, 1) (table A.1's "1"), except for the embedding."""
    forget_bias: float | None = 1.0
    """Initial bias of the forget gates. None: drawn like the other biases, as in the published code for `fan_in`."""

    @nn.nowrap
    def tape_fields(self) -> dict[str, Any]:
        """Fields of the cell that only a tape has."""
        return {}

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        shared: dict[str, Any] = {"initialization": self.initialization, **self.dtypes}
        cell = RandomAccessCell(
            hidden_size=self.hidden_size,
            memory_width=self.memory_width,
            key_size=self.key_size,
            forget_bias=self.forget_bias,
            **self.tape_fields(),
            **shared,
            name="cell",
        )
        return recurrent(cell, self, head=lambda size: ReadoutHead(size, **shared, name="head"), begin=True)


class RAMTape(RAM):
    """RAM that can also move like a tape head: q mixes the emitted address with k_L and k_R (appendix A)."""

    key_size: PositiveInt = 2
    """d: width of a key. The paper's grid has 2 and 20; 9 of its 16 published configurations have 2."""
    sharpening: bool = False
    """Sharpen the read weights by a coefficient gamma >= 1 that the controller emits. The paper tried both settings."""
    sharpening_order: Literal["before_strengths", "after_strengths"] = "before_strengths"
    """Sharpen exp(gamma <q, k>) before the strengths (the published code), or w^gamma after them (the paper)."""

    @nn.nowrap
    def tape_fields(self) -> dict[str, Any]:
        """Fields of the cell that only a tape has."""
        return {"tape": True, "sharpening": self.sharpening, "sharpening_order": self.sharpening_order}
