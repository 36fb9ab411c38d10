"""The tasks that the paper counts as context-sensitive."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import at_least
from lenmem.tasks.chomsky.base import ChomskyTask, single
from lenmem.tasks.lantm import add_digits


@dataclasses.dataclass(frozen=True)
class DuplicateString(ChomskyTask):
    """w -> w w."""

    def answer_slots(self, length):
        return 2 * length

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, bits[jnp.arange(2 * capacity) % jnp.maximum(length, 1)]


@dataclasses.dataclass(frozen=True)
class InterlockedPairing(ChomskyTask):
    """a^n b^m -> a^n b^(m + n) a^m: the string, then the string with 0 and 1 exchanged. m is 0 for length 1."""

    def answer_slots(self, length):
        return 2 * length

    def pair(self, key, length, capacity):
        first, count = jax.random.split(key)
        first = jax.random.randint(first, (), 0, 2, jnp.int32)
        count = jax.random.randint(count, (), 1, jnp.maximum(length, 2))
        places = jnp.arange(2 * capacity)
        flipped = places >= length
        changed = (places - jnp.where(flipped, length, 0) >= count) ^ flipped
        bits = first ^ changed.astype(first.dtype)
        return bits[:capacity], bits


@dataclasses.dataclass(frozen=True)
class MissingDuplicate(ChomskyTask):
    """w w with one symbol hidden -> that symbol. An odd length ends with a blank; length 1 is a 1 with the answer 1.

    As every bit occurs twice, the hidden one is the parity of those that are seen: a finite automaton solves the task,
    although the paper counts it among the context-sensitive ones.
    """

    @property
    def symbols(self) -> int:
        return 4

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits, the hidden symbol and the blank."""
        return ("0", "1", "?", "_")

    def pair(self, key, length, capacity):
        word, place = jax.random.split(key)
        half = jnp.maximum(length // 2, 1)
        places = jnp.arange(capacity)
        bits = jax.random.randint(word, (capacity,), 0, 2)[places % half]
        hidden = jax.random.randint(place, (), 0, 2 * half)
        tokens = jnp.where(places == hidden, 2, jnp.where(places >= 2 * half, 3, bits))
        short = jnp.asarray(length) < 2
        return jnp.where(short, 1, tokens), single(jnp.where(short, 1, bits[hidden % half]))


@dataclasses.dataclass(frozen=True)
class OddsFirst(ChomskyTask):
    """t1 t2 t3 .. -> t1 t3 t5 .. t2 t4 .. The published code begins with t2."""

    def answer_slots(self, length):
        return length

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        slot, odd = jnp.arange(capacity), (length + 1) // 2
        return bits, bits[jnp.where(slot < odd, 2 * slot, 2 * (slot - odd) + 1) % capacity]


@dataclasses.dataclass(frozen=True)
class BucketSort(ChomskyTask):
    """Symbols -> the symbols in ascending order."""

    vocabulary: Annotated[int, at_least(2)] = 5
    """Number of symbols."""

    @property
    def symbols(self) -> int:
        return self.vocabulary

    @property
    def classes(self) -> int:
        return self.vocabulary

    def answer_slots(self, length):
        return length

    def pair(self, key, length, capacity):
        tokens = self.string(key, capacity)
        return tokens, jnp.sort(jnp.where(jnp.arange(capacity) < length, tokens, self.vocabulary))


@dataclasses.dataclass(frozen=True)
class _Binary(ChomskyTask):
    """Two positive numbers, lowest bit first, with an operator between -> the result, lowest bit first, and an end.

    The place of the operator is uniform. Inputs shorter than 3 are zeros, and their answer is 0.
    """

    ends: ClassVar[bool] = True
    same_symbols: ClassVar[bool] = False
    sign: ClassVar[str] = ""

    @property
    def symbols(self) -> int:
        return 3

    @property
    def classes(self) -> int:
        return 3

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits and the operator."""
        return ("0", "1", self.sign)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Bits and the end symbol."""
        return ("0", "1", "end")

    def result(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """The bits of the result, lowest first, in at least `answer_slots(capacity) - 1` places."""
        raise NotImplementedError

    def pair(self, key, length, capacity):
        one, other, cut = jax.random.split(key, 3)
        places = jnp.arange(capacity)
        first = jax.random.randint(cut, (), 1, jnp.maximum(length - 1, 2))
        one, other = _positive(one, first, capacity), _positive(other, length - 1 - first, capacity)
        tokens = jnp.where(places < first, one, jnp.where(places == first, 2, other[places - first - 1]))
        short = jnp.asarray(length) < 3
        tokens, bits = jnp.where(short, 0, tokens), jnp.where(short, 0, self.result(one, other))
        slots = jnp.arange(self.answer_slots(capacity))
        size = jnp.maximum(jnp.max(jnp.where(bits > 0, jnp.arange(bits.shape[0]) + 1, 0)), 1)
        size = jnp.minimum(size, self.answer_slots(length) - 1)
        bits = jnp.pad(bits, (0, max(0, slots.shape[0] - bits.shape[0])))[: slots.shape[0]]
        return tokens, jnp.where(slots == size, 2, jnp.where(slots < size, bits, 0))


@dataclasses.dataclass(frozen=True)
class BinaryAddition(_Binary):
    """x + y -> the sum."""

    sign: ClassVar[str] = "+"

    def answer_slots(self, length):
        return length + 1

    def result(self, first, second):
        return add_digits(first, second, 2)


@dataclasses.dataclass(frozen=True)
class BinaryMultiplication(_Binary):
    """x * y -> the product."""

    sign: ClassVar[str] = "*"

    def answer_slots(self, length):
        return length

    def result(self, first, second):
        def carried(carry, total):
            return (carry + total) // 2, (carry + total) % 2

        # Numbers of n and m bits, n + m < capacity: higher places of the product are 0.
        # Rounded, since a GPU may compute the convolution inexactly.
        totals = jnp.round(jnp.convolve(first, second, precision="highest"))[: first.shape[0]].astype(first.dtype)
        return jax.lax.scan(carried, jnp.zeros((), totals.dtype), totals)[1]


@dataclasses.dataclass(frozen=True)
class ComputeSqrt(ChomskyTask):
    """A positive binary number of n bits, highest bit first -> the floor of its root, in ceil(n / 2) bits."""

    def answer_slots(self, length):
        return (length + 1) // 2

    def pair(self, key, length, capacity):
        number = _positive(key, length, capacity)
        slots = self.answer_slots(capacity)
        size = slots + 3

        def digit(state, slot):
            """The next bit of the root: bring down two bits of the number, subtract 4 root + 1 if there is enough."""
            rest, root = state  # Lowest bit first.
            at = 2 * slot - length % 2
            high = jnp.where(at >= 0, number[jnp.maximum(at, 0)], 0)
            rest = jnp.concatenate([number[at + 1][None], high[None], rest[:-2]])
            trial = jnp.concatenate([jnp.array([1, 0]), root[:-2]])
            places = jnp.arange(1, size + 1)
            decided = jnp.where(rest == trial, 0, 2 * places + (rest < trial).astype(places.dtype))
            borrow = jax.lax.cummax(decided) % 2
            enough = borrow[-1] == 0
            left = (rest - trial - jnp.pad(borrow, (1, 0))[:-1]) % 2
            root = jnp.concatenate([enough[None].astype(root.dtype), root[:-1]])
            return (jnp.where(enough, left, rest), root), enough

        start = jnp.zeros(size, number.dtype), jnp.zeros(size, number.dtype)
        _, bits = jax.lax.scan(digit, start, jnp.arange(slots))
        return number, bits.astype(jnp.int32)


def _positive(key: jax.Array, size: jax.Array | int, capacity: int) -> jax.Array:
    """A number from 1 to 2^size - 1, uniform: zeros are drawn again up to 7 times, then all bits are 1."""
    inside = jnp.arange(capacity) < size
    drawn = jnp.where(inside, jax.random.randint(key, (capacity, 8), 0, 2).T, 0)
    found = jnp.any(drawn > 0, axis=-1)
    return jnp.where(jnp.any(found), drawn[jnp.argmax(found)], inside.astype(drawn.dtype))
