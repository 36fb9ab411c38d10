"""The differentiable neural computer (DNC), its improvements, and controllers with a constrained state space.

Graves et al., "Hybrid computing using a neural network with dynamic external memory", Nature 538, 2016. Csordás &
Schmidhuber, "Improving Differentiable Neural Computers Through Memory Masking, De-allocation, and Link Distribution
Sharpness Control", ICLR 2019 (arXiv 1904.10278). Ofner & Kern, "State-Space Constraints Can Improve the Generalisation
of the Differentiable Neural Computer to Input Sequences With Unseen Length", 2021 (arXiv 2110.09138).

A controller sees the input and the last read values, and moves one write head and R read heads over a memory. The write
head selects slots with similar content or the least used slots. A read head selects slots with similar content, or the
slots written before or after those it read last. Ofner & Kern keep the controller's states near each other, by
squashing them or by a loss, so that longer sequences do not lead to states that were unseen in training.

Notation: x input [B, X]; h controller output [B, H]; M memory [B, N, W] of N slots; u usage [B, N]; L temporal link
[B, N, N] and p precedence [B, N]; w^w write weights [B, N]; w^r and r^r weights [B, R, N] and values [B, R, W] of the
read heads. No learned parameter depends on N, so a trained machine can run with any number of slots.
Cost per step: O(H (X + R W + H) + N^2 + R N (N + W)).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import NonNegativeFloat, PositiveInt, UnitInterval
from lenmem.nn.cells import as_cell
from lenmem.nn.controllers import Kind, MemoryReadout, controlled, make_controller, make_interface, oneplus
from lenmem.nn.dropout import Dropout
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, recurrent, require_spec, sequential
from lenmem.nn.module import Part
from lenmem.types import PyTree, Step, is_zero

SQUASHED: dict[str, Any] = {
    "read_strengths": oneplus,
    "write_strength": oneplus,
    "erase": nn.sigmoid,
    "free_gates": nn.sigmoid,
    "allocation_gate": nn.sigmoid,
    "write_gate": nn.sigmoid,
    "read_modes": nn.softmax,
    "read_masks": nn.sigmoid,
    "write_mask": nn.sigmoid,
    "forward_sharpness": oneplus,
    "backward_sharpness": oneplus,
}
"""Functions that map commands to their ranges; other commands are unbounded. Read modes: (backward, content, forward).

Strengths are 1 + softplus as in Graves et al.; DeepMind's code, which Ofner & Kern extended, uses the softplus alone.
"""


class Access(NamedTuple):
    """The memory and the state of its heads."""

    memory: jax.Array
    usage: jax.Array
    link: jax.Array
    precedence: jax.Array
    write_weights: jax.Array
    read_weights: jax.Array


class DNCState(NamedTuple):
    """The carry of a DNC."""

    controller: PyTree
    access: Access
    reads: jax.Array
    """r^1 .. r^R concatenated, [B, R W]."""


class DNCCell(Part):
    """One step of a DNC; see `DNC` for the fields. Its output is [h; r^1; ..; r^R]."""

    controller: nn.Module
    """Any recurrent cell."""
    slots: int = 50
    width: int = 16
    read_heads: int = 4
    masking: bool = False
    deallocation: bool = False
    link_sharpness: bool = False
    plain_lengths: bool = False
    stop_usage_gradient: bool = True
    clip: float | None = 20.0
    dropout: float = 0.0

    def setup(self):
        heads, width = self.read_heads, self.width
        shapes: dict[str, tuple[int, ...]] = {
            "read_keys": (heads, width),
            "read_strengths": (heads,),
            "write_key": (1, width),
            "write_strength": (1,),
            "erase": (1, width),
            "write_vector": (1, width),
            "free_gates": (heads,),
            "allocation_gate": (1,),
            "write_gate": (1,),
            "read_modes": (heads, 3),
        }
        if self.masking:
            shapes |= {"read_masks": (heads, width), "write_mask": (1, width)}
        if self.link_sharpness:
            shapes |= {"forward_sharpness": (heads,), "backward_sharpness": (heads,)}
        self.command_shapes = shapes
        self.input_dropout = Dropout(self.dropout)
        self.cell = as_cell(self.controller)
        self.interface = make_interface(shapes, **self.dtypes)

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> DNCState:
        """The controller's initial state and an empty, unused memory."""

        def zeros(*shape):
            return jnp.zeros((*batch_shape, *shape))

        slots, heads = self.slots, self.read_heads
        memory = zeros(slots, self.width)
        access = Access(memory, zeros(slots), zeros(slots, slots), zeros(slots), zeros(slots), zeros(heads, slots))
        return DNCState(self.cell.start(batch_shape, steps), access, zeros(heads * self.width))

    def __call__(self, state: DNCState, step: Step) -> tuple[DNCState, jax.Array]:
        """Applies the controller, writes, then reads."""
        step = step._replace(inputs=self.input_dropout(step.inputs, deterministic=step.deterministic))
        controller, hidden, commands = controlled(self, state, step)
        commands = {name: SQUASHED.get(name, jnp.asarray)(command) for name, command in commands.items()}
        access, reads = self.advance(state.access, commands)

        self.sow("traces", "read_weights", access.read_weights)
        self.sow("traces", "write_weights", access.write_weights)
        self.sow("traces", "usage", access.usage)
        self.sow("traces", "link", access.link)
        self.sow("traces", "allocation_gate", commands["allocation_gate"][..., 0])
        self.sow("traces", "write_gate", commands["write_gate"][..., 0])
        self.sow("traces", "read_modes", commands["read_modes"])
        return DNCState(controller, access, reads), jnp.concatenate([hidden, reads.astype(hidden.dtype)], axis=-1)

    @nn.nowrap
    def content(self, *addressed: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Weights [B, R, N] by similarity of the rows of a memory [B, N, W] to keys [B, R, W] with strengths [B, R]."""
        return ops.content_weights(*addressed, mask=mask, plain_lengths=self.plain_lengths)

    @nn.nowrap
    def advance(self, state: Access, commands: dict[str, jax.Array]) -> tuple[Access, jax.Array]:
        """Writes, then reads: returns the new access state, and the concatenated read values, [B, R W]. `commands` have
        the shapes of `command_shapes` after the batch."""
        memory, usage, link, precedence, write_weights, read_weights = state
        free, keys = commands["free_gates"], commands["write_key"]

        # Write by content or to a free slot.
        usage = ops.update_usage(usage, write_weights, read_weights, free, stop_gradient=self.stop_usage_gradient)
        allocation = ops.allocation_weights(usage)
        content = self.content(memory, keys, commands["write_strength"], mask=commands.get("write_mask"))
        allocation_gate = commands["allocation_gate"]
        chosen = allocation_gate * allocation + (1 - allocation_gate) * content[..., 0, :]
        write_weights = commands["write_gate"] * chosen
        if self.deallocation:  # also erase the content of freed slots
            memory = memory * ops.retention(read_weights, free)[..., None]
        memory = ops.erase_and_write(memory, write_weights[..., None, :], commands["erase"], commands["write_vector"])
        link, precedence = ops.update_temporal_link(link, precedence, write_weights)

        # Read by content, or along the order of writing.
        forward, backward = ops.directional_weights(link, read_weights)
        if self.link_sharpness:
            forward = ops.sharpen_directional(forward, commands["forward_sharpness"])
            backward = ops.sharpen_directional(backward, commands["backward_sharpness"])
        keys, strengths = commands["read_keys"], commands["read_strengths"]
        content = self.content(memory, keys, strengths, mask=commands.get("read_masks"))
        to_backward, to_content, to_forward = jnp.unstack(commands["read_modes"][..., None], axis=-2)
        read_weights = to_backward * backward + to_content * content + to_forward * forward
        reads = jnp.einsum("...rn,...nw->...rw", read_weights, memory)
        access = Access(memory, usage, link, precedence, write_weights, read_weights)
        return access, reads.reshape(*reads.shape[:-2], -1)


class RegularizedDNCCell(DNCCell):
    """A DNC with a loss that pulls similar cell states of its controller together (Ofner & Kern, section III-E)."""

    regularization: float = 0.1
    nearest_pairs: int = 20

    @nn.nowrap
    def sequence_loss(self, states: DNCState, valid: jax.Array) -> jax.Array:
        """lambda (1 - mean of the k largest cosines of pairs of cell states), averaged over the batch.

        states [T, B, ...] after each step, valid bool[T, B]. Uses the c of a controller's carry (c, h).
        """
        cells = jnp.swapaxes(states.controller[0], 0, 1).astype(jnp.float32)
        similarity = ops.nearest_states_similarity(cells, valid.T, self.nearest_pairs)
        return self.regularization * jnp.mean(1 - similarity)


class DNC(FlatModel):
    """A differentiable neural computer that reads the input, then answers. While it answers, its input is zero."""

    hidden_size: PositiveInt = 128
    """Width of the controller."""
    slots: PositiveInt = 50
    """N: rows of the memory. No parameter depends on it, so a trained machine can be evaluated with more."""
    width: PositiveInt = 16
    """W: columns of the memory."""
    read_heads: PositiveInt = 4
    """R: number of read heads; there is one write head."""
    controller: Kind = "lstm"
    """`lstm`; `peephole`: an LSTM that feeds back its cell state instead of its hidden state; `feedforward`: no
    state."""
    compression: bool = False
    """Squash the controller's cell state by a tanh."""
    regularization: NonNegativeFloat = 0.0
    """lambda: weight of the loss 1 - mean of the k largest cosines of pairs of cell states. 0: no such loss. Our copy
    of the paper lacks the value."""
    nearest_pairs: PositiveInt = 20
    """k: number of nearest pairs of cell states in that loss. Our copy of the paper lacks the value."""
    masking: bool = False
    """Content lookup with masks that select columns (Csordás & Schmidhuber)."""
    deallocation: bool = False
    """Erase slots when they are freed (Csordás & Schmidhuber)."""
    link_sharpness: bool = False
    """Sharpen the weights that follow the temporal link (Csordás & Schmidhuber)."""
    plain_lengths: bool = False
    """Lengths in cosines are |x|, as in the code of Csordás & Schmidhuber, and not sqrt(|x|^2 + 1e-6)."""
    stop_usage_gradient: bool = True
    """Stop the gradient from the usage to the write weights, as in the published code."""
    clip: float | None = 20.0
    """Bound on the controller's output and state and on the answer, as in the published code."""
    forget_bias: float = 0.0
    """Added to the input of the LSTM's forget gate; without effect for other controllers."""
    learned_start: bool = True
    """Learn the controller's initial state; otherwise it is zero. Without effect for `feedforward`, which has none."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""
    dropout: UnitInterval = 0.0
    """Dropout of the embedded input."""
    answer: Literal["after_input", "last_input"] = "after_input"
    """Whether a single answer is read after the input and a delimiter, or at the last input (Csordás et al. 2022)."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        regularized = not is_zero(self.regularization)
        if self.controller == "feedforward" and (self.compression or regularized):
            raise ValueError("compression and regularization constrain a cell state; controller 'feedforward' has none")
        if regularized and self.answer == "last_input":
            raise ValueError("regularization also needs the states while answering; answer 'last_input' has none")
        if self.answer == "last_input" and answers > 1 and require_spec(self.spec, self).alignment != "aligned":
            raise ValueError(f"answer 'last_input' is for tasks with one answer; this one has up to {answers}")
        controller = make_controller(
            self.controller,
            self.hidden_size,
            compression=self.compression,
            forget_bias=self.forget_bias,
            learned_start=self.learned_start,
            **self.dtypes,
        )
        machine: dict[str, Any] = {
            "controller": controller,
            "slots": self.slots,
            "width": self.width,
            "read_heads": self.read_heads,
            "masking": self.masking,
            "deallocation": self.deallocation,
            "link_sharpness": self.link_sharpness,
            "plain_lengths": self.plain_lengths,
            "stop_usage_gradient": self.stop_usage_gradient,
            "clip": self.clip,
            "dropout": self.dropout,
            **self.dtypes,
        }
        if regularized:
            pull = {"regularization": self.regularization, "nearest_pairs": self.nearest_pairs}
            cell: nn.Module = RegularizedDNCCell(**machine, **pull, name="cell")
        else:
            cell = DNCCell(**machine, name="cell")

        def head(size: int) -> nn.Module:
            return MemoryReadout(size, clip=self.clip, **self.dtypes, name="head")

        if self.answer == "last_input":
            width, bare = self.embedding_size, {"begin": False, "end": False}
            return sequential(Recurrent(cell), self, embedding_size=width, head=head, **bare)
        return recurrent(cell, self, head=head, delay=1)
