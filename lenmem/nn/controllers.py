"""Controllers of memory-augmented networks: LSTMs with a constrained state space, stateless controllers, and helpers.

Ofner & Kern, "State-Space Constraints Can Improve the Generalisation of the Differentiable Neural Computer to Input
Sequences With Unseen Length", 2021 (arXiv 2110.09138), section III and supplement B. The interface of cells is
described in `lenmem.nn.recurrence`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from lenmem.nn.linear import Dense
from lenmem.nn.module import Part
from lenmem.types import PyTree, Step, at_least_float32

Feedback = Literal["hidden", "cell"]
Kind = Literal["lstm", "peephole", "feedforward"]


class LSTMController(Part):
    """An LSTM whose gates see [x; h_{t-1}], or [x; c_{t-1}] with `feedback="cell"`. The carry is (c, h), each [B, H].

        f, i, o = sigmoid(W [x; .] + b),  c_hat = f c_{t-1} + i tanh(W_c [x; .] + b_c)
        c = c_hat, h = o tanh(c)          or with `compression`  c = tanh(c_hat), h = o c

    With feedback of the cell state (a peephole LSTM with full matrices, section III-C) h is not used at the next step.
    Compression (section III-D) keeps the cell state, which is then the only recurrent state, in (-1, 1). Weights are
    initialised as truncated normals with variance 1 / fan-in, biases as 0, learned initial states as N(0, 1).
    """

    hidden_size: int = 128
    feedback: Feedback = "hidden"
    """Input of the gates from the last step: the hidden state h, or the cell state c."""
    compression: bool = False
    """Compress the cell state by a tanh."""
    forget_bias: float = 0.0
    """Added to the input of the forget gate."""
    learned_start: bool = True
    """Learn the initial state; otherwise it is zero."""

    def setup(self):
        # If c is fed back, the initial h is unused, so it is not learned.
        learned = {"start_cell": self.learned_start, "start_hidden": self.learned_start and self.feedback == "hidden"}
        self.start_cell, self.start_hidden = (
            self.param(name, nn.initializers.normal(1.0), (self.hidden_size,), self.param_dtype)
            if is_learned
            else jnp.zeros((self.hidden_size,), self.param_dtype)
            for name, is_learned in learned.items()
        )

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> tuple[jax.Array, jax.Array]:
        """(c, h), broadcast to the batch. In half precision c, a sum over time, is float32."""
        dtype, shape = self.dtype or self.param_dtype, (*batch_shape, self.hidden_size)
        cell, hidden = (jnp.broadcast_to(x.astype(dtype), shape) for x in (self.start_cell, self.start_hidden))
        return at_least_float32(cell), hidden

    @nn.compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """(new carry, h [B, hidden_size]). Sows `controller_state`, the cell state before any compression."""
        cell, hidden = carry
        seen = jnp.concatenate([step.inputs, hidden if self.feedback == "hidden" else cell], axis=-1)
        shape = (seen.shape[-1], 4 * self.hidden_size)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape[1:], self.param_dtype)
        seen, kernel, bias = promote_dtype(seen, kernel, bias, dtype=self.dtype)
        cell = at_least_float32(cell)
        forget, write, output, candidate = jnp.split(at_least_float32(seen @ kernel + bias), 4, axis=-1)
        cell = nn.sigmoid(forget + self.forget_bias) * cell + nn.sigmoid(write) * jnp.tanh(candidate)
        self.sow("traces", "controller_state", cell)
        squashed = jnp.tanh(cell)
        hidden = (nn.sigmoid(output) * squashed).astype(hidden.dtype)
        return (squashed if self.compression else cell, hidden), hidden


class FeedForwardController(Part):
    """A controller without a state (section III-B): `layers` of `hidden_size`, with tanh on all but the last.

    Weights are initialised by Glorot's uniform rule, biases as 0.
    """

    hidden_size: int = 128
    layers: int = 3

    @nn.nowrap
    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> tuple[()]:
        """An empty carry."""
        return ()

    @nn.compact
    def __call__(self, carry: tuple[()], step: Step) -> tuple[tuple[()], jax.Array]:
        """(empty carry, output [B, hidden_size])."""
        states = step.inputs
        for layer in range(self.layers):
            states = jnp.tanh(states) if layer else states
            states = Dense(
                self.hidden_size,
                kernel_init=nn.initializers.glorot_uniform(),
                **self.dtypes,
                name=f"layer_{layer}",
            )(states)
        return (), states


def make_controller(
    kind: Kind,
    hidden_size: int,
    *,
    compression: bool = False,
    forget_bias: float = 0.0,
    learned_start: bool = True,
    **shared: Any,
) -> nn.Module:
    """`lstm`; `peephole`: an LSTM with feedback of its cell state; `feedforward`. Raises ValueError for other kinds."""
    if kind not in get_args(Kind):
        raise ValueError(f"controller is {kind!r}; allowed are {', '.join(get_args(Kind))}")
    if kind == "feedforward":
        return FeedForwardController(hidden_size, parent=None, **shared)
    return LSTMController(
        hidden_size,
        feedback="hidden" if kind == "lstm" else "cell",
        compression=compression,
        forget_bias=forget_bias,
        learned_start=learned_start,
        parent=None,
        **shared,
    )


def oneplus(x: jax.Array) -> jax.Array:
    """1 + log(1 + exp(x)), which is at least 1."""
    return 1 + nn.softplus(x)


def clip(values: PyTree, bound: float | None) -> PyTree:
    """Clips all values to [-bound, bound]; None: no clipping."""
    return values if bound is None else jax.tree.map(lambda x: jnp.clip(x, -bound, bound), values)


def cut(vector: jax.Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    """Splits a vector [..., sum of sizes] into named arrays [..., *shape], in order."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    parts = jnp.split(vector, ends[:-1], axis=-1)
    return {
        name: part.reshape(*vector.shape[:-1], *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def make_interface(shapes: Mapping[str, tuple[int, ...]], **shared: Any) -> Dense:
    """The linear map from a controller's output to commands with these shapes."""
    return Dense(sum(map(math.prod, shapes.values())), **shared)


def controlled(machine: Any, state: Any, step: Step) -> tuple[PyTree, jax.Array, dict[str, jax.Array]]:
    """Applies the controller of a `machine`: (controller state, output h, commands in float32).

    The machine has the attributes `cell`, `interface`, `command_shapes` and `clip`; its state has the controller's
    state (`controller`) and the last `reads`. While the machine answers, the controller's input is zero.
    """
    inputs = jnp.where(step.decoding[:, None], 0, step.inputs)
    inputs = jnp.concatenate([inputs, state.reads.astype(inputs.dtype)], axis=-1)
    controller, hidden = clip(machine.cell(state.controller, step._replace(inputs=inputs)), machine.clip)
    return controller, hidden, cut(machine.interface(hidden).astype(jnp.float32), machine.command_shapes)


class MemoryReadout(Part):
    """y = W_y h + W_r [r^1; ..; r^R] + b for a controller's output and the reads, clipped."""

    features: int
    clip: float | None = 20.0

    @nn.compact
    def __call__(self, outputs: jax.Array) -> jax.Array:
        """[h; r^1; ..; r^R] -> [..., features]."""
        return clip(Dense(self.features, **self.dtypes)(outputs), self.clip)
