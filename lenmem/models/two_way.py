"""Multi-head two-way transducer: a finite-state control with heads that walk over the input.

This network is ours. It is a multi-head two-way finite automaton with output, made differentiable. The memory is the
input between a begin and an end symbol, and is read-only. Heads start at its two ends. At each step the control moves
each head, reads the symbols under the heads, and then changes its state and answers. All steps apply the same function;
only the state, one of K symbols, and the positions of the heads are passed from step to step.

In training a head is a distribution over the slots, and the state a distribution over K symbols, so that there are
gradients. Outside training both are rounded (`rounding`): a head is at one slot, and the state is one symbol. The
rounded machine is an automaton. Errors cannot accumulate in it, so if it is right in every local situation, it is right
at every length.

Notation: M memory [B, N, d], one-hot; H heads h with places p_h [B, N]; r_h = sum_n p_h[n] M[n]; s state [B, K]; x the
symbol that is read, or a blank while answering. A step:

    u = relu(W_u [s, r, x])            jump_h, shift_h = softmax of linear maps of u
    p_h <- shift_h (sum_j jump_h[j] p_j + jump_h[left] L_h p_h + jump_h[right] R_h p_h)
    v = relu(W_v [s, r, x])            s <- softmax(W_s v)            output [sum_h gate_h r_h, v]
                                       gate = the first H of the H + 1 entries of softmax(W_g v)

A jump goes to the position of a head j (its own position means no jump), or to the nearest slot on one side that
matches a pattern of the head, sigmoid(w_h M[n]) (`lenmem.ops.heads`). A shift is by -R .. R slots, and stops at the
ends. The machine first makes a step for each slot of the memory, with the slots from left to right as x, and then a
step for each answer.

With an `index`, a head may also move by it between jump and shift: p_h <- follow_h[none] p_h + follow_h[next] X_h p_h +
follow_h[equal] Y_h p_h. The first move goes to the next slot in the order of the values in a column of M, the second to
the next slot with the same value in a column. Each head chooses the column of each move by a softmax, which is rounded
like the other choices. Float channels of the input are then columns of the index only. The control does not see them,
so its number of situations is finite.

Cost per step: for the heads O(H N (H + N)) in training and O(H) when rounded; for the control O((K + H d) hidden).
The index costs, once, O(d N (N + log N)) in training and O(H N log N) when rounded.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveFloat, PositiveInt, at_least, between
from lenmem.nn.index import FOLLOWED, Index
from lenmem.nn.interfaces import EncoderDecoder, FlatModel, after_input, require_spec
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.nn.recurrence import scan_cell, where_valid
from lenmem.ops.heads import likeliest, nearest_match, next_match, walk
from lenmem.types import Spec, Step

STAY = 2.0
"""Initial bias of the logits of staying."""


class InputMemory(NamedTuple):
    """The memory over which the heads walk."""

    values: jax.Array
    """M, [B, N, d]."""
    last: jax.Array
    """int[B]: the slot of the end symbol."""
    left: jax.Array
    """Jumps to the left: [B, H, N, N], or rounded int[B, H, N]."""
    right: jax.Array
    """Jumps to the right."""
    followed: tuple[jax.Array, ...] = ()
    """The moves of the index: [B, H, N, N] each, or rounded int[B, H, N]."""
    sharpness: jax.Array | None = None
    """Factor of all logits of choices, [B]; None: 1."""
    certain: jax.Array | None = None
    """bool[B]: rows whose choices are rounded in training; None: none."""


class MachineState(NamedTuple):
    """The carry."""

    symbol: jax.Array
    """s, [B, K]."""
    heads: jax.Array
    """p [B, H, N], or rounded int[B, H]."""
    reads: jax.Array
    """r, [B, H, d]."""


class Unchanged(nn.Module):
    """The encoder: none."""

    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """The states."""
        return states


class Machine(Part):
    """The control and its heads: a cell with inputs x [B, d + 1], the memory as a shared argument, and outputs
    [sum_h gate_h r_h, v]."""

    hidden_size: int = 64
    states: int = 16
    heads: int = 3
    reach: int = 2
    jumps: bool = True
    index: bool | Literal["channels"] = False
    channels: tuple[int, int] = (0, 0)
    """The first column of M that is a channel, and the number of channels."""
    rounded: bool = False
    sharpest: float = 1.0
    certain: float = 0.0
    eager: float = 1.0
    train: bool = False
    """Whether sharp and certain rows are drawn, from the stream `gate`."""

    def setup(self):
        def linear(size: int) -> Linear:
            return Linear(size, **self.dtypes)

        self.pattern = linear(self.heads)
        self.before, self.after = linear(self.hidden_size), linear(self.hidden_size)
        self.jump, self.shift = linear(self.heads * (self.heads + 2)), linear(self.heads * (2 * self.reach + 1))
        self.next_symbol, self.gate = linear(self.states), linear(self.heads + 1)
        if self.index:
            self.follow = linear(self.heads * (1 + len(FOLLOWED)))
            self.columns = Index(heads=self.heads, rounded=self.rounded)

    def start(self, memory: InputMemory) -> MachineState:
        """The first symbol, and heads at the ends."""
        first = jnp.zeros_like(memory.last)
        ends = jnp.stack([memory.last if h == 1 else first for h in range(self.heads)], axis=1)
        heads = ends if self.rounded else jax.nn.one_hot(ends, memory.values.shape[1], dtype=jnp.float32)
        return MachineState(jax.nn.one_hot(first, self.states, dtype=jnp.float32), heads, self.read(memory, heads))

    def __call__(self, carry: MachineState, step: Step, memory: InputMemory) -> tuple[MachineState, jax.Array]:
        """One step of the machine. Rows that are not valid keep their state."""

        def control(layer: Linear, reads: jax.Array) -> jax.Array:
            return nn.relu(layer(jnp.concatenate([carry.symbol, reads.reshape(len(reads), -1), step.inputs], axis=-1)))

        before = control(self.before, carry.reads)
        follow = self.follow(before) if self.index else None
        heads = self.moved(carry.heads, self.jump(before), self.shift(before), memory, follow)
        reads = self.read(memory, heads)
        after = control(self.after, reads)
        symbol = self.chosen(self.next_symbol(after).astype(jnp.float32), memory)
        gates = nn.softmax(self.gate(after).astype(jnp.float32))[..., : self.heads]
        self.sow("traces", "head", heads if self.rounded else jnp.argmax(heads, axis=-1))
        self.sow("traces", "symbol", symbol)
        output = jnp.concatenate([jnp.einsum("bh,bhd->bd", gates, reads), after], axis=-1)
        return where_valid(step.valid, MachineState(symbol, heads, reads), carry), output

    @nn.nowrap
    def chosen(self, logits: jax.Array, memory: InputMemory) -> jax.Array:
        """Softmax of logits [B, ..., C], times the row's sharpness. In certain rows, and if the machine is rounded, the
        largest weight becomes 1 and the others 0; in certain rows the gradient is that of the softmax."""

        def by_row(x: jax.Array) -> jax.Array:
            return x.reshape(-1, *[1] * (logits.ndim - 1))

        weights = nn.softmax(logits if memory.sharpness is None else logits * by_row(memory.sharpness))
        rounded = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1], dtype=weights.dtype)
        if self.rounded:
            return rounded
        if memory.certain is None:
            return weights
        return weights + jax.lax.stop_gradient(jnp.where(by_row(memory.certain), rounded - weights, 0))

    def memory(self, values: jax.Array, mask: jax.Array) -> InputMemory:
        """[B, N, d], bool[B, N] -> the memory, with the targets of each head's jumps from each slot."""
        values = jnp.where(mask[..., None], values, 0).astype(jnp.float32)
        last = jnp.sum(mask, axis=-1) - 1
        index = ()
        if self.index:
            first, count = self.channels
            index = self.columns(values[..., first : first + count] if self.index == "channels" else values, last)
            values = jnp.concatenate([values[..., :first], values[..., first + count :]], axis=-1)
        logits = self.eager * jnp.moveaxis(self.pattern(values).astype(jnp.float32), -1, 1)
        sharpness = certain = None
        if self.train and self.sharpest > 1:
            sharpness = self.sharpest ** jax.random.uniform(self.make_rng("gate"), last.shape)
            logits = logits * sharpness[:, None, None]
        if self.train and self.certain > 0:
            certain = jax.random.bernoulli(self.make_rng("gate"), self.certain, last.shape)
        jumps = next_match if self.rounded else nearest_match  # without jumps, nothing reads them, and XLA drops them
        moves = jumps(logits, jnp.broadcast_to(last[:, None], logits.shape[:2]))
        return InputMemory(values, last, *moves, index, sharpness, certain)

    @nn.nowrap
    def read(self, memory: InputMemory, heads: jax.Array) -> jax.Array:
        """r, [B, H, d]: the symbols under the heads."""
        if self.rounded:
            return jnp.take_along_axis(memory.values, heads[..., None], axis=1)
        return jnp.einsum("bhn,bnd->bhd", heads, memory.values)

    @nn.nowrap
    def moved(
        self, heads: jax.Array, jump: jax.Array, shift: jax.Array, memory: InputMemory, follow: jax.Array | None = None
    ) -> jax.Array:
        """The heads after jumps, moves by the index and shifts, with logits [B, H (H + 2)], `follow` [B, 3 H] and
        [B, H (2 R + 1)]."""
        count = self.heads
        stay = STAY * jnp.eye(count, count + 2, dtype=jnp.float32)
        jump = jump.astype(jnp.float32).reshape(-1, count, count + 2) + stay
        distances = jnp.arange(-self.reach, self.reach + 1)
        shift = shift.astype(jnp.float32).reshape(-1, count, len(distances)) + jnp.where(distances == 0, STAY, 0.0)
        last = jnp.broadcast_to(memory.last[:, None], heads.shape[:2])
        landed = self.followed(self.jumped(heads, jump, memory) if self.jumps else heads, follow, memory)
        if self.rounded:
            return jnp.clip(landed + distances[jnp.argmax(shift, axis=-1)], 0, last)
        return walk(landed, self.chosen(shift, memory), last)

    @nn.nowrap
    def jumped(self, heads: jax.Array, logits: jax.Array, memory: InputMemory) -> jax.Array:
        """The heads after jumps with logits [B, H, H + 2]: to another head, or to the match on the left or right."""
        count, tables = self.heads, (memory.left, memory.right)
        if self.rounded:
            others = jnp.broadcast_to(heads[:, None], (*heads.shape, count))
            places = jnp.stack([self.through(heads, table) for table in tables], axis=-1)
            return likeliest(jnp.concatenate([others, places], axis=-1), logits)
        weights = self.chosen(logits, memory)
        landed = jnp.einsum("bhj,bjn->bhn", weights[..., :count], heads)
        for side, table in enumerate(tables):
            landed += weights[..., count + side, None] * self.through(heads, table)
        return landed

    @nn.nowrap
    def followed(self, heads: jax.Array, logits: jax.Array | None, memory: InputMemory) -> jax.Array:
        """The heads after moves by the index with logits [B, 3 H], if there is an index."""
        if logits is None:
            return heads
        logits = logits.astype(jnp.float32).reshape(*heads.shape[:2], -1).at[..., 0].add(STAY)
        options = [heads, *(self.through(heads, table) for table in memory.followed)]
        if self.rounded:
            return likeliest(jnp.stack(options, axis=-1), logits)
        return jnp.einsum("bhf,bfhn->bhn", self.chosen(logits, memory), jnp.stack(options, axis=1))

    @nn.nowrap
    def through(self, heads: jax.Array, table: jax.Array) -> jax.Array:
        """The heads after the moves of a table, [B, H, N, N] or rounded int[B, H, N]."""
        if self.rounded:
            return jnp.take_along_axis(table, heads[..., None], axis=-1)[..., 0]
        return jnp.einsum("bhm,bhmn->bhn", heads, table)


class TwoWayDecoder(Part):
    """The machine as a decoder for `EncoderDecoder`: it reads each slot once, then answers."""

    machine: Machine
    reading: bool = True

    def start(self, states: jax.Array, mask: jax.Array) -> tuple[MachineState, InputMemory]:
        """[B, N, d], bool[B, N] -> the state after one step for each slot, and the memory."""
        memory = self.machine.memory(states, mask)
        if not self.reading:
            return self.machine.start(memory), memory
        steps = Step(jnp.pad(memory.values, ((0, 0), (0, 0), (0, 1))), jnp.zeros_like(mask), mask)
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
        return scan_cell(self.machine, self.machine.start(memory), steps, memory)[0], memory

    def __call__(self, carry: MachineState, step: Step, memory: InputMemory) -> tuple[MachineState, jax.Array]:
        """One answer. The machine sees a blank."""
        blank = jnp.zeros((len(memory.values), memory.values.shape[-1] + 1), memory.values.dtype).at[:, -1].set(1)
        return self.machine(carry, step._replace(inputs=blank), memory)


class TwoWay(FlatModel):
    """Multi-head two-way transducer. It answers after the complete input, so it cannot take causal tasks."""

    hidden_size: PositiveInt = 64
    """Width of the two hidden layers of the control."""
    states: PositiveInt = 16
    """K: number of symbols of the state."""
    heads: PositiveInt = 3
    """H: number of heads. The second one starts at the end of the input, the others at the beginning."""
    reach: PositiveInt = 2
    """R: number of slots that a head may walk in a step, in either direction."""
    jumps: bool = True
    """Whether heads may jump. If False, they only walk (and follow an index)."""
    reading: bool = True
    """Make a step for each symbol of the input before the first answer. If False, the machine answers at once."""
    index: bool | Literal["channels"] = False
    """Whether heads may move by an index of the input. Channels are then columns of the index only. `channels`: the
    index has only the channels as columns, so there is no index on a task without channels."""
    rounding: Literal["none", "evaluation"] = "evaluation"
    """Round heads and state outside training. `none`: do not round."""
    sharpest: Annotated[float, at_least(1)] = 1.0
    """In training, all logits of a row's moves and state are multiplied by a factor between 1 and this value, drawn for
    each example log-uniformly. Answers that rely on mixtures of positions or states are then wrong in sharp rows."""
    certain: Annotated[float, between(0, 1)] = 0.0
    """Fraction of the examples of a training batch whose moves and state are rounded, with the gradient of the softmax
    (straight-through). Patterns of jumps are not rounded."""
    eager: PositiveFloat = 1.0
    """Factor of the logits of the jumps' patterns. These logits are nearly parameters themselves, so Adam changes them
    by about its learning rate in each step. With a factor of 1, a decided pattern takes thousands of steps."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return after_input(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        spec = require_spec(self.spec, self)
        machine = Machine(
            hidden_size=self.hidden_size,
            states=self.states,
            heads=self.heads,
            reach=self.reach,
            jumps=self.jumps,
            index=self.index if self.index != "channels" or spec.channels else False,
            channels=(spec.vocabulary, spec.channels),
            rounded=self.rounding == "evaluation" and not train,
            sharpest=self.sharpest,
            certain=self.certain,
            eager=self.eager,
            train=train,
            **self.dtypes,
            parent=None,
        )
        return EncoderDecoder(
            encoder=Unchanged(name="encoder"),
            decoder=TwoWayDecoder(machine=machine, reading=self.reading, name="decoder"),
            spec=self.spec,
            embedding_size=None,
            delimiters=True,
            **self.dtypes,
        )
