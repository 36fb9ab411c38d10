"""Training batches with rows of similar length (Csordás et al. 2022, published code) or with uniform lengths."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.rows import Rows, take
from lenmem.keys import namespaced
from lenmem.tasks.rows import RowTask, _tables, shuffled
from lenmem.types import Batch


@dataclasses.dataclass(frozen=True)
class BucketedSource:
    """Passes over the training rows of a task, in batches of rows with one or a few input lengths.

    A pass omits the rows that do not fill a batch, which differ between passes. It sorts the others by input length,
    with rows of equal length in random order, cuts the result into batches and visits these in random order. The rows
    are not actually sorted at each pass: the numbers of omitted rows of each length determine the position at which a
    batch begins, and a random permutation evaluated at a position gives a row of that length.
    """

    task: RowTask
    batch_size: int

    def batch(self, key: jax.Array, step: jax.Array | int) -> Batch:
        """Batch `step`: number `step mod batches` of the current pass."""
        rows, first = _by_length(self.task, of_inputs=True)
        batches, step = len(rows) // self.batch_size, jnp.asarray(step)
        key = namespaced(key, "train", "buckets", step // batches)
        # independent of the seed, so that seeds that are trained together have batches of similar length
        order = namespaced(jax.random.key(0), "train", "buckets", step // batches)
        number = shuffled(order, step % batches, batches)
        place = number * self.batch_size + jnp.arange(self.batch_size)

        sizes = jnp.asarray(np.diff(first, append=len(rows)))
        dropped = shuffled(namespaced(key, "dropped"), jnp.arange(batches * self.batch_size, len(rows)), len(rows))
        kept = sizes.at[jnp.searchsorted(jnp.asarray(first), dropped, side="right") - 1].add(-1)
        end = jnp.cumsum(kept)
        group = jnp.searchsorted(end, place, side="right")
        within = _permuted(namespaced(key, "rows"), group, place - (end - kept)[group], sizes[group])
        index = jnp.asarray(first)[group] + within

        capacity = self.task.train_lengths[1]
        row = tuple(take(array, index) for array in rows.arrays)
        return jax.vmap(lambda *row: self.task.example(row, capacity))(*row)


@dataclasses.dataclass(frozen=True)
class BalancedSource:
    """Training rows of a task, drawn with replacement: first a uniform length, then a row of that length.

    The length is that of the task (`RowTask.row_lengths`), not the input length. With a `pool`, the rows of that many
    batches are drawn together, sorted by input length, and cut into batches, which are visited in random order.
    """

    task: RowTask
    batch_size: int
    pool: int = 1

    def batch(self, key: jax.Array, step: jax.Array | int) -> Batch:
        """Batch `step`."""
        rows, first = _by_length(self.task, of_inputs=False)
        step, shape = jnp.asarray(step), (self.pool * self.batch_size,)
        pool, number = step // self.pool, step % self.pool
        of_group, of_row = jax.random.split(namespaced(key, "train", "balanced", pool))
        group = jax.random.randint(of_group, shape, 0, len(first))
        sizes = jnp.asarray(np.diff(first, append=len(rows)))[group]
        index = jnp.asarray(first)[group] + jax.random.randint(of_row, shape, 0, sizes)
        if self.pool > 1:
            index = index[jnp.argsort(take(rows.input_lengths, index))]
            # the same order for all seeds, as in `BucketedSource`
            order = jax.random.permutation(namespaced(jax.random.key(0), "train", "pool", pool), self.pool)
            index = jax.lax.dynamic_slice_in_dim(index, order[number] * self.batch_size, self.batch_size)
        capacity = self.task.train_lengths[1]
        row = tuple(take(array, index) for array in rows.arrays)
        return jax.vmap(lambda *row: self.task.example(row, capacity))(*row)


@functools.lru_cache(maxsize=8)
def _by_length(task: RowTask, *, of_inputs: bool) -> tuple[Rows, np.ndarray]:
    """The training rows sorted by length or by input length, and the position of the first row of each length."""
    rows = _tables(task)["train"]
    lengths = rows.input_lengths if of_inputs else task.row_lengths(rows)
    order = np.argsort(lengths, kind="stable")
    _, first = np.unique(lengths[order], return_index=True)
    return rows[order], first.astype(np.int32)


def _permuted(key: jax.Array, group: jax.Array, index: jax.Array, size: jax.Array) -> jax.Array:
    """The image of `index` under a random permutation of 0 .. size - 1, a different one for each group. All int32[B].

    Like `shuffled`, but sizes may differ between elements: a Feistel network on the 2 k bits that `size` needs, applied
    repeatedly until the result is below `size`.
    """
    bits = jnp.maximum((33 - jax.lax.clz(size - 1)) // 2, 1).astype(jnp.uint32)
    mask = (jnp.uint32(1) << bits) - 1
    salts = jax.random.bits(key, (4, 1), jnp.uint32) + group.astype(jnp.uint32) * jnp.uint32(0xC2B2AE35)

    def permute(number: jax.Array) -> jax.Array:
        left, right = number >> bits, number & mask
        for salt in salts:
            mixed = (right ^ salt) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return left << bits | right

    limit = size.astype(jnp.uint32)

    def again(number: jax.Array) -> jax.Array:
        return jnp.where(number < limit, number, permute(number))

    first = permute(index.astype(jnp.uint32))
    return jax.lax.while_loop(lambda number: jnp.any(number >= limit), again, first).astype(jnp.int32)
