"""The recurrent networks of the Chomsky-hierarchy study: Elman, and controllers with stacks or tapes.

Delétang et al., "Neural Networks and the Chomsky Hierarchy", ICLR 2023 (arXiv 2207.02098), with its published code. A
controller sees the input and the first cell of each of its n memories: the top of a stack, or the cell under the head
of a tape. From its new state it then pushes a vector onto each stack, pops the stack or leaves it unchanged
(`lenmem.ops.superposition_stack`, after Joulin & Mikolov 2015), or writes to each tape and moves it, by one cell or by
the length of the input (`lenmem.ops.write_and_move`). What it writes is seen one step later.

Notation: x input [B, X]; h hidden state [B, H]; S memories [B, n, T, W], the cells in sight first; a actions; v values
to be written [B, n, W]; L the number of inputs of the row. An Elman network (Elman 1990) has ReLU here
instead of tanh. A step of it is

    h = relu(W_x [x; S_0] + b_x + W_h h + b_h),   a = softmax(W_a h + b_a) per memory,   v = W_v h + b_v,
    stack:  S = a_push [v; S_0 .. S_{T-2}] + a_pop [S_1 .. S_{T-1}; 0] + a_no_op S
    tape:   C = [v; S_1 .. S_{T-1}],  S = a_1 C + a_2 roll(C, -1) + a_3 roll(C, 1) + a_4 roll(C, -L) + a_5 roll(C, L)

and a linear head answers from relu(h). For tapes, v is the output of an MLP with two hidden layers with ReLU. In the
published code, one softmax runs over the actions of all stacks, so the probabilities of all stacks together sum to 1;
here each stack has its own softmax, which is the same for one stack. The published code takes L from the batch, whose
rows have equal lengths; here each row has its own L. State and memories start at zero, inputs are one-hot. The cells'
weights are initialised as normals of standard deviation 1 / sqrt(fan-in), truncated at two standard deviations (for the
LSTM this is the deviation after truncation), biases as zero. No parameter depends on T. Values pushed deeper than T are
lost. Tapes are circular, and jumps are by L modulo T.

Cost per step: O(H (X + H + n W) + n T W).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.nn.controllers import LSTMController
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.module import Part
from lenmem.ops.stacks import superposition_stack
from lenmem.ops.tape import write_and_move
from lenmem.types import Dtype, PyTree, Spec, Step

Controller = Literal["elman", "lstm"]


def truncated(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """N(0, 1 / fan_in), truncated at two standard deviations."""
    return nn.initializers.truncated_normal(shape[0] ** -0.5)(key, shape, dtype)


class ElmanCell(Part):
    """One step of an Elman network with ReLU. The carry is h [B, hidden_size], and so is the output."""

    hidden_size: int = 256

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> jax.Array:
        """Zeros."""
        return jnp.zeros((*batch_shape, self.hidden_size), self.dtype or self.param_dtype)

    @nn.compact
    def __call__(self, carry: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """(h, h), [B, hidden_size]."""

        def linear(name):
            return nn.Dense(self.hidden_size, kernel_init=truncated, **self.dtypes, name=name)

        hidden = nn.relu(linear("input")(step.inputs) + linear("hidden")(carry))
        return hidden, hidden


class MemoryCell(Part):
    """One step of a controller with `memories` of `slots` cells each. The carry is (state, S, ..), the output relu(h).

    Subclasses define `actions`, `start`, `values` and `moved`.
    """

    controller: Controller = "elman"
    hidden_size: int = 256
    memories: int = 1
    width: int = 8

    actions: ClassVar[int]
    """Number of actions on a memory."""

    def setup(self):
        if self.controller == "lstm":
            self.core = LSTMController(self.hidden_size, forget_bias=1.0, learned_start=False, **self.dtypes)
        else:
            self.core = ElmanCell(self.hidden_size, **self.dtypes)

    def zeros(self, batch_shape: tuple[int, ...], slots: int) -> tuple[PyTree, jax.Array]:
        """The first state of the controller, and empty memories."""
        return self.core.start(batch_shape), jnp.zeros((*batch_shape, self.memories, slots, self.width))

    def values(self, hidden: jax.Array, features: int) -> jax.Array:
        """The vectors to be written, [B, features], computed from h."""
        raise NotImplementedError

    def moved(self, memory: jax.Array, new: jax.Array, actions: jax.Array, *known: Any) -> jax.Array:
        """The memories after a step, [B, n, T, W], from values [B, n, W], actions [B, n, A] and the carry's rest."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, carry: tuple[PyTree, ...], step: Step) -> tuple[tuple[PyTree, ...], jax.Array]:
        """Reads the first cells, updates the state, then writes."""
        state, memory, *known = carry
        seen = memory[..., 0, :]
        flat = seen.reshape(*seen.shape[:-2], -1).astype(step.inputs.dtype)
        inputs = jnp.concatenate([step.inputs, flat], axis=-1)
        state, hidden = self.core(state, step._replace(inputs=inputs))

        def each(outputs):
            """[B, n k] -> [B, n, k]."""
            return outputs.astype(memory.dtype).reshape(*memory.shape[:-2], -1)

        actions = nn.softmax(each(self.linear("act", self.memories * self.actions)(hidden)))
        memory = self.moved(memory, each(self.values(hidden, self.memories * self.width)), actions, *known)

        self.sow("traces", "actions", actions)
        self.sow("traces", "seen", seen)
        return (state, memory, *known), nn.relu(hidden)

    @nn.nowrap
    def linear(self, name: str, features: int) -> nn.Dense:
        """A linear map with the initialisation of the published code."""
        return nn.Dense(features, kernel_init=truncated, **self.dtypes, name=name)


class StackCell(MemoryCell):
    """A controller with stacks, top first. Actions: push, pop, no-op."""

    slots: int | None = 30

    actions: ClassVar[int] = 3

    def start(self, batch_shape: tuple[int, ...], steps: int = 0, *, columns: int = 0) -> tuple[PyTree, jax.Array]:
        """Zeros. `slots` None: one for each of all steps, since a step pushes at most one value."""
        return self.zeros(batch_shape, max(columns, steps, 1) if self.slots is None else self.slots)

    def values(self, hidden, features):
        return self.linear("new", features)(hidden)

    def moved(self, memory, new, actions, *known):
        return superposition_stack(memory, new, *jnp.unstack(actions, axis=-1))


class TapeCell(MemoryCell):
    """A controller with tapes, the cell under the head first. Actions: stay, -1, +1, -L, +L. The carry ends with L."""

    slots: int = 30
    mlp_size: int = 64

    actions: ClassVar[int] = 5

    def start(self, batch_shape: tuple[int, ...], steps: int = 0, *, lengths: jax.Array) -> tuple[PyTree, ...]:
        """Zeros, and L."""
        return *self.zeros(batch_shape, self.slots), lengths

    def values(self, hidden, features):
        for name in ("first", "second"):
            hidden = nn.relu(self.linear(name, self.mlp_size)(hidden))
        return self.linear("new", features)(hidden)

    def moved(self, memory, new, actions, *known):
        (lengths,) = known
        return write_and_move(memory, new, actions, lengths[:, None])


class Elman(FlatModel):
    """An Elman network with ReLU. It answers at each input if the task is aligned, else after the input."""

    hidden_size: PositiveInt = 256
    """H: width of the hidden state."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        return recurrent(ElmanCell(self.hidden_size, **self.dtypes, name="cell"), self)


class VectorStackRNN(FlatModel):
    """A recurrent network with stacks of vectors. It answers at each input if the task is aligned, else after it."""

    controller: Controller = "elman"
    """An Elman network with ReLU, or an LSTM."""
    hidden_size: PositiveInt = 256
    """H: width of the hidden state."""
    stacks: PositiveInt = 1
    """n: number of stacks."""
    width: PositiveInt = 8
    """W: width of a value on a stack."""
    slots: PositiveInt | None = 30
    """T: depth of each stack; None: as deep as there are steps, so that no value is lost. No parameter depends on it,
    so a trained network can be evaluated with more."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cell = StackCell(
            controller=self.controller,
            hidden_size=self.hidden_size,
            memories=self.stacks,
            width=self.width,
            slots=self.slots,
            **self.dtypes,
            name="cell",
        )
        return recurrent(cell, self)


class TapeRNN(FlatModel):
    """A recurrent network with tapes. It knows the length of the input, and cannot take causal tasks."""

    controller: Controller = "elman"
    """An Elman network with ReLU, or an LSTM."""
    hidden_size: PositiveInt = 256
    """H: width of the hidden state."""
    tapes: PositiveInt = 1
    """n: number of tapes."""
    width: PositiveInt = 8
    """W: width of a cell."""
    slots: PositiveInt = 30
    """T: cells of each tape. No parameter depends on it, so a trained network can be evaluated with more."""
    mlp_size: PositiveInt = 64
    """Width of the hidden layers between the state and the values to be written."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        if spec.causal:
            return "it jumps by the length of the input, which is not known while reading; the task is causal"
        return super().supports(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cell = TapeCell(
            controller=self.controller,
            hidden_size=self.hidden_size,
            memories=self.tapes,
            width=self.width,
            slots=self.slots,
            mlp_size=self.mlp_size,
            **self.dtypes,
            name="cell",
        )
        return recurrent(cell, self)
