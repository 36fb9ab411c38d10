"""Pointer-Augmented Neural Memory as a decoder, as the last layer of a decoder, and as a cell.

`PointerDecoder` reads the memory of any encoder; it is a decoder for `lenmem.nn.interfaces.EncoderDecoder`.
`PointerLayer` does the same on top of a decoder that processes all slots at once. `PointerCell` reads a memory of all
inputs so far; it is a cell as described in `lenmem.nn.recurrence`. The step that they share is in `lenmem.nn.pointers`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lenmem.nn.cells import as_cell
from lenmem.nn.interfaces.decoding import start_decoder
from lenmem.nn.linear import Linear
from lenmem.nn.module import told
from lenmem.nn.pointers import PointerMemory, PointerState, PointerUnits, Slots
from lenmem.nn.recurrence import AppendOnlyCell, scan_cell
from lenmem.types import PyTree, Step


class PointerDecoder(PointerUnits):
    """A decoder over the memory of any encoder. Its output is [*p_t^a, *p_t^c, h_t^c].

    p_E is the address of a row's last real slot. h_0^c is the value of that slot, or a linear map of it if memory and
    controller differ in width. In training a base is drawn for each row.
    """

    @property
    def needs_slots(self) -> bool:
        """Whether `decoder` needs the answer slots."""
        return getattr(self.decoder, "needs_slots", False)

    def setup(self):
        super().setup()
        self.bridge = Linear(self.hidden_size, **self.dtypes)

    def start(
        self, states: jax.Array, mask: jax.Array, valid: jax.Array | None = None, *, deterministic: bool = True
    ) -> tuple[PointerState, tuple[PointerMemory, PyTree]]:
        """[B, N, d], bool[B, N], the answer slots bool[B, M] -> (state, (memory, the memory of `decoder`))."""
        state, memory = self.start_heads(states, mask, deterministic=deterministic)
        if self.decoder is None:
            return state, (memory, ())
        below, memory_below = start_decoder(self.decoder, states, mask, valid, deterministic=deterministic)
        return state._replace(decoder=below), (memory, memory_below)

    def start_heads(
        self, states: jax.Array, mask: jax.Array, *, deterministic: bool
    ) -> tuple[PointerState, PointerMemory]:
        """[B, N, d], bool[B, N] -> the state, without that of `decoder`, and the memory."""
        rows, slots = mask.shape
        lengths = jnp.sum(mask, axis=-1)
        states = jnp.where(mask[..., None], states, 0)
        base = self.first_base(lengths, slots, deterministic=deterministic)
        memory = self.with_address_space(self.fill(states, self.bank(base, slots)), mask, base)
        controller = jnp.zeros((rows, 0))
        if self.controller != "none":
            last = jnp.maximum(lengths - 1, 0)[:, None, None]
            controller = jnp.take_along_axis(states, last, axis=1)[:, 0].astype(self.dtype or self.param_dtype)
            if states.shape[-1] != self.hidden_size:
                controller = self.bridge(controller)
        return PointerState(self.initial_hidden(rows), self.places(memory), controller, ()), memory

    def __call__(
        self, carry: PointerState, step: Step, memory: tuple[PointerMemory, PyTree]
    ) -> tuple[PointerState, jax.Array]:
        """One answer slot."""
        above, memory_below = memory
        z, below = step.inputs if self.reads or not self.address_heads else None, carry.decoder
        if self.decoder is not None:
            below, z = self.decoder(below, step, memory_below)
        state, output = self.advance_heads(carry, above, z, deterministic=step.deterministic)
        return state._replace(decoder=below), output


class PointerLayer(PointerDecoder):
    """PANM as the last layer on top of a `decoder` with `decode_all`, such as a Transformer's; its output is z_t.

    If the decoder's inputs are known, it fills all slots at once. Only pointers and controller, which are recurrent,
    run slot by slot.
    """

    def decode_all(
        self,
        states: jax.Array,
        mask: jax.Array,
        reads: jax.Array,
        valid: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """[B, N, d], bool[B, N], reads [B, M, e], bool[B, M] -> outputs [B, M, ...]."""
        below: Any = self.decoder
        z = told(below.decode_all, states, mask, reads, valid, deterministic=deterministic)
        state, memory = self.start_heads(states, mask, deterministic=deterministic)
        steps = Step(jnp.swapaxes(z, 0, 1), jnp.ones_like(valid.T), valid.T, deterministic)
        return jnp.swapaxes(scan_cell(self, state, steps, memory, method="point")[1], 0, 1)

    def point(self, carry: PointerState, step: Step, memory: PointerMemory) -> tuple[PointerState, jax.Array]:
        """One answer slot, given z_t as input."""
        return self.advance_heads(carry, memory, step.inputs, deterministic=step.deterministic)


class PointerCell(PointerUnits, AppendOnlyCell):
    """A cell whose memory is all inputs so far, including the current one. Its output is [*p_t^a, *p_t^c, h_t^c].

    p_E is the address of the newest slot; the paper does not define it for a growing memory. Only the base pointer
    continues from its last position; the end and the middle pointer start each step at the current end and middle. The
    controller starts at zero. While decoding, nothing is added to the memory.
    """

    memory_width: int = 64
    """d: width of the inputs."""

    def setup(self):
        super().setup()
        self.below = None if self.decoder is None else as_cell(self.decoder)

    @property
    def initial_slots(self) -> int:
        """The memory is empty at first."""
        return 0

    def start(
        self, batch_shape: tuple[int, ...], steps: int, *, deterministic: bool = True
    ) -> tuple[PyTree, Slots, jax.Array, jax.Array]:
        """Pointers at the base, and an empty memory of `steps` slots."""
        nothing = jnp.zeros(batch_shape, jnp.int32)
        base = self.first_base(nothing, steps, deterministic=deterministic)
        first = self.bank(base, 1)[:, 0]
        slot = self.fill(jnp.zeros((*batch_shape, self.memory_width), self.dtype or self.param_dtype), first)
        memory = jax.tree.map(lambda x: jnp.zeros((*x.shape, steps), x.dtype), slot)
        size = 0 if self.controller == "none" else self.hidden_size
        controller = jnp.zeros((*batch_shape, size), self.dtype or self.param_dtype)
        below = ()
        if self.below is not None:
            below = told(self.below.start, batch_shape, steps, deterministic=deterministic)
        state = PointerState(self.initial_hidden(*batch_shape), (first,) * self.address_heads, controller, below)
        # The state of an append-only cell is differentiated, so the base is a float: exact for up to 24 bits.
        return (state, base.astype(jnp.float32)), memory, nothing, jnp.zeros((), jnp.int32)

    def advance(self, state: PyTree, memory: Slots, filled: jax.Array, step: Step) -> tuple[PyTree, Slots, jax.Array]:
        """One step: write the input to its slot, then read."""
        pointers, base_as_float = state
        base = base_as_float.astype(jnp.int32)
        count = jnp.sum(filled, axis=-1)
        entry = self.fill(step.inputs, self.bank(base + count, 1)[:, 0])
        here = (jnp.arange(filled.shape[-1]) == count[:, None]) & ~step.decoding[:, None]

        def with_entry(column: jax.Array, new: jax.Array) -> jax.Array:
            return jnp.swapaxes(jnp.where(here[:, None], new[..., None].astype(column.dtype), column), -1, -2)

        now = self.with_address_space(jax.tree.map(with_entry, memory, entry), filled | here, base)
        z, below = step.inputs if self.reads or not self.address_heads else None, pointers.decoder
        if self.below is not None:
            below, z = self.below(below, step)
        placed = (*pointers.pointers[:1], *self.places(now)[1:])
        after, output = self.advance_heads(pointers._replace(pointers=placed), now, z, deterministic=step.deterministic)
        return (after._replace(decoder=below), base_as_float), entry, output
