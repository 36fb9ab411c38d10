"""Addition, reversal and reduction of digits from Neural Attention Memory (Nam & Seo 2022, section 5.3, Figure 1).

https://arxiv.org/abs/2302.09422. Trained on 1 to 10 digits and evaluated on 5 to 10 (the paper's ID set, here the split
`validation`), 11 to 13 (OD-easy, `od_easy`) and 14 to 16 (OD-hard, `test`). A length is a number of digits n. The rows
of a batch have different lengths, in equal numbers.

Each task has two forms:

* The free form (default): the model reads the problem, which ends with a delimiter, then fills the answer's slots; the
  answer is scored. `Completion` puts mask tokens there, as the paper does.
* `whole_sequence=True`, as published: one row of fixed size, in which masks, pads and the end are ordinary tokens.
  Answer t belongs to input t, and loss and accuracy run over *all* positions, including copied inputs and pads. The
  metrics `answer_*` cover the answer alone.

A row starts at a random offset, between pads, in a frame that just holds the longest row of its split: the frame has
the length of the longest example with 10, 13 or 16 digits, or with n digits if n is beyond the splits.

Known differences from the published code:

* Its palindrome data has input and target of the answer swapped: the network is shown the reversed digits and asked for
  mask tokens, which needs no reversal. That bug is not copied, so the printed palindrome numbers are no reference.
* It has an unused start token, and its OD sets of two tasks have 11 to 14 and 15 to 18 digits; we use the paper's.
* Its addition never uses the last possible offset.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths, PositiveInt
from lenmem.tasks.base import FreshSource, RepeatedSource, Source, Split, Task, exact_match, token_accuracy
from lenmem.tasks.lantm import add_digits, reversed_prefix
from lenmem.types import Batch, Example, Spec

DELIMITER, PAD, END, MASK = 10, 11, 12, 13
"""Ids above the digits 0 .. 9. The free form has no masks, and END occurs only in its answers."""


class Problem(NamedTuple):
    """A problem and its answer, each a prefix of a static array."""

    tokens: jax.Array
    """int[..]: the input, including delimiters."""
    size: Any
    """Number of real entries in `tokens`."""
    answer: jax.Array
    """int[..]: the digits of the answer."""
    answer_size: Any
    """Number of digits in the answer."""


@dataclasses.dataclass(frozen=True)
class NamTask(Task):
    """Base class of the three tasks. Subclasses define `problem`, `frame_size`, `answer_slots` and `chance_of`."""

    unit: ClassVar[str] = "digits"
    per_batch_length: ClassVar[bool] = False
    masked: ClassVar[bool] = True
    """In the whole-sequence form the answer's slots hold mask tokens, followed by END. False: they hold pads."""

    train_lengths: Lengths = (1, 10)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Fewest and most digits in training, both included."""
    validation_lengths: Lengths = (5, 10)
    """Digits of the split `validation`, the paper's ID set."""
    od_easy_lengths: Lengths = (11, 13)
    """Digits of the split `od_easy`; the paper selects the epoch that is best on it."""
    test_lengths: Lengths = (14, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Digits of the split `test`, the paper's OD-hard set."""
    whole_sequence: bool = False
    """The published form: aligned, with masks and pads as tokens, and every position scored."""
    random_offset: bool = True
    """Place a row at a random offset in its frame. False: at the start."""
    fixed_set: bool = False
    """Passes over fixed sets, as in the paper's text. False: every batch is new, as in the published code."""
    train_size: PositiveInt = 25_600
    """Number of examples in a fixed training set."""
    test_size: PositiveInt = 2_048
    """Number of examples in each other fixed set."""

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The four splits of the paper."""
        return {
            "train": self.train_lengths,
            "validation": self.validation_lengths,
            "od_easy": self.od_easy_lengths,
            "test": self.test_lengths,
        }

    # What a subclass gives --------------------------------------------------------------------------------------------

    @property
    def stops(self) -> bool:
        """The free form's answer ends with the end symbol, which is scored; its number of slots is an upper bound."""
        raise NotImplementedError

    def problem(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Problem:
        """A problem of `length` digits in arrays of size `capacity`. Entries beyond the sizes are arbitrary."""
        raise NotImplementedError

    def problem_size(self, length: Any) -> Any:
        """Number of tokens of the longest problem of that length. May be traced."""
        raise NotImplementedError

    def answer_slots(self, length: Any) -> Any:
        """Number of digits of the longest answer of that length. May be traced."""
        raise NotImplementedError

    def frequencies(self, length: int) -> np.ndarray:
        """float[11]: expected frequency of each digit and of the end symbol among an answer's scored slots."""
        raise NotImplementedError

    # The two forms ----------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """Digits, delimiter and pad; answers use the same ids. The whole-sequence form adds end and mask."""
        if self.whole_sequence:
            return Spec(
                vocabulary=MASK + 1,
                output_size=MASK + 1,
                shared_ids=True,
                alignment="aligned",
                chance=self.chance,
                shapes=self.shapes,
            )
        return Spec(
            vocabulary=PAD + 1,
            output_size=END + 1 if self.stops else 10,
            shared_ids=True,
            delimited=True,
            length_rule="end" if self.stops else "given",
            end_id=END if self.stops else None,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def chance(self) -> float:
        """Token accuracy of the best constant answer, over the training lengths."""
        shortest, longest = self.train_lengths
        shares = np.mean([self._shares(length) for length in range(shortest, longest + 1)], axis=0)
        return float(shares.max())

    def _shares(self, length: int) -> np.ndarray:
        """float[..]: expected frequency of each possible constant answer among the scored positions of a form."""
        if not self.whole_sequence:
            return self.frequencies(length)
        size = self.frame_size(self._frame(length))
        digits, pads = self.whole_counts(length)
        return np.array([digits / 10, pads]) / size

    def whole_counts(self, length: int) -> tuple[float, float]:
        """Expected digits and pads among the targets of a whole sequence in the frame of that length."""
        raise NotImplementedError

    def frame_size(self, length: Any) -> Any:
        """Positions of the longest whole row of that length: problem, answer and, if there is one, the end."""
        return self.problem_size(length) + self.answer_slots(length) + int(self.masked)

    def _frame(self, length: int) -> int:
        """The longest length of the shortest split that reaches `length`; beyond all splits, `length` itself."""
        return min((longest for _, longest in self.splits.values() if longest >= length), default=length)

    def _traced_frame(self, length: jax.Array | int) -> jax.Array:
        frame = jnp.asarray(length)
        for longest in sorted({longest for _, longest in self.splits.values()}, reverse=True):
            frame = jnp.where(length <= longest, longest, frame)
        return frame

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): with offsets the frame for `capacity`, otherwise the size of `capacity` digits."""
        frame = self._frame(capacity)
        if self.whole_sequence:
            return self.frame_size(frame), self.frame_size(frame)
        digits = frame if self.random_offset else capacity
        slots = self.answer_slots(digits) + int(self.stops)
        return self.frame_size(digits) - 1 if self.random_offset else self.problem_size(digits), slots

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        problem_key, offset_key = jax.random.split(key)
        problem = self.problem(problem_key, length, capacity)
        frame = self.frame_size(self._traced_frame(length))
        # If the answer is not masked there is room for the longest one, so the row does not reveal its length.
        room = problem.answer_size if self.masked else self.answer_slots(length)
        offset = 0
        if self.random_offset:
            offset = jax.random.randint(offset_key, (), 0, frame - problem.size - room - int(self.masked) + 1)
        return (
            self._whole(problem, offset, frame, capacity)
            if self.whole_sequence
            else self._free(problem, offset, length, capacity)
        )

    def _free(self, problem: Problem, offset: jax.Array | int, length: jax.Array | int, capacity: int) -> Example:
        size, slots = self.shapes(capacity)
        position, slot = jnp.arange(size), jnp.arange(slots)
        input_mask = position < offset + problem.size
        inputs = jnp.where(position < offset, PAD, _at(problem.tokens, position - offset))
        targets = jnp.where(slot < problem.answer_size, _at(problem.answer, slot), END)
        score_mask = slot < problem.answer_size + int(self.stops)
        target_mask = slot < self.answer_slots(length) + 1 if self.stops else score_mask
        targets = jnp.where(score_mask, targets, 0)
        return Example(jnp.where(input_mask, inputs, 0), input_mask, targets, target_mask, score_mask)

    def _whole(self, problem: Problem, offset: jax.Array | int, frame: jax.Array, capacity: int) -> Example:
        column = jnp.arange(self.shapes(capacity)[0])
        mask = column < frame
        position = column - offset
        slot = position - problem.size
        read = jnp.where((position >= 0) & (slot < 0), _at(problem.tokens, position), PAD)
        answering = (slot >= 0) & (slot < problem.answer_size)
        if self.masked:
            copied = jnp.where(slot == problem.answer_size, END, read)
            inputs = jnp.where(answering, MASK, copied)
        else:
            copied, inputs = PAD, read
        targets = jnp.where(answering, _at(problem.answer, slot), copied)
        return Example(jnp.where(mask, inputs, 0), mask, jnp.where(mask, targets, 0), mask, mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Token and sequence accuracy; for the whole sequence also those of the answer alone, `answer_*`."""
        values = super().metrics(outputs, batch)
        if self.whole_sequence:
            answer = batch._replace(score_mask=self.answer_mask(batch))
            values["answer_token_accuracy"] = token_accuracy(outputs, answer)
            values["answer_exact_match"] = exact_match(outputs, answer)
        return values

    def answer_mask(self, batch: Batch) -> jax.Array:
        """bool[B, M]: the positions of the answer in a whole sequence.

        If pads take the place of masks: the answer's digits, and the pad after them (if the frame has one), which marks
        the end of the answer.
        """
        if self.masked:
            return (batch.inputs == MASK) & batch.score_mask
        before = ((batch.targets < DELIMITER) | (batch.inputs == DELIMITER)) & batch.score_mask
        after = jnp.pad(before[:, :-1], ((0, 0), (1, 0)))
        return after & batch.score_mask

    def source(self, split: Split, batch_size: int) -> Source:
        """Fresh batches, or passes over fixed sets (for training, in a new order each time)."""
        self.lengths_of(split)
        fresh = EqualShares(self, split, batch_size)
        if not self.fixed_set:
            return fresh
        train = split == "train"
        return RepeatedSource(fresh, self.train_size if train else self.test_size, shuffle=train)


@dataclasses.dataclass(frozen=True)
class EqualShares(FreshSource):
    """Fresh batches whose rows take the lengths of the split in turn, continuing from batch to batch."""

    def lengths(self, step: jax.Array | int) -> jax.Array:
        """int[batch_size]: row r of the stream has length number r modulo the number of lengths."""
        shortest, longest = self.task.lengths_of(self.split)
        count = longest - shortest + 1
        first = jnp.asarray(step) % count * (self.batch_size % count)  # reduced first, so that it cannot overflow
        return shortest + (first + jnp.arange(self.batch_size)) % count


def _at(values: jax.Array, index: jax.Array) -> jax.Array:
    """`values[index]`; arbitrary if the index is out of range."""
    return values[jnp.clip(index, 0, values.shape[0] - 1)]


def _digits(key: jax.Array, *shape: int) -> jax.Array:
    """Uniform digits. A longer leading axis keeps the first draws."""
    return jax.random.randint(key, shape, 0, 10, jnp.int32)


@dataclasses.dataclass(frozen=True)
class Fibonacci(NamTask):
    """`_ a _ b _` -> a + b, least significant digit first, without zero padding. Length: n digits of b.

    b is uniform among the numbers of exactly n digits. a is uniform in [1, 10^s - 2] with s uniform in 1 .. n.
    """

    end_symbol: bool = False
    """The model must end the sum itself. False: there are as many slots as the sum has digits, as published, which
    reveals the last carry."""

    @property
    def stops(self) -> bool:
        """As `end_symbol`."""
        return self.end_symbol

    def problem_size(self, length):
        return 2 * length + 3

    def answer_slots(self, length):
        return length + 1

    def problem(self, key, length, capacity):
        """Arithmetic is digit by digit, so any number of digits works."""
        size_key, a_key, b_key, top_key = jax.random.split(key, 4)
        place = jnp.arange(capacity)
        a = bounded_number(a_key, jax.random.randint(size_key, (), 1, length + 1), capacity)
        top = jax.random.randint(top_key, (), 1, 10, jnp.int32)
        b = jnp.where(place < length, jnp.where(place == length - 1, top, _digits(b_key, capacity)), 0)
        total = add_digits(a, b, 10)
        size = jnp.max(jnp.where(a > 0, place + 1, 0))  # of a, without leading zeros
        position = jnp.arange(self.problem_size(capacity))
        tokens = jnp.where((position > 0) & (position <= size), _at(a, position - 1), DELIMITER)
        in_b = (position >= size + 2) & (position < size + 2 + length)
        tokens = jnp.where(in_b, _at(b, position - size - 2), tokens)
        return Problem(tokens, size + 3 + length, total, length + (_at(total, jnp.asarray(length)) > 0))

    def frequencies(self, length):
        """All digits of the sum are uniform except the two highest; the last, if there is one, is a 1."""
        return np.mean([_sum_shares(length, size, self.end_symbol) for size in range(1, length + 1)], axis=0)

    def whole_counts(self, length):
        """Counts a as s digits long; on average it is 0.1 digits shorter."""
        digits = (length + 1) / 2 + length + length + 0.5 * 1 / length
        return digits, self.frame_size(self._frame(length)) - digits - 4


@functools.cache
def _sum_shares(length: int, size: int, end: bool) -> np.ndarray:
    """float[11]: expected frequency of digits and end among the slots of a sum of numbers of `length` and `size`
    digits.

    Exact up to 3 digits. A longer b only adds uniform digits at the low end; probabilities of 0.1^3 are neglected.
    """
    gap = min(length - size, 2)
    high = min(length, 3)
    a = np.arange(1, 10 ** (high - gap) - 1)
    b = np.arange(10 ** (high - 1), 10**high)
    total = (a[:, None] + b).ravel()
    shares = np.zeros(11)
    for value, count in zip(*np.unique(total // 10 ** (high - 1), return_counts=True), strict=True):
        slots = length + (value > 9) + int(end)
        here = np.full(11, (length - 1) / 10)
        here[10] = int(end)
        for digit in str(value):
            here[int(digit)] += 1
        shares += here / slots * count
    return shares / total.size


def bounded_number(key: jax.Array, size: jax.Array | int, capacity: int) -> jax.Array:
    """Digits, least significant first, of a number uniform in [1, 10^size - 2]: neither 00..0 nor 99..9."""
    place = jnp.arange(capacity)

    def draw(attempt):
        return jnp.where(place < size, _digits(jax.random.fold_in(key, attempt), capacity), 0)

    def rejected(state):
        _, digits = state
        return jnp.all((digits == 0) | (place >= size)) | jnp.all((digits == 9) | (place >= size))

    return jax.lax.while_loop(rejected, lambda state: (state[0] + 1, draw(state[0])), (1, draw(0)))[1]


@dataclasses.dataclass(frozen=True)
class Palindrome(NamTask):
    """`_ s _` -> s backwards. s has n uniform digits, leading zeros included. Length: n digits."""

    end_symbol: bool = False
    """The model must also end the answer. It has the right number of slots in any case, since the input shows n."""

    @property
    def stops(self) -> bool:
        """As `end_symbol`."""
        return self.end_symbol

    def problem_size(self, length):
        return length + 2

    def answer_slots(self, length):
        return length

    def problem(self, key, length, capacity):
        """n digits between delimiters."""
        digits = _digits(key, capacity)
        position = jnp.arange(capacity + 2)
        inside = (position > 0) & (position <= length)
        tokens = jnp.where(inside, _at(digits, position - 1), DELIMITER)
        return Problem(tokens, length + 2, reversed_prefix(digits, length), length)

    def frequencies(self, length):
        """Uniform digits, and the end symbol if there is one."""
        end = int(self.end_symbol)
        return np.array([length / 10] * 10 + [end]) / (length + end)

    def whole_counts(self, length):
        """2 n digits, two delimiters and the end; the rest is pads."""
        return 2 * length, self.frame_size(self._frame(length)) - 2 * length - 3


@dataclasses.dataclass(frozen=True)
class Reduce(NamTask):
    """Digits, `_` -> the digits that are not 0, in order. Length: n digits, each 0 with probability 1/2, else uniform.

    The model must find out how many digits remain: the answer ends with the end symbol, in n + 1 slots. In the
    published form there are no masks: the input continues with pads, and the target is pads everywhere except for the
    answer right after the delimiter (the input digits are not copied).
    """

    masked: ClassVar[bool] = False

    @property
    def stops(self) -> bool:
        """Always."""
        return True

    def problem_size(self, length):
        return length + 1

    def answer_slots(self, length):
        return length

    def problem(self, key, length, capacity):
        """n digits and a delimiter; the answer collects the digits that are not 0 by their rank."""
        zero_key, digit_key = jax.random.split(key)
        place = jnp.arange(capacity)
        digits = jax.random.randint(digit_key, (capacity,), 1, 10, jnp.int32)
        digits = jnp.where(jax.random.bernoulli(zero_key, 0.5, (capacity,)), 0, digits)
        kept = (digits > 0) & (place < length)
        rank = jnp.where(kept, jnp.cumsum(kept) - 1, capacity)
        answer = jnp.zeros_like(digits).at[rank].set(digits, mode="drop")
        tokens = jnp.where(jnp.arange(capacity + 1) < length, jnp.append(digits, 0), DELIMITER)
        return Problem(tokens, length + 1, answer, jnp.sum(kept, dtype=jnp.int32))

    def frequencies(self, length):
        """k ~ Binomial(n, 1/2) digits and the end: E[1 / (k + 1)] = 2 (1 - 2^-(n + 1)) / (n + 1)."""
        end = 2 * (1 - 0.5 ** (length + 1)) / (length + 1)
        return np.array([0] + [(1 - end) / 9] * 9 + [end])

    def whole_counts(self, length):
        """n / 2 digits; the rest is pads."""
        return length / 2, self.frame_size(self._frame(length)) - length / 2
