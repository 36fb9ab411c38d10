"""Heads over the slots of a memory: walks that stop at the ends, and jumps to the nearest slot that matches.

A head is a distribution over N slots, or the number of a slot. The slots in use are 0 .. `last`. Jumps to the nearest
match are those of geometric attention (Csordás et al. 2022) with the same pattern at all steps: from slot m, the head
lands on slot n > m with probability

    T[m, n] = g_n prod_{m < k < n} (1 - g_k),    g_n = sigmoid(z_n), and g = 1 at the last slot.

Jumps to the left are analogous, with g = 1 at slot 0. A head at the end stays there.

There are two more moves, by an index of the slots by their values in a column: `sorted_next` goes to the next slot in
the order of the values, and `next_equal` to the next slot with the same value.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lenmem.ops.outward import padded_sums


def walk(head: jax.Array, weights: jax.Array, last: jax.Array) -> jax.Array:
    """The head [..., N] after a walk by -R .. R slots with weights [..., 2 R + 1]; `last` int[...].

    Weight that would move beyond slot 0 or `last` stops there.
    """
    slots, reach = head.shape[-1], weights.shape[-1] // 2
    wide = slots + 2 * reach
    shifted = jnp.stack([_between(head, i, wide) for i in range(2 * reach + 1)], axis=-2)
    spread = jnp.einsum("...s,...sn->...n", weights, shifted)  # over the places -R .. N - 1 + R
    place = jnp.arange(wide) - reach
    beyond = jnp.sum(jnp.where(place > last[..., None], spread, 0), axis=-1, keepdims=True)
    before = jnp.sum(spread[..., :reach], axis=-1, keepdims=True)
    place, spread = place[reach : reach + slots], spread[..., reach : reach + slots]
    inside = jnp.where(place <= last[..., None], spread, 0)
    return inside + jnp.where(place == last[..., None], beyond, 0) + jnp.where(place == 0, before, 0)


def _between(head: jax.Array, zeros: int, width: int) -> jax.Array:
    """The head after `zeros` zeros, padded with zeros to `width`."""
    return jnp.pad(head, [(0, 0)] * (head.ndim - 1) + [(zeros, width - zeros - head.shape[-1])])


def likeliest(options: jax.Array, logits: jax.Array) -> jax.Array:
    """The option, out of options [..., F], with the largest logit: [...]."""
    return jnp.take_along_axis(options, jnp.argmax(logits, axis=-1)[..., None], axis=-1)[..., 0]


def nearest_match(logits: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The jumps from each slot to the nearest match on its left and right: two matrices [..., N, N], rows sum to 1.

    z `logits` [..., N]; `last` int[...]. Rows beyond `last` are arbitrary. O(N^2).
    """
    slots = jnp.arange(logits.shape[-1])
    used = slots < last[..., None]
    here, there = slots[:, None], slots
    log_match = jax.nn.log_sigmoid(logits)
    misses = jnp.where(used, -jax.nn.softplus(logits), 0.0)[..., None, :]  # log(1 - g_k); beyond `last` nothing matches

    def jumps(ahead: jax.Array, end: jax.Array, to_left: bool) -> jax.Array:
        # Summed from the head on: differences of sums over all slots would be inexact for large logits.
        passed = padded_sums(jnp.where(ahead, misses, 0.0), reverse=to_left)
        landing = jnp.where(end, 0.0, log_match)[..., None, :]
        return jnp.where(ahead, jnp.exp(jnp.where(ahead, passed + landing, -jnp.inf)), 0.0)

    right = jumps((there > here) & (there <= last[..., None, None]), slots == last[..., None], False)
    left = jumps(there < here, slots == 0, True)
    stay = jnp.eye(logits.shape[-1], dtype=logits.dtype)
    left = jnp.where((slots == 0)[:, None], left + stay, left)
    return left, jnp.where(here >= last[..., None, None], right + stay, right)


def next_match(logits: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same jumps with g rounded to 0 or 1: the slots on the left and on the right of each, int[..., N]. O(N)."""
    slots = jnp.arange(logits.shape[-1])
    end = last[..., None]
    matches = (logits > 0) & (slots < end)
    before = jax.lax.cummax(jnp.where(matches, slots, 0), axis=logits.ndim - 1)
    after = jax.lax.cummin(jnp.where(matches, slots, end), axis=logits.ndim - 1, reverse=True)
    left = jnp.concatenate([jnp.zeros_like(before[..., :1]), before[..., :-1]], axis=-1)
    right = jnp.concatenate([after[..., 1:], jnp.broadcast_to(end, after[..., :1].shape)], axis=-1)
    return left, jnp.minimum(right, end)


def sorted_next(values: jax.Array, last: jax.Array) -> jax.Array:
    """The slot after each slot in ascending order of `values` [..., N], int[..., N]; equal values are in slot order.

    `last` int[...]. Slot 0 comes first, whatever its value, and slot `last` comes last. A head at slot `last` or beyond
    it stays there. O(N log N).
    """
    order, _ = _sorted(values, last)
    following = jnp.concatenate([order[..., 1:], order[..., -1:]], axis=-1)
    slots = jnp.arange(values.shape[-1])
    return jnp.where(slots < last[..., None], _unsorted(following, order), slots)


def next_equal(values: jax.Array, last: jax.Array) -> jax.Array:
    """The next slot on the right with the same value, or else the leftmost one, int[..., N].

    `values` [..., N]; `last` int[...]. A head stays at a slot whose value is unique. It also stays at slot 0, at `last`
    and beyond it; these slots are not equal to any other. O(N log N).
    """
    order, keys = _sorted(values, last)
    slots = jnp.arange(values.shape[-1])
    inside = (order > 0) & (order < last[..., None])
    same = (keys[..., 1:] == keys[..., :-1]) & inside[..., 1:] & inside[..., :-1]
    no = jnp.zeros_like(same[..., :1])
    first = jax.lax.cummax(jnp.where(jnp.concatenate([no, same], axis=-1), 0, slots), axis=values.ndim - 1)
    following = jnp.where(jnp.concatenate([same, no], axis=-1), slots + 1, first)
    return _unsorted(jnp.take_along_axis(order, following, axis=-1), order)


def _sorted(values: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The slots in ascending order of their values, and the values in this order. Slot 0 comes first; slot `last` and
    those beyond it come last."""
    slots = jnp.arange(values.shape[-1])
    keys = jnp.where(slots == 0, -jnp.inf, jnp.where(slots < last[..., None], values, jnp.inf))
    order = jnp.argsort(keys, axis=-1, stable=True)
    return order, jnp.take_along_axis(keys, order, axis=-1)


def _unsorted(values: jax.Array, order: jax.Array) -> jax.Array:
    """The inverse of sorting: values in sorted order -> values in slot order."""
    return jnp.put_along_axis(jnp.zeros_like(values), order, values, axis=-1, inplace=False)
