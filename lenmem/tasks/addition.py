"""Addition of long numbers, in the formats of the literature on length generalisation.

    plain            1 2 + 9 1 =  ->  1 0 3          highest digit first
    reversed         2 1 + 1 9 =  ->  3 0 1          lowest digit first (McLeish et al. 2024, arXiv 2405.17399)
    reversed_answer  1 2 + 9 1 =  ->  3 0 1          only the sum (Cho et al. 2024, arXiv 2405.20671)
    index_hints      #7 2 #8 1 + #7 1 #8 9 =  ->  #7 3 #8 0 #9 1

In the last format each digit follows a hint, a token for its place value, which is the same in all numbers: hints are
consecutive from a random start (Zhou et al. 2024, arXiv 2402.09371), here with the lowest digit first. The answer
contains the hints, and they are scored. Published lengths: 1 to 20 digits in training and up to 100 in the test
(McLeish et al.), or 1 to 30 in training (Cho et al., whose numbers are `padded`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths, PositiveInt
from lenmem.tasks.base import Task
from lenmem.tasks.lantm import add_digits
from lenmem.types import Example, Spec

PLUS, EQUALS, HINT = 10, 11, 12
"""Ids above the digits 0 .. 9. The hints, if any, have the ids from HINT on."""


@dataclasses.dataclass(frozen=True)
class Addition(Task):
    """Two numbers -> their sum. Length: n digits of one number; the number of digits of the other is uniform in 1 .. n.

    Numbers are uniform among those with their number of digits. The sum ends with an end symbol, unless `padded`.
    """

    unit: ClassVar[str] = "digits"

    format: Literal["plain", "reversed", "reversed_answer", "index_hints"] = "reversed"
    """The order of the digits, and whether there are hints."""
    padded: bool = False
    """Both numbers are padded with zeros to n digits and the sum to n + 1, without an end symbol."""
    train_lengths: Lengths = (1, 20)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Fewest and most digits in training, both included."""
    test_lengths: Lengths = (21, 100)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Fewest and most digits in the test, both included."""
    hints: PositiveInt = 128
    """Number of hint tokens. A sum of n + 1 digits needs n + 1."""
    positions: Literal["abacus", "coupled"] | None = None
    """Positions that a network may use (`Transformer(positions="given")`): the position of a digit in its number, or
    the same position for all digits with the same place value. See `DigitPositions`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "abacus" and self.format != "reversed":
            raise ValueError(f"positions='abacus' needs all numbers lowest digit first; format is {self.format!r}")
        if self.positions == "coupled" and (self.hinted or (self.format == "plain" and not self.padded)):
            raise ValueError(
                f"positions='coupled' needs sums whose lowest digit has a known slot, and no hints; format is "
                f"{self.format!r}, padded is {self.padded}"
            )
        self.check_length(max(self.train_lengths[1], self.test_lengths[1]))

    def check_length(self, length: int) -> None:
        if self.hinted and length >= self.hints:
            raise ValueError(f"hints is {self.hints}; sums of numbers of {length} digits need {length + 1}")

    @property
    def hinted(self) -> bool:
        """Whether there are hints."""
        return self.format == "index_hints"

    @property
    def spec(self) -> Spec:
        """Digits, signs and hints; the sum uses the same ids, and the end symbol is the next one."""
        symbols = len(self.input_names)
        return Spec(
            vocabulary=symbols,
            output_size=symbols + (not self.padded),
            shared_ids=True,
            delimited=True,
            length_rule="given" if self.padded else "end",
            end_id=None if self.padded else symbols,
            position_rule=self.position_rule,
            chance=_chance(self.train_lengths, self.padded, self.hinted),
            shapes=self.shapes,
        )

    @property
    def position_rule(self) -> DigitPositions | None:
        """The rule of `positions`."""
        if self.positions is None:
            return None
        return DigitPositions(self.positions, self.format in ("plain", "reversed_answer"), self.format == "plain")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Digits, signs and hints."""
        return (*map(str, range(10)), "+", "=", *(f"#{i}" for i in range(self.hints * self.hinted)))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Digits, signs and hints, and the end symbol unless `padded`."""
        return (*self.input_names, "end")[: self.spec.output_size]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The training lengths, then every fifth test length, and the last."""
        first, last = self.test_lengths
        trained = range(self.train_lengths[0], self.train_lengths[1] + 1)
        return tuple(sorted({*trained, *range(first, last + 1, 5), last}))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): two numbers of `capacity` digits with both signs; a sum with one more digit, and its end."""
        each = 1 + self.hinted
        return 2 * each * capacity + 2, self._slots(capacity)

    def _slots(self, length: Any) -> Any:
        return (1 + self.hinted) * (length + 1) + int(not self.padded)

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        self.check_length(capacity)
        of_one, of_other, of_size, of_order, of_start = jax.random.split(key, 5)
        size = jax.random.randint(of_size, (), 1, length + 1)
        shorter_first = jax.random.bernoulli(of_order)
        sizes = jnp.where(shorter_first, size, length), jnp.where(shorter_first, length, size)
        numbers = [_number(key, size, capacity) for key, size in zip((of_one, of_other), sizes, strict=True)]
        total = add_digits(numbers[0], numbers[1], 10)
        total_size = jnp.max(jnp.where(total > 0, jnp.arange(1, capacity + 2), 1))
        if self.padded:
            sizes, total_size = (length, length), length + 1
        start = jax.random.randint(of_start, (), 0, jnp.maximum(self.hints - length, 1))

        each = 1 + self.hinted
        place = jnp.arange(self.shapes(capacity)[0])
        plus = each * sizes[0]
        equals = plus + 1 + each * sizes[1]
        first = self._written(numbers[0], sizes[0], place, start)
        second = self._written(numbers[1], sizes[1], place - plus - 1, start)
        inputs = jnp.where(place < plus, first, jnp.where(place == plus, PLUS, second))
        inputs = jnp.where(place < equals, inputs, jnp.where(place == equals, EQUALS, 0))

        slot, size = jnp.arange(self._slots(capacity)), each * total_size
        answer = self._written(total, total_size, slot, start, answer=True)
        score_mask = slot < size + int(not self.padded)
        targets = jnp.where(slot < size, answer, jnp.where(score_mask, len(self.input_names), 0))
        return Example(inputs, place <= equals, targets, slot < self._slots(length), score_mask)

    def _written(self, digits: jax.Array, size: Any, place: jax.Array, start: jax.Array, answer: bool = False):
        """The tokens at places of a written number of `size` digits; `digits` has the lowest first."""
        number, hint = jnp.divmod(place, 1 + self.hinted)
        highest_first = self.format == "plain" or (self.format == "reversed_answer" and not answer)
        weight = size - 1 - number if highest_first else number
        digit = digits[jnp.clip(weight, 0, digits.shape[0] - 1)]
        return jnp.where(hint == 0, HINT + start + weight, digit) if self.hinted else digit


@dataclasses.dataclass(frozen=True)
class DigitPositions:
    """Positions of the digits of a sum. Other tokens get the first position or, with `abacus`, none.

    abacus     1, 2, 3, .. in each number, from its first digit on; 0 for other tokens (McLeish et al. 2024)
    coupled    w + 2 for a digit of weight 10^w, in all numbers; 1 for other tokens (Cho et al. 2024)

    An answer slot has the position of its digit; the position of the end follows that of the highest digit. With M
    slots the largest position is M + 1.
    """

    kind: Literal["abacus", "coupled"]
    inputs_highest_first: bool = False
    """The first digit of an input number is its highest."""
    answer_highest_first: bool = False
    """The first answer slot has the highest digit."""

    def ids(self, inputs: jax.Array, input_mask: jax.Array, target_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As in `lenmem.types.PositionRule`."""
        digit = (inputs < PLUS) & input_mask
        place, slot = jnp.arange(inputs.shape[-1]), jnp.arange(target_mask.shape[-1])
        before = place - jax.lax.cummax(jnp.where(digit, -1, place), axis=inputs.ndim - 1) - 1
        end = jax.lax.cummin(jnp.where(digit, len(place), place), axis=inputs.ndim - 1, reverse=True)
        weight = end - place - 1 if self.inputs_highest_first else before
        slots = jnp.sum(target_mask, axis=-1, keepdims=True)
        answer = slots - 1 - slot if self.answer_highest_first else jnp.broadcast_to(slot, target_mask.shape)
        first = 1 if self.kind == "abacus" else 2
        weight = jnp.minimum(weight + first, self.largest(len(place), len(slot)))
        return jnp.where(digit, weight, jnp.where(input_mask, first - 1, 0)), answer + first

    def largest(self, inputs: int, answers: int) -> int:
        """M + 1."""
        del inputs
        return answers + 1


def _number(key: jax.Array, size: jax.Array | int, capacity: int) -> jax.Array:
    """int[capacity]: a uniform number of `size` digits, lowest first. Only a single digit may be 0."""
    below, top = jax.random.split(key)
    place = jnp.arange(capacity)
    digits = jax.random.randint(below, (capacity,), 0, 10, jnp.int32)
    top = jax.random.randint(top, (), jnp.where(size > 1, 1, 0), 10, jnp.int32)
    return jnp.where(place < size - 1, digits, jnp.where(place == size - 1, top, 0))


@functools.cache
def _chance(lengths: tuple[int, int], padded: bool, hinted: bool, draws: int = 4000) -> float:
    """Expected fraction of scored slots that the best constant answer gets right, estimated from `draws` sums."""
    rng, shares = np.random.default_rng(0), np.zeros(11)
    for _ in range(draws):
        length = int(rng.integers(lengths[0], lengths[1] + 1))
        total = 0
        for size in (length, int(rng.integers(1, length + 1))):
            digits = rng.integers(0, 10, size)
            digits[0] = rng.integers(size > 1, 10)
            total += int("".join(map(str, digits)))
        written = f"{total:0{length + 1}d}" if padded else str(total)
        counts = np.array([*(written.count(str(digit)) for digit in range(10)), not padded])
        shares += counts / ((1 + hinted) * len(written) + (not padded))
    return float(shares.max() / draws)
