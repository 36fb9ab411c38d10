"""The seven tasks of the state-space-constrained DNC (Ofner & Kern, arXiv 2110.09138v2, supplement A).

A network reads L steps, is told by a control channel that the input is over, and answers; a signal channel marks the
end of its answer. Trained at lengths 5 to 15 (one per batch), tested at 2 to 100 and, with more memory, up to 1000.

Layout, with steps counted from 1 and a sequence of length L:

    sort, copy, differentiation, shift, add
        inputs   1 .. L the sequence; L + 1 the flag: control 1, data 0
        answer   L + 2 .. 2L + 1 the result, signal 0; 2L + 2 signal 1
    search
        inputs   1 .. L the sequence; L + 1 a blank and L + 2 the query, both with control 1
        answer   from L + 3 on one matching position per step, signal 0; then signal 1
    logic
        inputs   1 .. L the formula; L + 1 the flag
        answer   L + 2 the truth value

All tasks have separate answer slots and `delimited=True`: the flag (in search the query) is the last input. Recurrent
interfaces therefore add no delimiter, and all other models can take the tasks too. The step at which the answer begins
depends on the model: an interface with `delay=1` has the layout above, with `delay=0` it is one step earlier.

Numbers are values on channels, [sequence.. | control] in and [result.. | signal] out, with the mean squared error over
channels and answer steps. A formula is tokens, one of which is the flag; as one-hot vectors this is the paper's
[tokens | control]. Its answer is the class `F` or `T`, with cross-entropy.

Details that the paper's text does not give are fields; their defaults are marked as our choice.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths, PositiveInt, between
from lenmem.tasks.base import Task, masked_mean
from lenmem.types import Batch, Example, Spec

BASE = 5
"""Numerals are 0 .. 4."""


@dataclasses.dataclass(frozen=True)
class DncTask(Task):
    """Base class of the seven tasks: their lengths."""

    train_lengths: Lengths = (5, 15)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = (2, 100)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest test length, both included. As in the paper, they enclose the training lengths."""
    selection_length: PositiveInt = 30
    """Length of the split `selection`, on which the paper selects the iteration to keep. It is beyond training. Our
    choice: the length at which the paper analyses states."""

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """The usual splits and `selection`, which has one length."""
        return super().splits | {"selection": (self.selection_length, self.selection_length)}

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """From the shortest to the longest length, with growing intervals."""
        ranges = (self.train_lengths, self.test_lengths)
        return growing_lengths(min(low for low, _ in ranges), max(high for _, high in ranges))

    @property
    def trained(self) -> range:
        """The training lengths."""
        return range(self.train_lengths[0], self.train_lengths[1] + 1)


def growing_lengths(shortest: int, longest: int) -> tuple[int, ...]:
    """Both ends, and between them every length up to 20, every 5th up to 50, every 10th up to 100, every 50th up to
    500, and so on. This includes all entries of the paper's Table V."""

    def kept(n: int) -> bool:
        unit = 10 ** (len(str(n - 1)) - 1)
        return n <= 20 or n % (unit // 2 if n <= 5 * unit else unit) == 0 or n in (shortest, longest)

    return tuple(filter(kept, range(shortest, longest + 1)))


# Numbers on channels --------------------------------------------------------------------------------------------------


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
    """Channels of a number."""
    flags: ClassVar[int] = 1
    """Inputs after the sequence, at which the control channel is 1."""

    interval: tuple[float, float] = (-1.0, 1.0)
    """Values of the smallest and the largest number. Our choice, except for bits, which are -1 and 1 in the paper."""
    clip: bool = False
    """Clip answers to the interval before rounding, so that 4.7 counts as 4. The paper only rounds."""
    score_last_result: bool = False
    """The loss also expects a result of 0 at the step that ends the answer. Our choice: the paper does not say."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval[0] == self.interval[1]:
            raise ValueError(f"interval is {self.interval}; its ends must differ")

    def problem(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Problem:
        """A problem of length `length`, in arrays of size `capacity`."""
        raise NotImplementedError

    def largest(self, batch: Batch) -> Any:
        """The largest number in a row's answer, mapped to the end of `interval`: a number or int[B, 1, 1]."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """Token accuracy of the best constant answer, over the training lengths."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """Real channels. The number of results is known, but the end must be signalled anyway."""
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
        """(N, M): the sequence with its flags, and the results with the end."""
        return capacity + self.flags, capacity + 1

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        size, slots = self.shapes(capacity)
        step, slot = jnp.arange(size)[:, None], jnp.arange(slots)[:, None]
        problem = self.problem(key, length, capacity)
        reading = step < length + self.flags
        inputs = jnp.concatenate([jnp.where(reading, problem.read, 0), reading & (step >= length)], axis=-1)
        results = jnp.pad(problem.results, ((0, 1), (0, 0)))
        targets = jnp.concatenate([jnp.where(slot < problem.count, results, 0), slot == problem.count], axis=-1)
        score_mask = slot[:, 0] <= problem.count
        return Example(inputs, reading[:, 0], targets, slot[:, 0] <= length, score_mask)

    def normalised(self, numbers: jax.Array, largest: Any) -> jax.Array:
        """Maps 0 .. largest to `interval`."""
        low, high = self.interval
        return low + (high - low) / jnp.maximum(largest, 1) * numbers

    def numbers(self, values: jax.Array, batch: Batch) -> jax.Array:
        """Maps result channels [B, M, width] to the numbers they stand for, rounded."""
        low, high = self.interval
        largest = jnp.maximum(self.largest(batch), 1)
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
        # Both are replaced before the subtraction, since padding may be NaN.
        errors = jnp.where(counted, outputs.astype(jnp.float32), 0) - jnp.where(counted, batch.targets, 0)
        return jnp.mean(jnp.sum(errors**2, axis=(1, 2)) / jnp.maximum(jnp.sum(counted, axis=(1, 2)), 1))

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The fraction of results that are right, per channel. Their number is known, so the signal is ignored."""
        right, scored = self.right(outputs, batch), result_slots(batch)
        return {
            "token_accuracy": masked_mean(right.mean(axis=-1), scored, axis=-1),
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
        """int[capacity, width]: uniform numbers. A larger capacity keeps the first draws."""
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
        """Sorts the numerals; padding goes after the largest."""
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
    """The last numeral of the answer, since there is one difference fewer than numerals. Our choice."""

    def answer(self, sequence, length):
        """|x_{i + 1} - x_i|, followed by the constant."""
        following = jnp.append(sequence[1:], sequence[:1], axis=0)
        last = jnp.arange(len(sequence))[:, None] == length - 1
        return jnp.where(last, self.constant, jnp.abs(following - sequence))

    @property
    def chance(self) -> float:
        """The differences 0 .. 4 occur 5, 8, 6, 4 and 2 times in 25."""
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
        """0 is right for 3 of 4 high bits and 2 of 4 low bits."""
        return (3 / 4 + 1 / 2) / 2


@dataclasses.dataclass(frozen=True)
class Search(ChannelTask):
    """A sequence of numerals and a query numeral: its positions in ascending order, then the end. Length: numerals.

    Positions are scaled so that the first and the last of the sequence are the ends of `interval`. Sequence and query
    are uniform among those with at least one hit. The number of slots is an upper bound, the number of numerals; the
    model must signal the end of its answer.
    """

    flags: ClassVar[int] = 2

    threshold: float = 0.5
    """A signal above this threshold ends the answer. Our choice."""

    @property
    def spec(self) -> Spec:
        """The answer ends with the signal, within an upper bound of slots."""
        return dataclasses.replace(super().spec, length_rule="end")

    def problem(self, key, length, capacity):
        """Draws the query, then its first position, then the numerals before and after.

        The first position is geometric, truncated at the length: 1 - (4/5)^(f + 1) = u (1 - (4/5)^L) with u uniform.
        """
        query_key, first_key, before_key, after_key = jax.random.split(key, 4)
        query = jax.random.randint(query_key, (), 0, BASE, jnp.int32)
        miss = jnp.log(1 - 1 / BASE)
        first = jnp.floor(jnp.log1p(jax.random.uniform(first_key) * jnp.expm1(length * miss)) / miss)
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
        """`hit_rate`, the paper's metric: the fraction of hits whose position is given right before the first signal.

        For `token_accuracy` each scored slot counts by itself: a hit needs its position and no signal, the end a
        signal. `exact_match` is 1 if all slots are right.
        """
        hits = result_slots(batch)
        signalled = outputs[..., -1] > self.threshold
        running = jnp.cumsum(signalled, axis=-1) == 0
        found = self.right(outputs, batch)[..., 0]
        right = jnp.where(hits, found & ~signalled, signalled)
        return {
            "token_accuracy": masked_mean(right, batch.score_mask, axis=-1),
            "exact_match": jnp.all(right | ~batch.score_mask, axis=-1).astype(jnp.float32),
            "hit_rate": masked_mean(found & running, hits, axis=-1),
        }

    @property
    def chance(self) -> float:
        """Signalling at every slot is right for one of n + 1 slots, n ~ Binomial(L, 1/5) given n >= 1."""
        p = 1 / BASE
        none = np.array([(1 - p) ** length for length in self.trained])
        ends = (1 - (1 - p) * none) / (np.array(self.trained) + 1) / p
        return float(np.mean((ends - none) / (1 - none)))


# Formulas -------------------------------------------------------------------------------------------------------------

TRUTH = {"and": "&", "or": "|", "implies": ">", "equals": "="}
"""Binary operators, and how they are written."""
_TABLES = {"and": (0, 0, 0, 1), "or": (0, 1, 1, 1), "implies": (1, 1, 0, 1), "equals": (1, 0, 0, 1)}
"""Value for the operands FF, FT, TF, TT."""
FALSE, TRUE, NOT, OPEN, CLOSE, FLAG = range(6)
"""Token ids; the binary operators follow."""


@dataclasses.dataclass(frozen=True)
class Logic(DncTask):
    """A boolean formula -> its value. Length: tokens of the formula.

    A formula is `F`, `T`, `!` and a formula, or `(` formula operator formula `)`. Negation has no parentheses: with
    them there would be no formula of 2, 3 or 6 tokens, but the paper uses all lengths. Without them, every length has
    formulas of both values. The two values are equally likely; given value and length, the formula is uniform.
    """

    operators: tuple[Literal["and", "or", "implies", "equals"], ...] = ("and", "or")
    """The binary operators, besides negation. The paper's list is lost, so this is our choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.operators or len(set(self.operators)) < len(self.operators):
            raise ValueError(f"operators are {self.operators}; they must be one or more, each once")

    @property
    def spec(self) -> Spec:
        """Tokens, including the flag; the answer is `F` or `T`."""
        return Spec(
            vocabulary=len(self.input_names),
            output_size=2,
            shared_ids=True,
            delimited=True,
            chance=0.5,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """`?` is the flag."""
        return ("F", "T", "!", "(", ")", "?", *(TRUTH[name] for name in self.operators))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the formula with the flag, and its value."""
        return capacity + 1, 1

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        value_key, formula_key = jax.random.split(key)
        value = jax.random.bernoulli(value_key).astype(jnp.int32)
        formula = self.formula(formula_key, value, length, capacity)
        step = jnp.arange(capacity + 1)
        inputs = jnp.where(step < length, jnp.pad(formula, (0, 1)), jnp.where(step == length, FLAG, 0))
        one = jnp.ones(1, bool)
        return Example(inputs, step <= length, value[None], one, one)

    def formula(self, key: jax.Array, value: jax.Array, length: jax.Array | int, capacity: int) -> jax.Array:
        """int[capacity]: a uniform formula with exactly `length` tokens and the given value.

        Tokens at which a subformula begins are expanded from left to right. Each has a known length and value, and each
        way to build it is chosen in proportion to the number of formulas built that way. O(capacity) per token.
        """
        counts, ways = (jnp.asarray(table, jnp.float32) for table in formula_counts(self.operators, capacity))
        place = jnp.arange(capacity)

        def expand(at, state):
            tokens, sizes, values = state
            size, value = sizes[at], values[at]
            way_key, split_key = jax.random.split(jax.random.fold_in(key, at))
            way = jax.random.categorical(way_key, ways[size, value])
            operator, left, right = (way - 1) // 4, (way - 1) % 4 // 2, (way - 1) % 2
            rest = size - 3 - place
            split = jnp.where(rest > 0, counts[place, left] + counts[jnp.maximum(rest, 0), right], -jnp.inf)
            split = jax.random.categorical(split_key, split)

            negated, paired = (size > 1) & (way == 0), (size > 1) & (way > 0)
            first, second = at + 1, jnp.where(paired, at + 2 + split, capacity)
            starts = jnp.where(size == 1, value, jnp.where(negated, NOT, OPEN))
            tokens = tokens.at[jnp.where(size > 0, at, capacity)].set(starts, mode="drop")
            tokens = tokens.at[jnp.where(paired, second - 1, capacity)].set(FLAG + 1 + operator, mode="drop")
            tokens = tokens.at[jnp.where(paired, at + size - 1, capacity)].set(CLOSE, mode="drop")
            at_first = jnp.where(size > 1, first, capacity)
            sizes = sizes.at[at_first].set(jnp.where(negated, size - 1, split), mode="drop")
            sizes = sizes.at[second].set(size - 3 - split, mode="drop")
            values = values.at[at_first].set(jnp.where(negated, 1 - value, left), mode="drop")
            return tokens, sizes, values.at[second].set(right, mode="drop")

        nothing = jnp.zeros(capacity, jnp.int32)
        start = (nothing, nothing.at[0].set(length), nothing.at[0].set(value))
        return jax.lax.fori_loop(0, capacity, expand, start)[0]


@functools.cache
def formula_counts(operators: tuple[str, ...], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the number of formulas by tokens n and value v, and of these numbers by construction.

    Returns float64[longest + 1, 2] and float64[longest + 1, 2, 1 + 4 * operators]. The first construction is negation;
    then for each operator its operands' values FF, FT, TF, TT. -inf if there is no formula. O(longest^2).
    """
    counts = np.full((longest + 1, 2), -np.inf)
    ways = np.full((longest + 1, 2, 1 + 4 * len(operators)), -np.inf)
    truth = np.ravel([_TABLES[name] for name in operators])
    for n in range(1, longest + 1):
        if n == 1:
            counts[1] = 0
            continue
        ways[n, :, 0] = counts[n - 1, ::-1]
        if n >= 5:
            # [splits, 4]: operands of 1 .. n - 4 and n - 4 .. 1 tokens, by their values.
            pairs = (counts[1 : n - 3, :, None] + counts[n - 4 : 0 : -1, None, :]).reshape(-1, 4)
            together = np.tile(np.logaddexp.reduce(pairs, axis=0), len(operators))
            for value in (0, 1):
                ways[n, value, 1:] = np.where(truth == value, together, -np.inf)
        counts[n] = np.logaddexp.reduce(ways[n], axis=-1)
    return counts, ways
