"""The eight algorithmic tasks of Lie-Access Neural Turing Machines (Yang & Rush, ICLR 2017, section 5, Table 1a).

Input ids 0 .. V - 1 are tokens (digits in the arithmetic tasks); the answer uses the same ids and ends with the end
symbol, which is scored. Begin and delimiter tokens belong to the model's interface, not to the data. Where the
published data differ from the paper, the default follows the paper, and a field selects the published variant.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from lenmem.fields import Lengths, NonNegativeInt, PositiveInt, at_least, check_fields
from lenmem.tasks.base import FreshSource, RepeatedSource, Source, Split, Task, evenly_spaced
from lenmem.types import Example, Spec


class Doubled(tuple[int, int]):
    """A test range that was derived from the training range.

    It compares and prints like a plain tuple. Because of its type, `dataclasses.replace(task, train_lengths=...)`
    derives the range again.
    """


@dataclasses.dataclass(frozen=True)
class LantmTask(Task):
    """Base class of the eight tasks. Subclasses define `pair`, and `sizes` if input and answer are not k tokens
    each."""

    vocabulary: Annotated[int, at_least(2)] = 128
    """V: number of tokens, 0 .. V - 1 (the base of the digits in the arithmetic tasks)."""
    train_lengths: Lengths = (2, 64)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = Doubled((0, 0))  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest test length, both included. Default: (u + 1, 2 u) for the longest training length u."""
    regime: Literal["L", "S"] = "L"
    """`L`: every training batch is new. `S`: passes over a fixed training set of `small_set` examples."""
    small_set: PositiveInt = 16_000
    """Number of examples in the fixed training set (regime S): 500 batches of 32, so 10,000 updates are 20 passes."""
    shuffle_passes: bool = False
    """Regime S: visit the batches in a new order in each pass. In the published code the order is always the same."""

    def __post_init__(self) -> None:
        if isinstance(self.test_lengths, Doubled):
            check_fields(self, "train_lengths")
            object.__setattr__(self, "test_lengths", self.doubled())
        super().__post_init__()

    def doubled(self) -> Doubled:
        """The paper's test range, (u + 1, 2 u)."""
        longest = self.train_lengths[1]
        return Doubled((longest + 1, 2 * longest))

    @property
    def symbols(self) -> int:
        """Number of input ids above the tokens: for the '@' of unary numbers, or for priorities."""
        return 0

    @property
    def spec(self) -> Spec:
        """Answers have the ids of inputs, and the end symbol as the last id.

        If the input has extra symbols, the answer classes with their ids are unused, so that ids are shared.
        """
        inputs = self.vocabulary + self.symbols
        return Spec(
            vocabulary=inputs,
            output_size=inputs + 1,
            shared_ids=True,
            length_rule="given",
            end_id=inputs,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def chance(self) -> float:
        """Token accuracy of the better of two constant answers, 0 and the end symbol, over the training lengths."""
        lengths = evenly_spaced(range(self.train_lengths[0], self.train_lengths[1] + 1), 10_000)
        slots = [self.sizes(length)[1] + 1 for length in lengths]
        end = sum(1 / n for n in slots) / len(slots)
        zero = sum(self.zeros(length) / n for length, n in zip(lengths, slots, strict=True)) / len(slots)
        return max(end, zero)

    def zeros(self, length: int) -> float:
        """Expected number of zeros in an answer of that length."""
        return self.sizes(length)[1] / self.vocabulary

    def sizes(self, length: Any) -> tuple[Any, Any]:
        """(input tokens, answer tokens without the end symbol); (k, k) by default. `length` may be traced."""
        return length, length

    def pair(self, key: jax.Array, length: jax.Array | int, capacity: int) -> tuple[jax.Array, jax.Array]:
        """Input and answer, of the static `sizes(capacity)`. Entries beyond `sizes(length)` are arbitrary."""
        raise NotImplementedError

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): input tokens, and answer tokens with the end symbol."""
        inputs, answer = self.sizes(capacity)
        return inputs, answer + 1

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        inputs, answer = self.pair(key, length, capacity)
        input_size, answer_size = self.sizes(length)
        input_mask = jnp.arange(inputs.shape[0]) < input_size
        slots = jnp.arange(answer.shape[0] + 1)
        targets = jnp.where(slots < answer_size, jnp.append(answer, 0), 0)
        targets = jnp.where(slots == answer_size, self.vocabulary + self.symbols, targets)
        target_mask = slots <= answer_size
        return Example(jnp.where(input_mask, inputs, 0), input_mask, targets, target_mask, target_mask)

    def source(self, split: Split, batch_size: int) -> Source:
        """Fresh batches; in regime S the training split repeats a fixed set. Tests are always fresh."""
        fresh = FreshSource(self, split, batch_size)
        if self.regime == "S" and split == "train":
            return RepeatedSource(fresh, self.small_set, self.shuffle_passes)
        return fresh

    def tokens(self, key: jax.Array, *shape: int) -> jax.Array:
        """Uniform token ids. The first draws do not depend on the size of the leading axis."""
        return jax.random.randint(key, shape, 0, self.vocabulary, jnp.int32)


def reversed_prefix(values: jax.Array, length: jax.Array | int) -> jax.Array:
    """The first `length` values in reverse; arbitrary values after them."""
    return values[jnp.maximum(length - 1 - jnp.arange(values.shape[0]), 0)]


def add_digits(x: jax.Array, y: jax.Array, base: int) -> jax.Array:
    """Sum of two numbers of n digits, least significant first: n + 1 digits.

    A place with x + y = base - 1 propagates the carry from the place before it; at any other place the carry depends on
    this place alone. The carry into a place is therefore that of the last such place before it, which a running maximum
    over (place, carry) pairs finds.
    """
    total = x + y
    place = jnp.arange(1, total.shape[0] + 1)
    decided = jnp.where(total == base - 1, 0, 2 * place + (total >= base).astype(place.dtype))
    carry = jax.lax.cummax(decided) % 2
    return (jnp.append(total, 0) + jnp.pad(carry, (1, 0))) % base


@dataclasses.dataclass(frozen=True)
class Copy(LantmTask):
    """a1 a2 .. ak -> a1 a2 .. ak. Length: k tokens."""

    def pair(self, key, length, capacity):
        values = self.tokens(key, capacity)
        return values, values


@dataclasses.dataclass(frozen=True)
class Reverse(LantmTask):
    """a1 a2 .. ak -> ak .. a2 a1. Length: k tokens."""

    def pair(self, key, length, capacity):
        values = self.tokens(key, capacity)
        return values, reversed_prefix(values, length)


@dataclasses.dataclass(frozen=True)
class _BigramTask(LantmTask):
    """Inputs a1 a2 .. a2k. Length: k bigrams."""

    unit: ClassVar[str] = "pairs of tokens"
    train_lengths: Lengths = (1, 16)
    published_lengths: bool = False
    """Draw lengths as in the published data: a number of *tokens* from [2, 32] (test: [33, 64]), minus one if odd.

    In general: [2 l, 2 u] tokens in training and [2 l + 1, 2 u] in the test. Numbers of bigrams are then not uniform
    (16 has half the weight of 1 .. 15), and the test contains some examples with 16 bigrams, a training length.
    """

    def doubled(self) -> Doubled:
        """The paper's test range, (u + 1, 2 u); (u, 2 u) for the published lengths."""
        first, last = super().doubled()
        return Doubled((first - 1, last)) if self.published_lengths else Doubled((first, last))

    def sizes(self, length):
        return 2 * length, 2 * length

    def draw_lengths(self, key: jax.Array, split: Split, shape: tuple[int, ...]) -> jax.Array:
        """A uniform number of bigrams, or a uniform number of tokens, halved and rounded down."""
        if not self.published_lengths:
            return super().draw_lengths(key, split, shape)
        shortest, longest = self.lengths_of(split)
        odd = 1 if split == "test" else 0
        return jax.random.randint(key, shape, 2 * shortest + odd, 2 * longest + 1) // 2


@dataclasses.dataclass(frozen=True)
class BigramFlip(_BigramTask):
    """a1 a2 a3 a4 .. -> a2 a1 a4 a3 ... Length: k bigrams."""

    def pair(self, key, length, capacity):
        bigrams = self.tokens(key, capacity, 2)
        return bigrams.ravel(), bigrams[:, ::-1].ravel()


@dataclasses.dataclass(frozen=True)
class OddFirst(_BigramTask):
    """a1 a2 a3 .. a2k -> a1 a3 .. a2k-1 a2 a4 .. a2k. Length: k bigrams."""

    def pair(self, key, length, capacity):
        values = self.tokens(key, 2 * capacity)
        slot = jnp.arange(2 * capacity)
        return values, values[jnp.where(slot < length, 2 * slot, 2 * (slot - length) + 1)]


@dataclasses.dataclass(frozen=True)
class Double(LantmTask):
    """x -> 2 x, for x of k digits, zero padded to k + 1 digits. Length: k digits."""

    unit: ClassVar[str] = "digits"
    vocabulary: Annotated[int, at_least(2)] = 10
    train_lengths: Lengths = (2, 40)
    most_significant_first: bool = False
    """Order of the digits. The least significant digit is first in the paper, the most significant in the published
    data."""

    def zeros(self, length: int) -> float:
        """All digits of 2 x are uniform except the lowest, which is even, and the highest, which is 0 or 1."""
        return (length - 1 + math.gcd(2, self.vocabulary)) / self.vocabulary + 0.5

    def sizes(self, length):
        return length, length + 1

    def pair(self, key, length, capacity):
        """A number uniform in [0, 10^k), and its double."""
        digits = jnp.where(jnp.arange(capacity) < length, self.tokens(key, capacity), 0)
        double = add_digits(digits, digits, self.vocabulary)
        if self.most_significant_first:
            return reversed_prefix(digits, length), reversed_prefix(double, length + 1)
        return digits, double


@dataclasses.dataclass(frozen=True)
class InterleavedAdd(LantmTask):
    """x1 y1 x2 y2 .. xk yk -> x + y in k + 1 digits, least significant first, zero padded. Length: k digits."""

    unit: ClassVar[str] = "digits"
    vocabulary: Annotated[int, at_least(2)] = 10
    train_lengths: Lengths = (2, 16)

    def zeros(self, length: int) -> float:
        """All digits of x + y are uniform except the highest, which is 1 if x + y >= 10^k."""
        return length / self.vocabulary + (1 + self.vocabulary**-length) / 2

    def sizes(self, length):
        return 2 * length, length + 1

    def pair(self, key, length, capacity):
        """Two numbers uniform in [0, 10^k), and their sum."""
        digits = self.tokens(key, capacity, 2)
        digits = jnp.where(jnp.arange(capacity)[:, None] < length, digits, 0)
        return digits.ravel(), add_digits(digits[:, 0], digits[:, 1], self.vocabulary)


@dataclasses.dataclass(frozen=True)
class RepeatCopy(LantmTask):
    """N times '@', then a1 .. a20 -> a1 .. a20, N times. Length: N repetitions. '@' is input id V."""

    unit: ClassVar[str] = "repetitions"
    train_lengths: Lengths = (1, 5)
    sequence_length: PositiveInt = 20
    """Length of the repeated sequence, in tokens."""

    @property
    def symbols(self) -> int:
        """'@'."""
        return 1

    def sizes(self, length):
        return length + self.sequence_length, length * self.sequence_length

    def pair(self, key, length, capacity):
        values = self.tokens(key, self.sequence_length)
        position = jnp.arange(capacity + self.sequence_length)
        inputs = jnp.where(position < length, self.vocabulary, values[jnp.maximum(position - length, 0)])
        return inputs, jnp.tile(values, capacity)


@dataclasses.dataclass(frozen=True)
class PrioritySort(LantmTask):
    """Items with a priority and a value -> the values by ascending priority. Length: k items.

    The priorities are a permutation of f .. f + k - 1 in unary: priority p is p times '@', which is input id V. Values
    may repeat.
    """

    train_lengths: Lengths = (2, 10)
    first_priority: NonNegativeInt = 1
    """f, the lowest priority. 1 in the paper, 0 in the published data."""
    unary: bool = True
    """Write priorities in unary. False: priority f + r is one token, input id V + r (the variant of the paper's Figure
    3b)."""
    max_priority: PositiveInt = 64
    """If not `unary`: number of priority tokens, which is also the largest length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_length(max(self.train_lengths[1], self.test_lengths[1]))

    def check_length(self, length: int) -> None:
        if not self.unary and length > self.max_priority:
            raise ValueError(
                f"length {length} needs as many priorities, but there are tokens for max_priority={self.max_priority}; "
                "raise max_priority or use unary=True"
            )

    @property
    def symbols(self) -> int:
        """'@', or one id per priority."""
        return 1 if self.unary else self.max_priority

    def sizes(self, length):
        priorities = self.first_priority * length + length * (length - 1) // 2 if self.unary else length
        return priorities + length, length

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M). Raises ValueError if there are more items than priorities."""
        self.check_length(capacity)
        return super().shapes(capacity)

    def pair(self, key, length, capacity):
        """Priorities are the ranks of uniform noise whose first draws, unlike a permutation, do not depend on the
        capacity."""
        self.check_length(capacity)
        value_key, order_key = jax.random.split(key)
        values = self.tokens(value_key, capacity)
        item = jnp.arange(capacity)
        noise = jnp.where(item < length, jax.random.uniform(order_key, (capacity,)), jnp.inf)
        # rank = number of smaller items; for small rows a table of comparisons is cheaper than sorting
        earlier = (noise < noise[:, None]) | ((noise == noise[:, None]) & (item < item[:, None]))
        rank = jnp.sum(earlier, axis=1, dtype=jnp.int32)
        answer = jnp.zeros_like(values).at[rank].set(values, unique_indices=True)
        if not self.unary:
            return jnp.stack([self.vocabulary + rank, values], axis=1).ravel(), answer
        ends = jnp.cumsum(self.first_priority + rank + 1) - 1
        inputs = jnp.full((self.sizes(capacity)[0],), self.vocabulary, jnp.int32)
        return inputs.at[ends].set(values, unique_indices=True), answer
