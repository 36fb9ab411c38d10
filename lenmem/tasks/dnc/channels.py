"""Tasks whose inputs and answers are numbers on channels: all except logic."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import between
from lenmem.tasks.base import all_right, fraction_right, masked_mean
from lenmem.tasks.dnc.base import DncTask
from lenmem.types import Batch, Example, Spec

BASE = 5
"""Numerals are 0 .. 4."""


class Problem(NamedTuple):
    """A problem and its answer. Entries beyond their sizes are arbitrary."""

    read: jax.Array
    """float[N, width]: the values of the inputs, without the control channel."""
    results: jax.Array
    """float[capacity, width]: the values of the answer, without the signal channel."""
    count: Any
    """Number of results."""


@dataclasses.dataclass(frozen=True)
class ChannelTask(DncTask):
    """Tasks with numbers as inputs and answers. Subclasses define `problem` and `chance`."""

    unit: ClassVar[str] = "numerals"
    width: ClassVar[int] = 1
    """Number of channels of a number."""
    flags: ClassVar[int] = 1
    """Number of inputs after the sequence, at which the control channel is 1."""

    interval: tuple[float, float] = (-1.0, 1.0)
    """Values of the smallest and the largest number. Bits are -1 and 1 in the paper; for numerals it is our choice."""
    clip: bool = False
    """Clip answers to the interval before rounding, so that 4.7 counts as 4. The paper only rounds."""
    score_last_result: bool = False
    """Also train the result channel, to 0, at the step that ends the answer. Our choice is not to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval[0] == self.interval[1]:
            raise ValueError(f"interval is {self.interval}; its ends must differ")

    def problem(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Problem:
        """A problem of length `length`, in arrays of size `capacity`."""
        raise NotImplementedError

    def largest(self, batch: Batch) -> Any:
        """The largest possible number in a row's answer, mapped to the upper end of `interval`: int or int[B, 1, 1]."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """Token accuracy of the best constant answer, over the training lengths."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """Real channels. The number of results is known, but the model must also signal the end."""
        return Spec(
            vocabulary=0,
            channels=self.width + 1,
            output_size=self.width + 1,
            outputs="real",
            delimited=True,
            chance=self.chance,
            shapes=self.shapes,
        )

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the sequence with its flags; the results and the end."""
        return capacity + self.flags, capacity + 1

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        size, slots = self.shapes(capacity)
        step, slot = jnp.arange(size)[:, None], jnp.arange(slots)[:, None]
        problem = self.problem(key, length, capacity)
        reading = step < length + self.flags
        flag = (reading & (step >= length)).astype(problem.read.dtype)
        inputs = jnp.concatenate([jnp.where(reading, problem.read, 0), flag], axis=-1)
        results = jnp.pad(problem.results, ((0, 1), (0, 0)))
        signal = (slot == problem.count).astype(results.dtype)
        targets = jnp.concatenate([jnp.where(slot < problem.count, results, 0), signal], axis=-1)
        score_mask = slot[:, 0] <= problem.count
        return Example(inputs, reading[:, 0], targets, slot[:, 0] <= length, score_mask)

    def normalised(self, numbers: jax.Array, largest: Any) -> jax.Array:
        """Maps 0 .. largest to `interval`."""
        low, high = self.interval
        scale = (high - low) / jnp.maximum(jnp.asarray(largest, jnp.float32), 1)
        return low + scale * numbers.astype(jnp.float32)

    def numbers(self, values: jax.Array, batch: Batch) -> jax.Array:
        """Maps result channels [B, M, width] to numbers, rounded: the inverse of `normalised`."""
        low, high = self.interval
        largest = jnp.maximum(jnp.asarray(self.largest(batch), jnp.float32), 1)
        values = (values.astype(jnp.float32) - low) / (high - low)
        return jnp.round((jnp.clip(values, 0, 1) if self.clip else values) * largest)

    def right(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """bool[B, M, width]: whether the number equals the target's."""
        wanted = self.numbers(batch.targets[..., :-1], batch)
        return self.numbers(outputs[..., :-1], batch) == wanted

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Squared error, averaged over the channels and steps of a row's answer, then over rows.

        At the step that ends an answer only the signal counts, unless `score_last_result`.
        """
        counted = jnp.broadcast_to(batch.score_mask[..., None], outputs.shape)
        if not self.score_last_result:
            counted = counted.at[..., :-1].set(result_slots(batch)[..., None])
        # Both are masked before the subtraction, since padding may be NaN.
        errors = jnp.where(counted, outputs.astype(jnp.float32), 0) - jnp.where(counted, batch.targets, 0)
        return jnp.mean(masked_mean(errors**2, counted, axis=(1, 2)))

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The fraction of correct results, per channel. Their number is known, so the signal is ignored."""
        right, scored = self.right(outputs, batch), result_slots(batch)
        return {
            "token_accuracy": fraction_right(right.mean(axis=-1), scored),
            "exact_match": jnp.all(right.all(axis=-1) | ~scored, axis=-1).astype(jnp.float32),
        }


def result_slots(batch: Batch) -> jax.Array:
    """bool[B, M]: the slots with a result: all scored slots except the one that ends the answer."""
    return batch.score_mask & (batch.targets[..., -1] < 0.5)


@dataclasses.dataclass(frozen=True)
class SequenceTask(ChannelTask):
    """A sequence of numbers with an answer of the same length. Subclasses define `draw` and `answer`."""

    def problem(self, key, length, capacity):
        """The drawn sequence, the flag, and its answer."""
        sequence = self.draw(key, capacity)
        read = self.normalised(jnp.pad(sequence, ((0, 1), (0, 0))), self.top)
        read = jnp.where(jnp.arange(capacity + 1)[:, None] < length, read, 0)
        return Problem(read, self.normalised(self.answer(sequence, length), self.top), length)

    @property
    def top(self) -> int:
        """The largest number of a channel."""
        return BASE - 1

    def largest(self, batch):
        """As `top`."""
        return self.top

    def draw(self, key: jax.Array, capacity: int) -> jax.Array:
        """int[capacity, width]: uniform numbers. The first draws do not depend on the capacity."""
        return jax.random.randint(key, (capacity, self.width), 0, self.top + 1, jnp.int32)

    def answer(self, sequence: jax.Array, length: jax.Array | int) -> jax.Array:
        """int[capacity, width]: the answer to the first `length` numbers."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """The chance for uniform numbers."""
        return 1 / BASE


@dataclasses.dataclass(frozen=True)
class QuinarySort(SequenceTask):
    """Numerals in ascending order. Length: numerals."""

    def answer(self, sequence, length):
        """The numerals in ascending order, then padding."""
        place = jnp.arange(len(sequence))[:, None]
        return jnp.sort(jnp.where(place < length, sequence, BASE), axis=0)


@dataclasses.dataclass(frozen=True)
class QuinaryCopy(SequenceTask):
    """Numerals unchanged. Length: numerals."""

    def answer(self, sequence, length):
        """The same."""
        return sequence


@dataclasses.dataclass(frozen=True)
class Differentiation(SequenceTask):
    """Absolute differences of neighbouring numerals, then a constant. Length: numerals."""

    constant: Annotated[int, between(0, BASE - 1)] = 0
    """The last numeral of the answer, since n numerals have n - 1 differences. Our choice."""

    def answer(self, sequence, length):
        """|x_{i + 1} - x_i|, followed by the constant."""
        following = jnp.append(sequence[1:], sequence[:1], axis=0)
        last = jnp.arange(len(sequence))[:, None] == length - 1
        return jnp.where(last, self.constant, jnp.abs(following - sequence))

    @property
    def chance(self) -> float:
        """Of 25 pairs of numerals, 5, 8, 6, 4 and 2 have the differences 0 .. 4."""
        last = float(np.mean([1 / length for length in self.trained]))
        shares = np.array([5, 8, 6, 4, 2]) / BASE**2 * (1 - last)
        shares[self.constant] += last
        return float(shares.max())


@dataclasses.dataclass(frozen=True)
class QuinaryShift(SequenceTask):
    """Numerals rotated by half their number, rounded down. Length: numerals."""

    direction: Literal["left", "right"] = "left"
    """Direction of the rotation. Our choice; it matters only for odd lengths."""

    def answer(self, sequence, length):
        """Left: x_{h + 1} .. x_L x_1 .. x_h with h = L // 2."""
        half = length // 2
        return sequence[(jnp.arange(len(sequence)) + (half if self.direction == "left" else -half)) % length]


@dataclasses.dataclass(frozen=True)
class BinaryAdd(SequenceTask):
    """Two bits at each step, answered by their sum 00, 01 or 10, without carry. Length: pairs of bits."""

    unit: ClassVar[str] = "pairs of bits"
    width: ClassVar[int] = 2

    bit_order: Literal["high_low", "low_high"] = "high_low"
    """Which bit of the sum comes first. Our choice."""

    @property
    def top(self) -> int:
        """Bits."""
        return 1

    def answer(self, sequence, length):
        """The two bits of a + b: a and b, a xor b."""
        bits = [sequence.min(axis=1), sequence.sum(axis=1) % 2]
        return jnp.stack(bits if self.bit_order == "high_low" else bits[::-1], axis=1)

    @property
    def chance(self) -> float:
        """0 is correct for 3 of 4 high bits and 2 of 4 low bits."""
        return (3 / 4 + 1 / 2) / 2


@dataclasses.dataclass(frozen=True)
class Search(ChannelTask):
    """A sequence of numerals and a query numeral -> its positions in ascending order, then the end. Length: numerals.

    Positions are scaled so that the first and the last position are the ends of `interval`. Sequence and query are
    uniform among those with at least one hit. The number of slots is an upper bound, that for hits at all positions, so
    the model must signal the end of its answer.
    """

    flags: ClassVar[int] = 2

    threshold: float = 0.5
    """A signal above this threshold ends the answer. Our choice."""

    @property
    def spec(self) -> Spec:
        """The answer ends with the signal, in an upper bound of slots."""
        return dataclasses.replace(super().spec, length_rule="end")

    def problem(self, key, length, capacity):
        """Draws the query, then its first position, then the numerals before and after.

        The first position is geometric, truncated at the length: 1 - (4/5)^(f + 1) = u (1 - (4/5)^L) with u uniform.
        """
        query_key, first_key, before_key, after_key = jax.random.split(key, 4)
        query = jax.random.randint(query_key, (), 0, BASE, jnp.int32)
        miss = jnp.log(1 - 1 / BASE)
        all_miss = jnp.expm1(jnp.asarray(length, miss.dtype) * miss)
        first = jnp.floor(jnp.log1p(jax.random.uniform(first_key) * all_miss) / miss)
        first = jnp.minimum(first.astype(jnp.int32), length - 1)
        place = jnp.arange(capacity)
        before = (query + jax.random.randint(before_key, (capacity,), 1, BASE, jnp.int32)) % BASE
        after = jax.random.randint(after_key, (capacity,), 0, BASE, jnp.int32)
        sequence = jnp.where(place < first, before, jnp.where(place == first, query, after))
        hits = (sequence == query) & (place < length)
        step = jnp.arange(capacity + 2)
        read = jnp.where(step < length, jnp.pad(sequence, (0, 2)), query)
        read = jnp.where(step == length, 0, self.normalised(read, BASE - 1))  # a blank before the query
        (positions,) = jnp.nonzero(hits, size=capacity, fill_value=0)
        return Problem(read[:, None], self.normalised(positions, length - 1)[:, None], jnp.sum(hits, dtype=jnp.int32))

    def largest(self, batch):
        """The last position of a row."""
        return (jnp.sum(batch.input_mask, axis=-1) - self.flags - 1)[:, None, None]

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """`hit_rate`, the paper's metric: the fraction of hits whose position is correct and comes before any signal.

        For `token_accuracy` each scored slot counts separately: a hit needs its position and no signal, the end a
        signal. `exact_match` is 1 if all slots are correct.
        """
        hits = result_slots(batch)
        signalled = outputs[..., -1] > self.threshold
        running = jnp.cumsum(signalled, axis=-1) == 0
        found = self.right(outputs, batch)[..., 0]
        right = jnp.where(hits, found & ~signalled, signalled)
        return {
            "token_accuracy": fraction_right(right, batch.score_mask),
            "exact_match": all_right(right, batch.score_mask),
            "hit_rate": masked_mean(found & running, hits, axis=-1),
        }

    @property
    def chance(self) -> float:
        """A signal in every slot is correct for one of n + 1 slots, with n ~ Binomial(L, 1/5) conditioned on n >= 1."""
        p = 1 / BASE
        none = np.array([(1 - p) ** length for length in self.trained])
        ends = (1 - (1 - p) * none) / (np.array(self.trained) + 1) / p
        return float(np.mean((ends - none) / (1 - none)))
