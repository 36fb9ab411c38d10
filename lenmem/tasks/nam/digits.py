"""The three tasks: addition, reversal and reduction of digits."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.tasks.lantm import add_digits, reversed_prefix
from lenmem.tasks.nam.base import DELIMITER, NamTask, Problem, at


@dataclasses.dataclass(frozen=True)
class Fibonacci(NamTask):
    """`_ a _ b _` -> a + b, least significant digit first, without zero padding. Length: n digits of b.

    b is uniform among the numbers of exactly n digits. a is uniform in [1, 10^s - 2] with s uniform in 1 .. n.
    """

    end_symbol: bool = False
    """The model must end the sum itself. False: there are as many slots as digits in the sum, as published, which
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
        """The arithmetic is digit by digit, so numbers may have any number of digits."""
        size_key, a_key, b_key, top_key = jax.random.split(key, 4)
        place = jnp.arange(capacity)
        a = bounded_number(a_key, jax.random.randint(size_key, (), 1, length + 1), capacity)
        top = jax.random.randint(top_key, (), 1, 10, jnp.int32)
        b = jnp.where(place < length, jnp.where(place == length - 1, top, _digits(b_key, capacity)), 0)
        total = add_digits(a, b, 10)
        size = jnp.max(jnp.where(a > 0, place + 1, 0))  # of a, without leading zeros
        position = jnp.arange(self.problem_size(capacity))
        tokens = jnp.where((position > 0) & (position <= size), at(a, position - 1), DELIMITER)
        in_b = (position >= size + 2) & (position < size + 2 + length)
        tokens = jnp.where(in_b, at(b, position - size - 2), tokens)
        carried = (at(total, jnp.asarray(length)) > 0).astype(jnp.int32)
        return Problem(tokens, size + 3 + length, total, length + carried)

    def frequencies(self, length):
        """All digits of the sum are uniform except the two highest; digit n + 1, if there is one, is a 1."""
        return np.mean([_sum_shares(length, size, self.end_symbol) for size in range(1, length + 1)], axis=0)

    def whole_counts(self, length):
        """Counts s digits for a, which on average has 0.1 digits less."""
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
    """The model must also end the answer. The number of slots is exact in any case, since the input shows n."""

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
        tokens = jnp.where(inside, at(digits, position - 1), DELIMITER)
        return Problem(tokens, length + 2, reversed_prefix(digits, length), length)

    def frequencies(self, length):
        """Uniform digits, and the end symbol if there is one."""
        end = int(self.end_symbol)
        return np.array([length / 10] * 10 + [end]) / (length + end)

    def whole_counts(self, length):
        """2 n digits, two delimiters and the end symbol; all others are pads."""
        return 2 * length, self.frame_size(self._frame(length)) - 2 * length - 3


@dataclasses.dataclass(frozen=True)
class Reduce(NamTask):
    """Digits, `_` -> the digits that are not 0, in order. Length: n digits, each 0 with probability 1/2, else uniform.

    The model must find the number of remaining digits: the answer ends with the end symbol, in n + 1 slots. The
    published form has no masks: the input continues with pads, and the target consists of pads except for the answer
    right after the delimiter (input digits are not copied).
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
        """n / 2 digits; all others are pads."""
        return length / 2, self.frame_size(self._frame(length)) - length / 2


def _digits(key: jax.Array, *shape: int) -> jax.Array:
    """Uniform digits. The first draws do not depend on the size of the leading axis."""
    return jax.random.randint(key, shape, 0, 10, jnp.int32)
