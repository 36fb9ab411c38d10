"""Tasks whose examples are rows of a fixed data set: files, or examples that cannot be drawn under `jit`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.rows import Rows, joined, take
from lenmem.errors import readable
from lenmem.fields import between
from lenmem.keys import namespaced
from lenmem.tasks.base import NoSuchLength, Source, Split, Task
from lenmem.types import Batch, Example

SplitSeed = Annotated[int, between(0, 2**32 - 1)]
"""A seed for `split_off`."""


@dataclasses.dataclass(frozen=True)
class RowTask(Task):
    """Base class of tasks with fixed data. Subclasses define `tables`, `example` and the spec.

    The data is generated or read when the first example is drawn, once for each configuration of a task.
    """

    per_batch_length: ClassVar[bool] = False
    endless: ClassVar[bool] = False
    length_bin: ClassVar[int] = 1
    """`sample` draws any row with a length in (length - length_bin, length]."""
    sampled_with_training: ClassVar[bool] = False
    """`sample` also draws from rows outside of the test; see `held_out`."""

    def tables(self) -> dict[Split, Rows]:
        """The rows of each split, in random order."""
        raise NotImplementedError

    def check_length(self, length: int) -> None:
        if self.endless or self.length_bin > 1:
            super().check_length(length)
            return
        known = _pool(self).lengths
        self._check_bounds(length, known.tolist())
        if length not in known:
            place = int(np.searchsorted(known, length))
            near = " and ".join(str(n) for n in known[max(place - 1, 0) : place + 1])
            raise NoSuchLength(f"no example of {type(self).__name__} has length {length}; the nearest are {near}")

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """int[R]: the lengths, in the task's unit. By default the number of input tokens."""
        return rows.input_lengths

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One row (inputs [N], their length, answers [M], their length), padded to `shapes(capacity)`. Traced."""
        raise NotImplementedError

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """The rows that `sample` draws from: the test rows; with `sampled_with_training` the validation and test rows,
        and training rows for lengths that do not occur in these."""
        if not self.sampled_with_training:
            return tables["test"]
        held, train = joined([tables["validation"], tables["test"]]), tables["train"]
        return joined([held, train[~np.isin(self.row_lengths(train), self.row_lengths(held))]])

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """A uniformly drawn held-out row of that length, or of the next shorter length that occurs."""
        pool = _pool(self)
        bounds = jnp.asarray(pool.bounds)[jnp.clip(length, 0, pool.bounds.shape[0] - 1)]
        number = jax.random.randint(key, (), bounds[0], bounds[1])
        return self.example(_row(pool.rows, number), capacity)

    def examples_of(self, split: Split) -> int | None:
        """Number of rows."""
        self.lengths_of(split)
        return len(_tables(self)[split])

    def source(self, split: Split, batch_size: int) -> Source:
        """Training: passes over the split, each in a new order. Other splits: passes in the same order."""
        self.lengths_of(split)
        rows = len(_tables(self)[split])
        if rows < batch_size and split == "train":
            raise ValueError(
                f"the training split has {rows} examples, fewer than a batch of {batch_size}; use a smaller batch_size"
            )
        if not rows:
            raise ValueError(f"the split {split!r} of this {type(self).__name__} has no examples")
        return RowSource(self, split, batch_size)


@dataclasses.dataclass(frozen=True, eq=False)
class FileTask(RowTask):
    """Base class of tasks that read files. Subclasses define `files`, and are dataclasses with `eq=False`, first in the
    list of bases.

    Since tasks are keys of the caches of data and programs, two tasks are only equal if their files had the same path,
    time of last change and size when the tasks were made.
    """

    def files(self) -> Sequence[Path]:
        """The files that the task reads, in a fixed order; none for data in memory or from TFDS. Raises ValueError if
        one is missing."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_version", _version(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTask) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return (type(self), *(getattr(self, field.name) for field in dataclasses.fields(self)), self.version)

    @property
    def version(self) -> str:
        """A hash of the paths, times of last change and sizes of the files when the task was made; empty if it reads no
        files, or if one was missing."""
        return vars(self)["_version"]

    @property
    def data_hash(self) -> str | None:
        """The SHA-256 of its file; of several files, that of their SHA-256. None if there is no file."""
        return _hash(self) if self.version else None


@dataclasses.dataclass(frozen=True)
class RowSource:
    """Batches of rows from a split."""

    task: RowTask
    split: Split
    batch_size: int

    def batch(self, key: jax.Array, step: jax.Array | int) -> Batch:
        """Batch `step`. A training pass omits the rows that do not fill a batch, which differ between passes."""
        rows = _tables(self.task)[self.split]
        size, column, step = len(rows), jnp.arange(self.batch_size), jnp.asarray(step)
        if self.split == "train":
            batches = size // self.batch_size
            key = namespaced(key, self.split, "order", step // batches)
            index = shuffled(key, step % batches * self.batch_size + column, size)
        else:
            index = (step % size * (self.batch_size % size) + column) % size
        capacity = self.task.lengths_of(self.split)[1]
        return jax.vmap(lambda number: self.task.example(_row(rows, number), capacity))(index)


def shuffled(key: jax.Array, index: jax.Array, size: int) -> jax.Array:
    """The image of `index` under a random permutation of 0 .. size - 1, int[..], without sorting.

    Four rounds of a Feistel network permute the numbers of 2 k bits, for the smallest k such that these include 0 ..
    size - 1. A result of `size` or more is permuted again.
    """
    bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = jnp.uint32(2**bits - 1)
    rounds = jax.random.bits(key, (4,), jnp.uint32)

    def permute(number: jax.Array) -> jax.Array:
        left, right = number >> bits, number & mask
        for salt in rounds:
            mixed = (right ^ salt) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return left << bits | right

    def again(number: jax.Array) -> jax.Array:
        return jnp.where(number < size, number, permute(number))

    first = permute(index.astype(jnp.uint32))
    return jax.lax.while_loop(lambda number: jnp.any(number >= size), again, first).astype(jnp.int32)


def share_of(count: int, share: float) -> int:
    """A fraction of `count`, rounded down, unaffected by binary rounding: 0.1 of 25,000 is 2,500."""
    return int(round(count * share, 6))


def split_off(rows: Rows, count: int, seed: int, groups: np.ndarray | None = None) -> tuple[Rows, Rows]:
    """(the other rows, `count` of the rows), both in random order.

    With `groups`, int[R], the second part is `count` complete groups instead of rows. Csordás et al. (2021) split SCAN
    in this way, with seed 1234.
    """
    names, group = np.unique(np.arange(len(rows)) if groups is None else groups, return_inverse=True)
    chosen = np.random.RandomState(seed).choice(len(names), count, replace=False)
    place = np.full(len(names), -1)
    place[chosen] = np.arange(count)
    order = np.argsort(place[group], kind="stable")
    first = int(np.sum(place[group] < 0))
    rest, held = order[:first], order[first:]
    return rows[np.random.default_rng(seed).permutation(rest)], rows[held]


def ended_example(
    row: tuple[jax.Array, ...], shapes: tuple[int, int], end: int, *, length_given: bool = False
) -> Example:
    """A row of tokens with its answer followed by `end`, in N input and M answer slots; padding is 0.

    The target mask includes all M slots; with `length_given`, only those of the answer and its end.
    """
    inputs, length, answer, answer_length = (array.astype(jnp.int32) for array in row)
    inputs, answer = (
        jnp.pad(array[:size], (0, max(0, size - array.shape[0])))
        for array, size in zip((inputs, answer), shapes, strict=True)
    )
    slot = jnp.arange(shapes[1])
    score_mask = slot <= answer_length
    targets = jnp.where(slot < answer_length, answer, jnp.where(score_mask, end, 0))
    target_mask = score_mask if length_given else jnp.ones_like(score_mask)
    return Example(inputs, jnp.arange(shapes[0]) < length, targets, target_mask, score_mask)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    rows: Rows
    """Held-out rows by length."""
    bounds: np.ndarray
    """int32[longest + 1, 2]: the first and the last row + 1 for each length."""
    lengths: np.ndarray
    """The lengths that occur, ascending, each once."""


def _version(task: FileTask) -> str:
    try:
        states = [(os.path.abspath(path), os.stat(path)) for path in task.files()]
    except (OSError, ValueError):  # reading the file will say what is wrong
        return ""
    known = [(path, state.st_mtime_ns, state.st_size) for path, state in states]
    return hashlib.sha256(repr(known).encode()).hexdigest() if known else ""


@functools.lru_cache(maxsize=4)
def _hash(task: FileTask) -> str:
    hashes = []
    for path in task.files():
        with readable(path), open(path, "rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256"))
    together = hashes[0] if len(hashes) == 1 else hashlib.sha256(b"".join(one.digest() for one in hashes))
    return together.hexdigest()


@functools.lru_cache(maxsize=8)
def _tables(task: RowTask) -> dict[Split, Rows]:
    return task.tables()


@functools.lru_cache(maxsize=8)
def _pool(task: RowTask) -> _Pool:
    rows = task.held_out(_tables(task))
    lengths = task.row_lengths(rows)
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    asked = np.maximum(np.arange(lengths[-1] + 1), lengths[0])
    stop = np.searchsorted(lengths, asked, "right")
    nearest = lengths[stop - 1]  # the longest row that is not longer
    first = np.searchsorted(lengths, np.minimum(asked - task.length_bin, nearest - 1), "right")
    return _Pool(rows[order], np.stack([first, stop], axis=1).astype(np.int32), np.unique(lengths))


def _row(rows: Rows, number: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(take(array, number) for array in rows.arrays)
