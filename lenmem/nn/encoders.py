"""Encoders made of recurrent cells.

An encoder maps (states [B, N, d], mask bool[B, N]) to states [B, N, d']; see `lenmem.nn.interfaces`.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.cells import copied
from lenmem.nn.module import told
from lenmem.nn.recurrence import scan_cell
from lenmem.ops.gradients import with_gradient
from lenmem.types import Step


def reverse(states: jax.Array, mask: jax.Array) -> jax.Array:
    """Reverses each row's real part and leaves the padding in place: states [B, N, ...], mask bool[B, N]."""
    time, lengths = jnp.arange(mask.shape[-1]), jnp.sum(mask, axis=-1, keepdims=True)
    source = jnp.where(time < lengths, lengths - 1 - time, time)
    return _permuted(states, source)


def _permute(states: jax.Array, source: jax.Array) -> jax.Array:
    return jnp.take_along_axis(states, source.reshape(*source.shape, *[1] * (states.ndim - 2)), axis=1)


# A permutation that is its own inverse is also its own transpose, so the gradient needs no scatter.
_permuted = with_gradient(
    lambda states, source: (_permute(states, source), source), lambda source, d: (_permute(d, source), None)
)


def first_and_last(states: jax.Array, mask: jax.Array) -> jax.Array:
    """[states at the first real position | states at the last], [B, 2d]; zeros for an empty row."""
    last = jnp.maximum(jnp.sum(mask, axis=-1) - 1, 0)
    ends = jnp.stack([jnp.zeros_like(last), last], axis=-1)
    states = jnp.take_along_axis(states, ends[..., None], axis=1)
    return jnp.where(mask[:, :1], states.reshape(states.shape[0], -1), 0)


class Recurrent(nn.Module):
    """A recurrent cell as an encoder; if `bidirectional`, [forward | backward] of two cells (Schuster & Paliwal 1997).

    The backward cell starts at each row's own last real position. States at padding are zero. Raises ValueError if the
    two directions have different widths.
    """

    cell: nn.Module
    bidirectional: bool = False
    backward: nn.Module | None = None
    """The cell of the backward direction; None: a copy of `cell` with its own parameters."""

    @property
    def causal(self) -> bool:
        """Whether state t depends only on states 0 .. t."""
        return not self.bidirectional

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, H], or [B, N, 2H] with two directions."""
        states = jnp.where(mask[..., None], states, 0)
        outputs = self.run(copied(self.cell), states, mask, deterministic)
        if self.bidirectional:
            # `unbind` is Flax's way to copy a bound module: the copy gets its own parameters.
            other = self.backward if self.backward is not None else self.cell.unbind()[0].copy(name="backward")
            backward = self.run(copied(other), reverse(states, mask), mask, deterministic)
            if backward.shape != outputs.shape:
                widths = f"{outputs.shape[-1]} and {backward.shape[-1]}"
                raise ValueError(f"both directions must have the same width; forward and backward have {widths}")
            outputs = jnp.concatenate([outputs, reverse(backward, mask)], axis=-1)
        return jnp.where(mask[..., None], outputs, 0)

    @nn.nowrap
    def run(self, cell: nn.Module, states: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        """One direction."""
        steps = Step(states, jnp.zeros_like(mask), mask, deterministic)
        known = {"deterministic": deterministic, "lengths": jnp.sum(mask, axis=-1), "columns": mask.shape[-1]}
        carry = told(cell.start, mask.shape[:1], mask.shape[-1], **known)
        _, outputs = scan_cell(cell, carry, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps))
        return jnp.swapaxes(outputs, 0, 1)

    @nn.nowrap
    def final(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """The final state of each row in each direction, [B, H or 2H], from the outputs of the call."""
        first, last = jnp.split(first_and_last(outputs, mask), 2, axis=-1)
        if not self.bidirectional:
            return last
        half = outputs.shape[-1] // 2
        return jnp.concatenate([last[..., :half], first[..., half:]], axis=-1)
