"""Differentiable stacks: the neural stack with strengths, and the superposition stack.

Grefenstette et al., "Learning to Transduce with Unbounded Memory", NeurIPS 2015 (arXiv 1506.02516), section 3.1: pushed
values are never deleted; a strength tells how much of a value is still on the stack. Joulin & Mikolov, "Inferring
Algorithmic Patterns with Stack-Augmented Recurrent Nets", NeurIPS 2015 (arXiv 1503.01007), section 3.2, in the form of
Suzgun et al., "Memory-Augmented Recurrent Neural Networks Can Learn Generalized Dyck Languages", 2019 (arXiv
1911.03329): the stack is the average of the stacks that each action would give.

Shapes: `strengths` [..., T] for T preallocated slots, with the bottom of the stack first; `stack` [..., T, W], with the
top first; `push`, `pop` and `no_op` [...]; any leading axes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def stack_update(
    strengths: Float[Array, "... T"],
    push: Float[Array, "..."],
    pop: Float[Array, "..."],
    time: Int[Array, "..."] | Float[Array, "..."] | int,
) -> Float[Array, "... T"]:
    """Pops, then pushes (Grefenstette et al., equation 2): the strengths after step t = `time`, counted from 0.

        s_t[i] = max(0, s_{t-1}[i] - max(0, u_t - sum_{j > i} s_{t-1}[j]))  for i < t,  s_t[t] = d_t,  0 for i > t

    with d = `push` and u = `pop`, both in [0, 1]. The value pushed at step t belongs in slot t (equation 1), with
    strength d_t. A pop removes strength u from the top down; popping an empty stack does nothing. If `time` >= T,
    nothing is pushed. Slots after t have neither value nor gradient, so more slots change nothing. O(T).
    """
    time = jnp.asarray(time)[..., None]
    slots = jnp.arange(strengths.shape[-1], dtype=time.dtype)
    left_to_pop = jnp.maximum(0, pop[..., None] - _above(strengths))
    popped = jnp.maximum(0, strengths - left_to_pop)
    return jnp.where(slots == time, push[..., None], jnp.where(slots < time, popped, 0))


def stack_read_weights(strengths: Float[Array, "... T"]) -> Float[Array, "... T"]:
    """w[i] = min(s[i], max(0, 1 - sum_{j > i} s[j])): a total strength of 1 from the top (Grefenstette et al.,
    equation 3).

    The read is sum_i w[i] V[i]. Weights sum to min(1, sum_i s[i]); an empty stack reads zeros. O(T).
    """
    return jnp.minimum(strengths, jnp.maximum(0, 1 - _above(strengths)))


def _above(strengths: jax.Array) -> jax.Array:
    """sum_{j > i} s[j] for every slot i: a cumulative sum from the top."""
    sums = jax.lax.cumsum(strengths, axis=strengths.ndim - 1, reverse=True)
    return jnp.concatenate([sums[..., 1:], jnp.zeros_like(sums[..., :1])], axis=-1)


def superposition_stack(
    stack: Float[Array, "... T W"],
    new: Float[Array, "... W"],
    push: Float[Array, "..."],
    pop: Float[Array, "..."],
    no_op: Float[Array, "..."] | None = None,
) -> Float[Array, "... T W"]:
    """S' = push [new; S_0 .. S_{T-2}] + pop [S_1 .. S_{T-1}; 0] (+ no_op S) (Joulin & Mikolov, equations 3 to 5).

    Push, pop and no-op are probabilities that sum to 1. A full stack loses its bottom value at a push. Popping an empty
    stack gives zeros. O(T W).
    """
    pushed = jnp.concatenate([new[..., None, :], stack[..., :-1, :]], axis=-2)
    popped = jnp.concatenate([stack[..., 1:, :], jnp.zeros_like(stack[..., :1, :])], axis=-2)
    mixed = push[..., None, None] * pushed + pop[..., None, None] * popped
    return mixed if no_op is None else mixed + no_op[..., None, None] * stack


class IndexStack(NamedTuple):
    """A stack of T numbers in a ring buffer, for rounded actions. A full stack loses its bottom value at a push."""

    values: Int[Array, "... T"]
    """The numbers, in a ring."""
    top: Int[Array, "..."]
    """The slot of the next push, modulo T."""
    height: Int[Array, "..."]
    """Number of values on the stack, at most T."""

    @classmethod
    def empty(cls, batch_shape: tuple[int, ...], slots: int) -> IndexStack:
        """A stack with room for so many values."""
        zero = jnp.zeros(batch_shape, jnp.int32)
        return cls(jnp.zeros((*batch_shape, slots), jnp.int32), zero, zero)

    def read(self) -> Int[Array, "..."]:
        """The topmost value, -1 if there is none. O(1)."""
        slot = (self.top - 1) % self.values.shape[-1]
        value = jnp.take_along_axis(self.values, slot[..., None], axis=-1)[..., 0]
        return jnp.where(self.height > 0, value, -1)

    def act(self, new: Int[Array, "..."], action: Int[Array, "..."]) -> IndexStack:
        """Pushes (action 0), pops (1) or does neither (2): `superposition_stack` with one-hot values and actions.

        Popping an empty stack does nothing. O(1) where the update is in place, as in a scan.
        """
        slots = self.values.shape[-1]
        push, pop = action == 0, (action == 1) & (self.height > 0)
        slot = (self.top % slots)[..., None]
        there = jnp.take_along_axis(self.values, slot, axis=-1)
        written = jnp.where(push[..., None], new[..., None], there).astype(jnp.int32)
        values = jnp.put_along_axis(self.values, slot, written, axis=-1, inplace=False)
        change = push.astype(jnp.int32) - pop.astype(jnp.int32)
        return IndexStack(values, self.top + change, jnp.minimum(self.height + change, slots))
