"""Recurrence over depth: one layer applied repeatedly, for a fixed number of steps or with adaptive halting per column.

A *layer* is a Linen module `(states [B, N, d], mask bool[B, N]) -> states [B, N, d]`, for instance one of
`lenmem.nn.transformer`; it may also take `deterministic` and further inputs of the encoder. Both modules are encoders
(`lenmem.nn.interfaces`). They scan over depth, so compile time does not depend on the number of steps. Values that the
layer sows are stacked over the steps, and each step draws its own random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.linear import Linear
from lenmem.nn.module import Module, Part, told
from lenmem.ops.chunks import sum_type, varying_like
from lenmem.types import SOWN, STREAMS, PyTree

Halting = Literal["graves", "dehghani"]


def over_depth(
    body: Callable[..., PyTree],
    module: nn.Module,
    carry: PyTree,
    seen: tuple[jax.Array, ...],
    steps: int,
    *,
    remat: bool,
) -> PyTree:
    """`carry = body(module, carry, last, *seen)`, `steps` times with the same parameters; `last`: True at the end.

    Raises ValueError for fewer than 1 step.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    if module.is_initializing():  # one step creates all parameters
        return body(module, carry, jnp.array(steps == 1), *seen)

    def step(module: nn.Module, carry: PyTree, last: jax.Array, seen: tuple[jax.Array, ...]) -> tuple[PyTree, None]:
        return body(module, carry, last, *seen), None

    axes: Any = (0, nn.broadcast)
    scan = nn.scan(
        nn.remat(step, prevent_cse=False) if remat else step,
        variable_broadcast="params",
        variable_axes=dict.fromkeys(SOWN, 0),
        split_rngs={"params": False, **dict.fromkeys(STREAMS, True)},
        in_axes=axes,
    )
    return scan(module, varying_like(carry, seen), jnp.arange(steps) == steps - 1, seen)[0]


class Repeated(Module):
    """h_t = layer(h_{t-1}), t = 1 .. steps. An encoder."""

    layer: nn.Module
    steps: int
    remat: bool = False
    """Recompute each step in the backward pass instead of storing its intermediate values."""

    @nn.compact
    def __call__(self, states: jax.Array, *seen: jax.Array, deterministic: bool = True) -> jax.Array:
        """[B, N, d], further inputs of the layer -> [B, N, d]."""

        def body(layer, states, last, *seen):
            return told(layer, states, *seen, deterministic=deterministic)

        return over_depth(body, self.layer, states, seen, self.steps, remat=self.remat)


class AdaptiveSteps(Part):
    """Adaptive computation time (Graves 2016) for each column i, as in appendix A of Csordás et al. (2022). An encoder.

        q_t = sigmoid(w . h_{t-1} + b)                                (11)   from the state before the layer
        T = min(steps, first t at which q_1 + .. + q_t > threshold)   (12)   >= in the paper
        p_t = q_t for t < T,  R = 1 - sum_{t < T} q_t for t = T       (13-14)
        o = sum_{t <= T} p_t h_t                                      (15)   over the states after the layer

    The variant "graves" ("A" in table 6) is this rule. "dehghani" ("U") is the rule of the Universal Transformer:
    o_t = (1 - p_t) o_{t-1} + p_t h_t, and a column that has not halted by the last step has no remainder, p_T = q_T.
    Halted columns are still transformed and can still be attended to; only their output o stays fixed.

    Sows `penalty` times the mean of R over a row's real columns, averaged over rows, to "losses". With
    `published_penalty`, the sum of each row is divided by the length of the longest row of the batch instead, so the
    loss of a row depends on the other rows. Traces `halting` [B, N]: p_t; 0 after T. Padded columns never run; their
    output is zero.
    """

    layer: nn.Module
    steps: int
    variant: Halting = "graves"
    threshold: float = 0.99
    penalty: float = 0.03
    published_penalty: bool = False
    remat: bool = False
    """Recompute each step in the backward pass instead of storing its intermediate values."""

    def setup(self):
        self.halting_unit = Linear(1, **self.dtypes)

    def __call__(self, states: jax.Array, mask: jax.Array, *seen: jax.Array, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N], further inputs of the layer -> o, [B, N, d]."""
        zeros = jnp.zeros(mask.shape, sum_type(states))
        start = (states, jnp.zeros_like(states, zeros.dtype), zeros, zeros, mask)
        _, output, _, remainder, _ = over_depth(
            functools.partial(AdaptiveSteps.advance, deterministic=deterministic),
            self,
            start,
            (mask, *seen),
            self.steps,
            remat=self.remat,
        )
        columns = jnp.maximum(jnp.sum(mask, axis=-1, dtype=remainder.dtype), 1)
        if self.published_penalty:
            columns = jnp.max(columns)
        self.sow("losses", "ponder", self.penalty * jnp.mean(jnp.sum(remainder, axis=-1) / columns))
        return output.astype(states.dtype)

    def advance(self, carry: PyTree, last: jax.Array, *seen: jax.Array, deterministic: bool) -> PyTree:
        """One step; the carry is (h, o, sum of p, R, whether the column runs)."""
        states, output, total, remainder, running = carry
        chance = nn.sigmoid(self.halting_unit(states)[..., 0].astype(total.dtype))
        halts = running & (total + chance > self.threshold)
        if self.variant == "graves":
            halts = halts | (running & last)
        rest = jnp.where(halts, 1 - total, 0)
        weight = jnp.where(halts, rest, jnp.where(running, chance, 0))
        self.sow("traces", "halting", weight)
        states = told(self.layer, states, *seen, deterministic=deterministic)
        decay = 1.0 if self.variant == "graves" else 1 - weight[..., None]
        output = decay * output + weight[..., None] * states
        return states, output, total + weight, remainder + rest, running & ~halts
