"""Moves of heads by an index: to the next slot in the order of a column, or to the next slot with the same value."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.ops.heads import next_equal, sorted_next

FOLLOWED = (sorted_next, next_equal)
"""The moves of an index."""
EAGER = 10.0
"""Factor of the logits of columns. These are parameters, and without a factor a decided choice takes long to train."""


class Index(nn.Module):
    """The moves of an index. Each head chooses the column of each move."""

    heads: int
    rounded: bool

    @nn.compact
    def __call__(self, values: jax.Array, last: jax.Array) -> tuple[jax.Array, ...]:
        """[B, N, C], int[B] -> the targets of each move in `FOLLOWED`: [B, H, N, N] each, or rounded int[B, H, N]."""
        columns, slots = jnp.moveaxis(values, -1, 1), values.shape[1]
        shape = len(FOLLOWED), self.heads, values.shape[-1]
        logits = EAGER * self.param("columns", nn.initializers.zeros, shape, jnp.float32)
        if self.rounded:
            last = jnp.broadcast_to(last[:, None], (len(values), self.heads))
            return tuple(
                move(columns[:, jnp.argmax(x, axis=-1)], last) for move, x in zip(FOLLOWED, logits, strict=True)
            )
        last = jnp.broadcast_to(last[:, None], columns.shape[:2])
        leads = [jax.nn.one_hot(move(columns, last), slots, dtype=jnp.float32) for move in FOLLOWED]
        return tuple(jnp.einsum("hc,bcmn->bhmn", nn.softmax(x), lead) for x, lead in zip(logits, leads, strict=True))
