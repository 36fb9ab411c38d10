"""Tasks that a finite automaton solves."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import at_least
from lenmem.tasks.base import NoSuchLength
from lenmem.tasks.chomsky.base import ChomskyTask, ModularTask, single


@dataclasses.dataclass(frozen=True)
class EvenPairs(ChomskyTask):
    """Bits -> 0 if the number of pairs 01 and 10 is even, else 1. Equivalently, whether the two ends differ."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, single(bits[0] ^ bits[jnp.maximum(length - 1, 0)])


@dataclasses.dataclass(frozen=True)
class ParityCheck(ChomskyTask):
    """Bits -> the parity of their sum."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, single(jnp.sum(jnp.where(jnp.arange(capacity) < length, bits, 0)) % 2)


@dataclasses.dataclass(frozen=True)
class CycleNavigation(ChomskyTask):
    """Moves on a cycle from position 0 -> the final position. Symbols 0, 1, 2: one back, stay, one forward."""

    same_symbols: ClassVar[bool] = False
    positions: Annotated[int, at_least(2)] = 5
    """Number of positions on the cycle."""

    @property
    def symbols(self) -> int:
        return 3

    @property
    def classes(self) -> int:
        return self.positions

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the moves."""
        return ("-1", "0", "+1")

    def pair(self, key, length, capacity):
        moves = self.string(key, capacity)
        steps = jnp.where(jnp.arange(capacity) < length, moves - 1, 0)
        return moves, single(jnp.sum(steps) % self.positions)


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(ModularTask):
    """n op n op .. n with + - * -> the value modulo m; products before sums. Lengths are odd.

    Where an even length is drawn, as in the published code, the expression is one symbol shorter.
    """

    signs: ClassVar[str] = "+-*"

    def check_length(self, length: int) -> None:
        if length % 2 == 0:
            raise NoSuchLength(f"an expression n op n .. n has an odd number of symbols, got the length {length}")

    def input_size(self, length):
        return length - (length + 1) % 2

    def pair(self, key, length, capacity):
        numbers, operators = jax.random.split(key)
        numbers = jax.random.randint(numbers, (capacity,), 0, self.modulus)
        operators = self.modulus + jax.random.randint(operators, (capacity,), 0, len(self.operators))
        places = jnp.arange(capacity)
        tokens = jnp.where(places % 2 == 0, numbers, operators)

        def read(state, xs):
            total, term = state
            operator, number, valid = xs
            product = operator == self.symbol("*")
            sign = jnp.where(operator == self.symbol("-"), -1, 1)
            after = jnp.where(product, total, total + term), jnp.where(product, term * number, sign * number)
            return jax.tree.map(lambda new, old: jnp.where(valid, new % self.modulus, old), after, state), None

        pairs = tokens[1::2], tokens[2::2], places[2::2] < length
        pairs = (pairs[0][: pairs[1].shape[0]], *pairs[1:])
        (total, term), _ = jax.lax.scan(read, (jnp.zeros((), tokens.dtype), tokens[0]), pairs)
        return tokens, single((total + term) % self.modulus)
