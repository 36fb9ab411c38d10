"""Pushdown transducer: a finite-state control with a stack of symbols, rounded to an automaton after training.

This network is ours; it is for causal tasks, which `lenmem.models.two_way` cannot take. It is a deterministic pushdown
automaton with output, made differentiable. At each step the control sees its state, the top of the stack and the input.
It pushes a symbol, pops one or does neither, changes its state, and answers. In training the state is a distribution
over K symbols, and the stack is the average of the stacks after each action (Joulin & Mikolov 2015), so that there are
gradients. Outside training the action, the pushed symbol and the state are rounded to the most likely ones
(`rounding`). The rounded machine is discrete: if it is right in every local situation, it is right at every length and
depth.

Notation: x input [B, X]; s state [B, K]; S stack [B, T, W], top first, each slot one symbol of W, or zeros below the
bottom. A step is

    u = relu(W_u [s, S_0, x])       a = softmax(W_a u)       n = softmax(W_n u)       s <- softmax(W_s u)
    S <- a_push [n; S_0 .. S_{T-2}] + a_pop [S_1 .. S_{T-1}; 0] + a_no_op S
    output relu(W_v [s, S_0, x])

where each map has a bias. The state starts as its first symbol, and the stack starts empty. T is the number of steps
plus one, so that no symbol is lost. Cost per step: O((K + W + X) hidden), and for the stack O(T W) in training and O(1)
when rounded.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.ops.stacks import IndexStack, superposition_stack
from lenmem.types import Step

ACTIONS = ("push", "pop", "no_op")
"""The actions on the stack."""


class PushdownCell(Part):
    """One step of the machine. The carry is (s, stack), the output relu(W_v ..)."""

    hidden_size: int = 64
    states: int = 8
    letters: int = 8
    rounded: bool = False

    def start(
        self, batch_shape: tuple[int, ...], steps: int = 0, *, columns: int = 0
    ) -> tuple[jax.Array, jax.Array | IndexStack]:
        """The first symbol, and an empty stack with a slot for each step, of reading and of answering, and one more."""
        slots = max(columns, steps) + 1
        state = jnp.broadcast_to(jax.nn.one_hot(0, self.states, dtype=jnp.float32), (*batch_shape, self.states))
        if self.rounded:
            return state, IndexStack.empty(batch_shape, slots)
        return state, jnp.zeros((*batch_shape, slots, self.letters), jnp.float32)

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array | IndexStack], step: Step
    ) -> tuple[tuple[jax.Array, jax.Array | IndexStack], jax.Array]:
        """Reads the top of the stack, acts, and answers."""

        def linear(name: str, size: int, seen: jax.Array) -> jax.Array:
            return Linear(size, **self.dtypes, name=name)(seen)

        def control(name: str, state: jax.Array, top: jax.Array) -> jax.Array:
            seen = jnp.concatenate([state, top, step.inputs], axis=-1)
            return nn.relu(linear(name, self.hidden_size, seen))

        state, stack = carry
        hidden = control("look", state, self.top(stack))
        action = linear("act", len(ACTIONS), hidden).astype(jnp.float32)
        new = linear("new", self.letters, hidden).astype(jnp.float32)
        state = linear("next_symbol", self.states, hidden).astype(jnp.float32)
        if isinstance(stack, IndexStack):
            stack = stack.act(jnp.argmax(new, axis=-1), jnp.argmax(action, axis=-1))
            state = jax.nn.one_hot(jnp.argmax(state, axis=-1), self.states, dtype=jnp.float32)
        else:
            state, action = nn.softmax(state), nn.softmax(action)
            stack = superposition_stack(stack, nn.softmax(new), *jnp.unstack(action, axis=-1))
        top = self.top(stack)
        self.sow("traces", "actions", jax.nn.one_hot(jnp.argmax(action, -1), len(ACTIONS)) if self.rounded else action)
        self.sow("traces", "symbol", state)
        self.sow("traces", "top", top)
        return (state, stack), control("answer", state, top)

    @nn.nowrap
    def top(self, stack: jax.Array | IndexStack) -> jax.Array:
        """S_0, [B, W]."""
        if isinstance(stack, IndexStack):
            return jax.nn.one_hot(stack.read(), self.letters, dtype=jnp.float32)
        return stack[..., 0, :]


class Pushdown(FlatModel):
    """Pushdown transducer. It answers at each input if the task is aligned, else after the input."""

    hidden_size: PositiveInt = 64
    """Width of the two hidden layers of the control."""
    states: PositiveInt = 8
    """K: number of symbols of the state."""
    letters: PositiveInt = 8
    """W: number of symbols for the stack."""
    rounding: Literal["none", "evaluation"] = "evaluation"
    """Round state, action and pushed symbol outside training. `none`: do not round."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cell = PushdownCell(
            hidden_size=self.hidden_size,
            states=self.states,
            letters=self.letters,
            rounded=self.rounding == "evaluation" and not train,
            **self.dtypes,
            name="cell",
        )
        return recurrent(cell, self)
