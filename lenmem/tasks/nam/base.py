"""The base class of the three tasks: the two forms, the frame, the lengths of a batch."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths, PositiveInt
from lenmem.tasks.base import FreshSource, RepeatedSource, Source, Split, Task, exact_match, token_accuracy
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
    """Base class of the three tasks. Subclasses define `stops`, `problem`, `problem_size`, `answer_slots`,
    `frequencies` and `whole_counts`."""

    unit: ClassVar[str] = "digits"
    per_batch_length: ClassVar[bool] = False
    masked: ClassVar[bool] = True
    """In the whole-sequence form the answer's slots contain mask tokens, followed by END. False: they contain pads."""

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
    """Make passes over fixed sets, as in the paper's text. False: every batch is new, as in the published code."""
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

    # Defined by subclasses --------------------------------------------------------------------------------------------

    @property
    def stops(self) -> bool:
        """Whether the answer of the free form ends with the end symbol, which is scored, in an upper bound of slots."""
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
        """float[11]: expected frequency of each digit and of the end symbol among the scored slots of an answer."""
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
        """Expected numbers of digits and pads among the targets of a whole sequence in the frame of that length."""
        raise NotImplementedError

    def frame_size(self, length: Any) -> Any:
        """Positions of the longest row of that length: problem, answer and, if there is one, the end."""
        return self.problem_size(length) + self.answer_slots(length) + int(self.masked)

    def _frame(self, length: int) -> int:
        """The longest length of the shortest split that includes `length`; beyond all splits, `length` itself."""
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
        # If the answer is not masked, there is space for the longest answer, so the offset does not reveal its length.
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
        inputs = jnp.where(position < offset, PAD, at(problem.tokens, position - offset))
        targets = jnp.where(slot < problem.answer_size, at(problem.answer, slot), END)
        score_mask = slot < problem.answer_size + int(self.stops)
        target_mask = slot < self.answer_slots(length) + 1 if self.stops else score_mask
        targets = jnp.where(score_mask, targets, 0)
        return Example(jnp.where(input_mask, inputs, 0), input_mask, targets, target_mask, score_mask)

    def _whole(self, problem: Problem, offset: jax.Array | int, frame: jax.Array, capacity: int) -> Example:
        column = jnp.arange(self.shapes(capacity)[0])
        mask = column < frame
        position = column - offset
        slot = position - problem.size
        read = jnp.where((position >= 0) & (slot < 0), at(problem.tokens, position), PAD)
        answering = (slot >= 0) & (slot < problem.answer_size)
        if self.masked:
            copied = jnp.where(slot == problem.answer_size, END, read)
            inputs = jnp.where(answering, MASK, copied)
        else:
            copied, inputs = PAD, read
        targets = jnp.where(answering, at(problem.answer, slot), copied)
        return Example(jnp.where(mask, inputs, 0), mask, jnp.where(mask, targets, 0), mask, mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Token and sequence accuracy; for the whole sequence also those of only the answer, `answer_*`."""
        values = super().metrics(outputs, batch)
        if self.whole_sequence:
            answer = batch._replace(score_mask=self.answer_mask(batch))
            values["answer_token_accuracy"] = token_accuracy(outputs, answer)
            values["answer_exact_match"] = exact_match(outputs, answer)
        return values

    def answer_mask(self, batch: Batch) -> jax.Array:
        """bool[B, M]: the positions of the answer in a whole sequence.

        Without masks, these are the digits of the answer and the pad after them, if the frame has one; this pad marks
        the end of the answer.
        """
        if self.masked:
            return (batch.inputs == MASK) & batch.score_mask
        before = ((batch.targets < DELIMITER) | (batch.inputs == DELIMITER)) & batch.score_mask
        after = jnp.pad(before[:, :-1], ((0, 0), (1, 0)))
        return after & batch.score_mask

    def examples_of(self, split: Split) -> int | None:
        """The size of a fixed set."""
        self.lengths_of(split)
        if not self.fixed_set:
            return None
        return self.train_size if split == "train" else self.test_size

    def source(self, split: Split, batch_size: int) -> Source:
        """Fresh batches, or passes over fixed sets (for training, in a new order each time), in full batches: examples
        that do not fill a last batch are left out."""
        count, fresh = self.examples_of(split), EqualShares(self, split, batch_size)
        return fresh if count is None else RepeatedSource(fresh, count, shuffle=split == "train")


@dataclasses.dataclass(frozen=True)
class EqualShares(FreshSource):
    """Fresh batches whose rows cycle through the lengths of the split, continuing from batch to batch."""

    def lengths(self, step: jax.Array | int) -> jax.Array:
        """int[batch_size]: row r of the stream has length number r modulo the number of lengths."""
        shortest, longest = self.task.lengths_of(self.split)
        count = longest - shortest + 1
        first = jnp.asarray(step) % count * (self.batch_size % count)  # reduced first, so that it cannot overflow
        return shortest + (first + jnp.arange(self.batch_size)) % count


def at(values: jax.Array, index: jax.Array) -> jax.Array:
    """`values[index]`; arbitrary if the index is out of range."""
    return values[jnp.clip(index, 0, values.shape[0] - 1)]
