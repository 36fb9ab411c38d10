"""Lie-access neural Turing machines: LANTM (shifts of the plane) and SLANTM (rotations of the sphere).

Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017, https://arxiv.org/abs/1611.02854.

An LSTM controls two heads in a continuous key space. At each step a head moves by a group action that the controller
emits. The write head stores an entry (key, value, strength) whose key is its position. The read head returns a mean of
the values, weighted by the distances of their keys. The moves form a group of isometries, so a trail of keys written
with one repeated move can be read again, from its start or backwards, at any length. Length generalisation comes from
this property.

Notation: h controller output [B, H]; q read head and q_w write head [B, d]; a action; t gate of the old head against a
proposed address q~; Sigma memory of keys k_i [B, d, slots], values v_i [B, m, slots], strengths s_i [B, slots]; w_i
read weights; rho read value [B, m]. Section and equation names are the paper's. Cost per step: O(H^2 + slots (d + m)).

Where the authors' code differs from the paper, a field selects between them. Three things always follow the code: the
angle of a rotation is at most 1 rad also if it is not bounded (paper: pi); the read value of a step enters its own
answer (paper: only the next state); and 1e-9 is added to each read weight before the last normalisation, so that a read
is uniform where all strengths are near 0.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.cells import LSTMCell, start_vector
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Init, Linear
from lenmem.nn.module import Part
from lenmem.nn.recurrence import AppendOnlyCell
from lenmem.types import Step

ReadWeighting = Literal["inverse_square", "softmax"]
RotationInterpolation = Literal["angle", "trigonometric"]
MIN_TEMPERATURE = 1e-6
"""Added to the temperature, so that the softmax stays finite."""
STRENGTH_OFFSET = -10.0
"""The strength of the initial entry is sigmoid(b - 10), so the entry has almost no weight at first."""


class Head(NamedTuple):
    """A head: its position and its last action."""

    position: jax.Array
    """q, [B, d]."""
    action: jax.Array
    """a: the shift [B, d], or the rotation (axis, angle) [B, 4]."""


class LieState(NamedTuple):
    """The carry of a Lie-access cell, without its memory."""

    controller: tuple[jax.Array, jax.Array]
    read_value: jax.Array
    read_head: Head
    write_head: Head


class Memory(NamedTuple):
    """Sigma = {(k_i, v_i, s_i)}, or one entry of it without the slot axis."""

    keys: jax.Array
    values: jax.Array
    strengths: jax.Array


class LieAccessCell(AppendOnlyCell, Part):
    """One step of a Lie-access machine; see `LANTM` for the fields. Its output is (h, rho, gamma)."""

    hidden_size: int = 50
    memory_width: int = 20
    group: Literal["shift", "rotation"] = "shift"
    weighting: ReadWeighting = "inverse_square"
    bound_action: bool = True
    read_gate_bias: float = -10.0
    write_gate_bias: float = -10.0
    action_interpolation: bool = False
    rotation_interpolation: RotationInterpolation = "angle"
    initialization: Init = "fan_in"
    forget_bias: float | None = 1.0

    def setup(self):
        rotating = self.group == "rotation"
        self.key_size = 3 if rotating else 2
        self.action_size = 4 if rotating else 2
        head_sizes = (self.key_size, self.action_size, 1, 1)
        self.command_sizes = (self.memory_width, 1, 1, 1, *head_sizes, *head_sizes)
        options = {"initialization": self.initialization, **self.dtypes}
        self.controller = LSTMCell(self.hidden_size, forget_bias=self.forget_bias, **options)
        self.commands = Linear(sum(self.command_sizes), **options)

        def vector(name, size):
            return start_vector(self, name, size)

        self.start_read_value = vector("start_read_value", self.memory_width)
        self.start_entry = Memory(
            vector("start_key", self.key_size), vector("start_value", self.memory_width), vector("start_strength", 1)
        )
        self.start_heads = [vector(f"start_{name}_head", self.key_size) for name in ("read", "write")]
        if self.action_interpolation:
            self.start_actions = [vector(f"start_{name}_action", self.action_size) for name in ("read", "write")]
        if rotating and self.bound_action:
            self.angle_bounds = [vector(f"{name}_angle_bound", 1) for name in ("read", "write")]

    def start(self, batch_shape: tuple[int, ...], steps: int):
        """Learned initial controller, heads and read value, and a memory with one learned entry."""

        def batched(x):
            return jnp.broadcast_to(x.astype(jnp.float32), (*batch_shape, *x.shape))

        heads = []
        for which, position in enumerate(self.start_heads):
            action = jnp.zeros(self.action_size)
            if self.action_interpolation:
                action = self.as_action(self.start_actions[which], which)
            heads.append(Head(batched(self.project(position)), batched(action)))
        state = LieState(self.controller.start(batch_shape), batched(jnp.tanh(self.start_read_value)), *heads)
        key, value, strength = self.start_entry
        entry = Memory(key, jnp.tanh(value), nn.sigmoid(strength[0] + STRENGTH_OFFSET))
        memory = jax.tree.map(lambda x: jnp.pad(batched(x)[..., None], [(0, 0)] * (x.ndim + 1) + [(0, steps)]), entry)
        return state, memory, jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state: LieState, memory: Memory, filled: jax.Array, step: Step):
        """RW of section 4: moves both heads, reads, and returns the entry to append.

        `memory` has S slots, and `filled` bool[B, S] those that may be read. Returns the new state, the entry (key
        [B, d_k], value [B, m], strength [B]), and h [B, H], the read value [B, m] and its gate [B, 1].
        """
        # Section 2: h = RNN([x; rho], h), and one linear map for all commands.
        read_value = state.read_value.astype(step.inputs.dtype)
        controller = self.controller.update(state.controller, jnp.concatenate([step.inputs, read_value], axis=-1))
        hidden = controller[1]
        commands = self.commands(hidden).astype(jnp.float32)
        splits = np.cumsum(self.command_sizes)[:-1]
        value, strength, output_gate, temperature, *of_heads = jnp.split(commands, splits, axis=-1)

        # Sections 4.1 and 4.3: move the heads.
        read_head = self.move(state.read_head, 0, *of_heads[:4], gate_bias=self.read_gate_bias)
        write_head = self.move(state.write_head, 1, *of_heads[4:], gate_bias=self.write_gate_bias)

        # Section 4.2: read the entries written before this step, then write.
        keys = jnp.swapaxes(memory.keys, -1, -2)
        if self.weighting == "inverse_square":
            weights = ops.inverse_square_weights(read_head.position, keys, memory.strengths, filled)
        else:
            temperature = nn.softplus(temperature[..., 0]) + MIN_TEMPERATURE
            weights = ops.softmax_distance_weights(read_head.position, keys, memory.strengths, temperature, filled)
        read_value = jnp.einsum("...t,...mt->...m", weights, memory.values)
        entry = Memory(write_head.position, jnp.tanh(value), nn.sigmoid(strength[..., 0]))

        self.sow("traces", "read_head", read_head.position)
        self.sow("traces", "write_head", write_head.position)
        self.sow("traces", "write_strength", entry.strengths)
        self.sow("traces", "read_weights", weights)
        output = (hidden, read_value.astype(hidden.dtype), nn.sigmoid(output_gate).astype(hidden.dtype))
        return LieState(controller, read_value, read_head, write_head), entry, output

    def move(self, head: Head, which: int, proposal, action, gate, action_gate, *, gate_bias: float) -> Head:
        """q' = a . pi(t q + (1 - t) q~) (section 4.3), with t = 1 - sigmoid(gate + gate_bias).

        Proposal q~ [B, d_k], action [B, d_k] or [B, 4] before `as_action`, gates [B, 1]. `which`: 0 for the read head,
        1 for the write head. The gate of action interpolation has the same bias.
        """
        random_access = nn.sigmoid(gate + gate_bias)
        base = self.project(random_access * self.project(proposal) + (1 - random_access) * head.position)
        action = self.as_action(action, which)
        if self.action_interpolation:
            action = self.interpolate(nn.sigmoid(action_gate + gate_bias), action, head.action)
        if self.group == "shift":
            return Head(ops.translate(base, action), action)
        return Head(ops.rotate(base, action[..., :3], action[..., 3]), action)

    def project(self, position: jax.Array) -> jax.Array:
        """pi: L2-normalisation onto the sphere; the identity on the plane. [..., d_k] -> [..., d_k]."""
        return ops.unit(position) if self.group == "rotation" else position

    def as_action(self, command: jax.Array, which: int) -> jax.Array:
        """a(h): a shift (with norm below 1 if bounded), [..., d_k], or a unit axis and an angle in (-1, 1) radians,
        [..., 4].

        A bounded angle is scaled by pi sigmoid(u - 5) with a learned u for each head.
        """
        if self.group == "shift":
            return ops.bounded(command) if self.bound_action else command
        axis, angle = ops.unit(command[..., :3]), jnp.tanh(command[..., 3:])
        if self.bound_action:
            angle = angle * jnp.pi * nn.sigmoid(self.angle_bounds[which] - 5.0)
        return jnp.concatenate([axis, angle], axis=-1)

    def interpolate(self, gate: jax.Array, new: jax.Array, last: jax.Array) -> jax.Array:
        """Appendix B: r a + (1 - r) a_last for shifts; for rotations, axis and angle separately. r is `gate`."""
        mixed = gate * new + (1 - gate) * last
        if self.group == "shift":
            return mixed
        if self.rotation_interpolation == "trigonometric":
            cosine = gate * jnp.cos(new[..., 3:]) + (1 - gate) * jnp.cos(last[..., 3:])
            sine = gate * jnp.sin(new[..., 3:]) + (1 - gate) * jnp.sin(last[..., 3:])
            return jnp.concatenate([ops.unit(mixed[..., :3]), jnp.arctan2(sine, cosine)], axis=-1)
        return jnp.concatenate([ops.unit(mixed[..., :3]), mixed[..., 3:]], axis=-1)


class GatedReadout(Part):
    """Logits W_o h + b_o + gamma (W_r rho + b_r): the controller's answer plus a gated read."""

    features: int
    initialization: Init = "fan_in"

    @nn.compact
    def __call__(self, outputs: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        """(h [..., H], rho [..., m], gamma [..., 1]) -> [..., features]."""
        hidden, read_value, gate = outputs
        options = {"initialization": self.initialization, **self.dtypes}
        own = Linear(self.features, **options, name="hidden")(hidden)
        return own + gate * Linear(self.features, **options, name="read")(read_value)


class LANTM(FlatModel):
    """Lie-access neural Turing machine on the shift group R^2; `LANTM(weighting="softmax")` is the paper's LANTM-s."""

    hidden_size: PositiveInt = 50
    """Number of cells of the LSTM controller."""
    memory_width: PositiveInt = 20
    """m: width of a memory value."""
    embedding_size: PositiveInt = 14
    """Width of the input embedding."""
    weighting: ReadWeighting = "inverse_square"
    """Read weights by inverse-square distance, or by an annealed softmax of minus the squared distance."""
    bound_action: bool = True
    """Shifts: norm below 1 (on in every published configuration). Rotations: a small learned bound on the angle."""
    read_gate_bias: float = -10.0
    """Bias of the read head's random-access gate. The paper favours Lie access for both heads; its code has 0 here.
    With 0 no seed of three solved reverse, with -10 all three did (`reverse-lantm-open_read_gate-L` and
    `reverse-lantm-L` in `results/lantm`)."""
    write_gate_bias: float = -10.0
    """Bias of the write head's random-access gate. With -10 the head initially moves by group actions only."""
    action_interpolation: bool = False
    """Mix the new action of a head with its last one, by a gate (appendix B). The two biases above also apply to these
    gates."""
    rotation_interpolation: RotationInterpolation = "angle"
    """Interpolate a rotation's angle (the paper), or its cosine and sine (the published code)."""
    initialization: Init = "fan_in"
    """`fan_in`: Torch's default. `uniform`: U(-1, 1) (table A.1's "1"), except for the embedding."""
    forget_bias: float | None = 1.0
    """Initial bias of the forget gates. None: drawn like the other biases, as in the published code for `fan_in`."""

    group: ClassVar[Literal["shift", "rotation"]] = "shift"

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        shared: dict[str, Any] = {"initialization": self.initialization, **self.dtypes}
        cell = LieAccessCell(
            hidden_size=self.hidden_size,
            memory_width=self.memory_width,
            group=self.group,
            weighting=self.weighting,
            bound_action=self.bound_action,
            read_gate_bias=self.read_gate_bias,
            write_gate_bias=self.write_gate_bias,
            action_interpolation=self.action_interpolation,
            rotation_interpolation=self.rotation_interpolation,
            forget_bias=self.forget_bias,
            **shared,
            name="cell",
        )
        return recurrent(cell, self, head=lambda size: GatedReadout(size, **shared, name="head"), begin=True)


class SLANTM(LANTM):
    """Lie-access neural Turing machine on the rotations SO(3) of the sphere S^2; `weighting="softmax"`: SLANTM-s."""

    bound_action: bool = False
    group: ClassVar[Literal["shift", "rotation"]] = "rotation"
