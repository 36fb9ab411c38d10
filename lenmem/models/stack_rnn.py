"""Stack-RNN: an Elman network with a superposition stack.

Joulin & Mikolov, "Inferring Algorithmic Patterns with Stack-Augmented Recurrent Nets", NeurIPS 2015 (arXiv 1503.01007),
as in Suzgun et al., "Memory-Augmented Recurrent Neural Networks Can Learn Generalized Dyck Languages", 2019 (arXiv
1911.03329), section 3.1. The network sees the top of the stack, then replaces the stack by the average of the stacks
after a push and after a pop, weighted by the probabilities of the two.

Notation: x input [B, X]; h hidden state [B, H]; S stack [B, T, W], top first; a actions [B, 2 or 3]; n value to be
pushed [B, W]. A step is

    h~ = h + W_sh S_0,  h = tanh(W_x x + W_h h~),  a = softmax(W_a h),  n = sigmoid(W_n h)
    S = a_push [n; S_0 .. S_{T-2}] + a_pop [S_1 .. S_{T-1}; 0] (+ a_no_op S)

where each map has a bias. Hidden state and stack start at zero. No parameter depends on T; values pushed deeper than T
are lost. Cost per step: O(H (X + H + W) + T W).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.ops.stacks import superposition_stack
from lenmem.types import Step


class StackRNNCell(Part):
    """One step of a Stack-RNN; see `StackRNN` for the fields. The carry is (h, S), the output h."""

    hidden_size: int = 8
    width: int = 5
    slots: int = 104
    no_op: bool = False

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> tuple[jax.Array, jax.Array]:
        """Zeros."""
        hidden = jnp.zeros((*batch_shape, self.hidden_size), self.dtype or self.param_dtype)
        return hidden, jnp.zeros((*batch_shape, self.slots, self.width))

    @nn.compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Reads the top, then pushes and pops."""

        def linear(name, size):
            return Linear(size, **self.dtypes, name=name)

        hidden, stack = carry
        seen = hidden + linear("look", self.hidden_size)(stack[:, 0].astype(hidden.dtype))
        hidden = jnp.tanh(linear("input", self.hidden_size)(step.inputs) + linear("hidden", self.hidden_size)(seen))
        actions = nn.softmax(linear("act", 3 if self.no_op else 2)(hidden).astype(jnp.float32))
        new = nn.sigmoid(linear("new", self.width)(hidden).astype(jnp.float32))
        stack = superposition_stack(stack, new, *jnp.unstack(actions, axis=-1))

        self.sow("traces", "actions", actions)
        self.sow("traces", "top", stack[:, 0])
        return (hidden, stack), hidden


class StackRNN(FlatModel):
    """An Elman network with a stack. It answers at each input if the task is aligned (Dyck), else after the input."""

    hidden_size: PositiveInt = 8
    """Width of the hidden state."""
    width: PositiveInt = 5
    """W: width of a value on the stack."""
    slots: PositiveInt = 104
    """T: depth of the stack. No parameter depends on it, so a trained network can be evaluated with more."""
    no_op: bool = False
    """Add a third action, which leaves the stack unchanged."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cell = StackRNNCell(
            hidden_size=self.hidden_size,
            width=self.width,
            slots=self.slots,
            no_op=self.no_op,
            **self.dtypes,
            name="cell",
        )
        return recurrent(cell, self)
