"""The interface of tasks, and the losses and metrics that several tasks share.

A task is a frozen dataclass whose fields are its configuration. Its methods are pure functions of the fields and a
random key, so data can be drawn inside the compiled training step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lenmem.fields import check_fields
from lenmem.keys import namespaced
from lenmem.types import Batch, Example, PyTree, Spec

Split = str
"""`train`, `validation`, `test`, or another name in `Task.splits`."""


class SetScore(NamedTuple):
    """A score of the examples of a split taken together, such as BLEU."""

    value: float
    """1 at best."""
    told: str
    """A description of how it was computed."""


class NoSuchLength(ValueError):
    """A task has no example of a length."""


class Source(Protocol):
    """An endless, reproducible stream of batches, different for each key.

    A source is frozen, hashable data, so programs with equal sources are compiled once.
    """

    def batch(self, key: jax.Array, step: Any) -> Batch:
        """The batch of optimiser step `step`. A pure function, so a resumed run sees the same data."""
        ...


def evenly_spaced(values: Sequence[int] | np.ndarray, most: int = 32) -> list[int]:
    """Up to `most` of the sorted values, evenly spaced in their order, with the first and the last."""
    places = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))
    return [int(values[place]) for place in places]


@dataclasses.dataclass(frozen=True)
class Task:
    """Base class of tasks. Subclasses define `train_lengths`, `test_lengths`, `spec`, `shapes` and `sample`, and may
    override loss and metrics.

    Field values are checked against their types; a wrong value raises a ValueError (see `lenmem.fields`).

    `length` and `capacity` are in the task's own unit (copy: tokens; repeat_copy: repetitions; ...).
    """

    per_batch_length: ClassVar[bool] = True
    """All rows of a batch have the same length. False: the length is drawn for each row."""
    endless: ClassVar[bool] = True
    """Examples of any length can be drawn. False: only examples of the lengths in `curve_lengths`."""
    unit: ClassVar[str] = "tokens"
    """The unit of a length."""
    forced: ClassVar[bool] = False
    """Whether the perplexity under teacher forcing is measured too. For tokens."""
    scores_sets: ClassVar[bool] = False
    """The task defines `set_scores`, scores of a split as a whole."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def train_lengths(self) -> tuple[int, int]:
        """Smallest and largest training length, both included."""
        raise NotImplementedError

    @property
    def test_lengths(self) -> tuple[int, int]:
        """Smallest and largest length of the out-of-range test, both included."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """The description of the task for a model."""
        raise NotImplementedError

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input's token ids, for typing and printing. By default their numbers."""
        return tuple(map(str, range(self.spec.vocabulary)))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the answer's token ids. By default the input's names if ids are shared, else numbers, and `end` for
        an end symbol that the input does not have."""
        spec = self.spec
        shared = self.input_names[: spec.output_size] if spec.shared_ids else ()
        return (*shared, *("end" if n == spec.end_id else str(n) for n in range(len(shared), spec.output_size)))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the static numbers of input and answer slots for examples of length at most `capacity`."""
        raise NotImplementedError

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example of the given length (which may be traced), padded to `shapes(capacity)`.

        Works under `jit` and `vmap`. More capacity changes only the padding.
        """
        raise NotImplementedError

    def ceiling_at(self, length: int) -> float:
        """The best possible token accuracy at a length: 1 if inputs determine answers."""
        return 1.0

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Mean loss per scored slot: a scalar, in nats for tokens and bits, in squared units for values."""
        return masked_loss(self.spec.outputs, outputs, batch)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Named metrics, one value per example, 1 at best: float[B]."""
        return {
            "token_accuracy": token_accuracy(outputs, batch),
            "exact_match": exact_match(outputs, batch),
        }

    def set_answers(self, outputs: jax.Array, batch: Batch) -> PyTree:
        """The data that `set_scores` needs for each example, arrays [B, ...]. Traced. By default the most likely
        classes."""
        return jnp.argmax(outputs, axis=-1)

    def set_scores(self, answers: PyTree, split: Split) -> dict[str, SetScore]:
        """Named scores, computed from the `set_answers` (NumPy) of the first examples of a split, in their order.

        Raises ValueError if they cannot be computed.
        """
        return {}

    def examples_of(self, split: Split) -> int | None:
        """Number of examples of a split, after which the examples repeat; None: endless."""
        return None

    @property
    def data_hash(self) -> str | None:
        """The SHA-256 of the user's file that the task reads, if there is one."""
        return None

    def reply(self, text: str, ask: Callable[[Batch], Any]) -> list[str] | None:
        """The answer, as text, to an input that was typed as text. `ask` maps a batch to outputs.

        By default None: inputs are typed as names of tokens or as numbers. Raises ValueError for a text that is not an
        input of the task.
        """
        return None

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The range of lengths of each split. Subclasses may add splits."""
        return {"train": self.train_lengths, "validation": self.train_lengths, "test": self.test_lengths}

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Default lengths for a curve of accuracy by length: all lengths from training to test."""
        return tuple(range(self.train_lengths[0], self.test_lengths[1] + 1))

    def check_length(self, length: int) -> None:
        """Raises ValueError if no example has that length. In `endless` tasks there are examples of any length, unless
        the fields set a bound."""
        if not self.endless:
            self._check_bounds(length, self.curve_lengths)

    def _check_bounds(self, length: int, lengths: Sequence[int]) -> None:
        shortest, longest = min(lengths), max(lengths)
        if length > longest:
            raise NoSuchLength(f"the longest example of {type(self).__name__} has length {longest}, got {length}")
        if length < shortest:
            raise NoSuchLength(f"the shortest example of {type(self).__name__} has length {shortest}, got {length}")

    def lengths_of(self, split: Split) -> tuple[int, int]:
        """The range of lengths a split draws from. Raises ValueError for a name that is not in `splits`."""
        if split not in self.splits:
            raise ValueError(f"{split!r} is not a split of {type(self).__name__}. Allowed: {', '.join(self.splits)}.")
        return self.splits[split]

    def draw_lengths(self, key: jax.Array, split: Split, shape: tuple[int, ...]) -> jax.Array:
        """Draws the lengths of a split, int[*shape]: uniform over `lengths_of(split)`."""
        shortest, longest = self.lengths_of(split)
        return jax.random.randint(key, shape, shortest, longest + 1)

    def source(self, split: Split, batch_size: int) -> Source:
        """The stream of a split."""
        return FreshSource(self, split, batch_size)


@dataclasses.dataclass(frozen=True)
class FreshSource:
    """Batches that never repeat: each step draws new examples.

    Lengths are drawn by the task's `draw_lengths` (uniform by default) with a key that does *not* depend on the key of
    the batch. Seeds that are trained in one program therefore see the same lengths, and skip the same padding, with
    different contents.
    """

    task: Task
    split: Split
    batch_size: int

    def lengths(self, step: jax.Array | int) -> jax.Array:
        """int[batch_size]: the lengths of the examples of `step`."""
        shape = () if self.task.per_batch_length else (self.batch_size,)
        schedule = namespaced(jax.random.key(0), self.split, "length", step)
        return jnp.broadcast_to(self.task.draw_lengths(schedule, self.split, shape), (self.batch_size,))

    def batch(self, key: jax.Array, step: jax.Array | int) -> Batch:
        """Draws `batch_size` examples for `step`."""
        _, longest = self.task.lengths_of(self.split)
        key = namespaced(key, self.split, "content", step)
        return draw(self.task, key, self.lengths(step), longest)


@dataclasses.dataclass(frozen=True)
class GrowingSource(FreshSource):
    """Fresh examples whose longest length grows during the first `steps` steps, from the shortest to the longest
    length.

    Longer draws are folded into the current range, so that uniform lengths remain nearly uniform.
    """

    fresh: FreshSource
    """The source that draws the lengths."""
    steps: int

    def lengths(self, step: jax.Array | int) -> jax.Array:
        """int[batch_size]: l_min + (l - l_min) mod k for drawn lengths l, where k grows from 1 to all lengths."""
        shortest, longest = self.task.lengths_of(self.split)
        count = longest - shortest + 1
        growth = jnp.minimum(step, self.steps)  # later products would overflow
        allowed = jnp.minimum(1 + growth * count // self.steps, count)
        return shortest + (self.fresh.lengths(step) - shortest) % allowed


def growing_source(source: Source, steps: int) -> Source:
    """`source`, of fresh examples, as a `GrowingSource`, or unchanged for 0 steps. ValueError for other sources."""
    if not steps:
        return source
    if not isinstance(source, FreshSource) or type(source).batch is not FreshSource.batch:
        raise ValueError(f"growing lengths need fresh examples, from a FreshSource; got {type(source).__name__}")
    shortest, longest = source.task.lengths_of(source.split)
    most = (2**31 - 1) // (longest - shortest + 1)
    if steps > most:
        raise ValueError(f"growing takes at most {most} steps for these lengths, got {steps}")
    return GrowingSource(source.task, source.split, source.batch_size, source, steps)


@dataclasses.dataclass(frozen=True)
class RepeatedSource:
    """Passes over a fixed set of `size` examples, in full batches.

    The set is not stored: batch i of the set is drawn again from key i in each pass. With `shuffle`, each pass visits
    the batches in a new order; without it, in the same order.
    """

    source: FreshSource
    size: int
    shuffle: bool = True

    def batch(self, key: jax.Array, step: jax.Array | int) -> Batch:
        """The batch of `step`: number `step mod (size / batch_size)` in the order of the current pass."""
        batches = self.size // self.source.batch_size
        if batches < 1:
            raise ValueError(
                f"a fixed set of {self.size} examples is smaller than a batch of {self.source.batch_size}; "
                "use a smaller batch_size or a larger set"
            )
        step = jnp.asarray(step)
        index = step % batches
        if self.shuffle:
            order = namespaced(jax.random.key(0), self.source.split, "order", step // batches)
            index = jax.random.permutation(order, batches)[index]
        return self.source.batch(key, index)


def occurs(task: Task, length: int) -> bool:
    """Whether the task has examples of that length."""
    try:
        task.check_length(length)
        return True
    except NoSuchLength:
        return False


def occurring(task: Task, lengths: Iterable[int]) -> list[int]:
    """The lengths, each replaced by the one before it if the task has no example of it, such as an even one; ascending
    and without repetition. Those that have no example before them either are left out."""
    nearest = (next((m for m in (n, n - 1) if m > 0 and occurs(task, m)), None) for n in lengths)
    return sorted({n for n in nearest if n is not None})


def draw(task: Task, key: jax.Array, lengths: jax.Array, capacity: int) -> Batch:
    """One batch with the given lengths, int[B]; row i is drawn from key i of `jax.random.split(key, B)`."""
    keys = jax.random.split(key, lengths.shape[0])
    return jax.vmap(lambda k, n: task.sample(k, n, capacity))(keys, lengths.astype(jnp.int32))


def masked_mean(values: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Mean of `values` where `mask` is True; 0 if it is True nowhere. Masked values may be NaN."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(jnp.float32)
    count = jnp.maximum(jnp.sum(mask, axis=axis), 1)
    return jnp.sum(jnp.where(mask, values, 0), axis=axis) / count.astype(values.dtype)


def all_right(right: jax.Array, mask: jax.Array) -> jax.Array:
    """float[B]: 1 if `right` is True in all slots where `mask` is True (or 1), else 0."""
    return jnp.all(jnp.where(mask, right, True), axis=-1).astype(jnp.float32)


def fraction_right(right: jax.Array, mask: jax.Array) -> jax.Array:
    """float[B]: mean of `right`, of values from 0 to 1, over the slots where `mask` is True; 1 if there are none.

    It is computed from what is wrong, so that it is exactly 1 if all is right, and not negative if all is wrong. XLA
    may divide by multiplying with the reciprocal, so the mean of 41 ones can differ from 1.
    """
    return jnp.maximum(1 - masked_mean(1 - right.astype(jnp.float32), mask, axis=-1), 0)


def slot_losses(kind: str, outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Loss of each answer slot, float[B, M], computed in float32.

    tokens: cross-entropy; multi_hot: sigmoid cross-entropy, averaged over K; real: squared error, averaged over K.
    """
    outputs = outputs.astype(jnp.float32)
    if kind == "tokens":
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
    if kind == "multi_hot":
        return optax.sigmoid_binary_cross_entropy(outputs, targets).mean(-1)
    return jnp.square(outputs - targets).mean(-1)


def masked_loss(kind: str, outputs: jax.Array, batch: Batch) -> jax.Array:
    """Mean of `slot_losses` over all scored slots of a batch. Padded slots affect neither value nor gradient."""
    safe_outputs = jnp.where(batch.score_mask[..., None], outputs, 0)
    slots = batch.score_mask if kind == "tokens" else batch.score_mask[..., None]
    safe_targets = jnp.where(slots, batch.targets, 0)
    return masked_mean(slot_losses(kind, safe_outputs, safe_targets), batch.score_mask)


def slot_hits(outputs: jax.Array, batch: Batch) -> jax.Array:
    """bool[B, M]: whether the greedy answer of a slot equals its target (tokens)."""
    return jnp.argmax(outputs, axis=-1) == batch.targets


def token_accuracy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """float[B]: fraction of the scored slots that are correct (LANTM's *fine* score)."""
    return fraction_right(slot_hits(outputs, batch), batch.score_mask)


def exact_match(outputs: jax.Array, batch: Batch) -> jax.Array:
    """float[B]: 1 if all scored slots are correct, else 0 (LANTM's *coarse* score)."""
    return all_right(slot_hits(outputs, batch), batch.score_mask)


def bit_metrics(outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """For bits: `token_accuracy`, the fraction of slots with all bits right, and `exact_match`, 1 if all slots are."""
    right = jnp.all((outputs >= 0) == (batch.targets > 0.5), axis=-1)
    return {
        "token_accuracy": fraction_right(right, batch.score_mask),
        "exact_match": all_right(right, batch.score_mask),
    }


def scaled_accuracy(accuracy: jax.Array, chance: float) -> jax.Array:
    """(a - c) / (1 - c) with the token accuracy a and its chance level c: 0 at chance, 1 if all slots are right, and
    negative below chance. 0 if c is 1.

    The score of the work on state tracking (Beck et al. 2024, arXiv 2405.04517; Grazzi et al. 2025, arXiv 2411.12537).
    """
    return 1 - (1 - accuracy) / (1 - chance) if chance < 1 else jnp.zeros_like(accuracy)
