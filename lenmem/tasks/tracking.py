"""Parity and modular arithmetic as measured in the literature on state tracking.

Beck et al., "xLSTM" (NeurIPS 2024, arXiv 2405.04517); Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through
Negative Eigenvalues" (ICLR 2025, arXiv 2411.12537). They differ from the tasks of the same kind in
`lenmem.tasks.chomsky`:

    length    number of tokens of input and answer; trained on 3 to 40, tested on 40 to 256
    answer    one symbol, predicted at the last token of the input: `=`, or the last bit
    score     scaled accuracy, (a - c) / (1 - c) with the accuracy a and the chance c: 1/2 or 1/5

As published, length 40 is both trained and tested, and expressions with brackets have no products. Interfaces that add
an end token to every input also do so here.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import Lengths
from lenmem.tasks.base import NoSuchLength, scaled_accuracy
from lenmem.tasks.chomsky import ChomskyTask, ModularArithmetic, ModularArithmeticBrackets, ParityCheck
from lenmem.types import Batch, Spec


@dataclasses.dataclass(frozen=True)
class _Tracked(ChomskyTask):
    """Lengths, input format and score of the protocol. Length: tokens of input and answer."""

    unit: ClassVar[str] = "tokens with the answer"
    shortest: ClassVar[int] = 3
    """The smallest length that occurs; where a smaller one is drawn, it is used instead."""

    train_lengths: Lengths = (3, 40)
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = (40, 256)
    """Smallest and largest test length, both included."""

    @property
    def spec(self) -> Spec:
        """There is no delimiter between the input and the answer."""
        return dataclasses.replace(super().spec, delimited=True)

    def check_length(self, length: int) -> None:
        self._check_bounds(length, (self.shortest, max(length, self.shortest)))

    def shapes(self, capacity):
        return max(capacity, 3), 1

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Also `scaled_accuracy`: the accuracy scaled so that chance is 0."""
        values = super().metrics(outputs, batch)
        return values | {"scaled_accuracy": scaled_accuracy(values["token_accuracy"], self.spec.chance)}


@dataclasses.dataclass(frozen=True)
class TrackedParity(_Tracked, ParityCheck):
    """n - 1 bits -> the parity of their sum."""

    def input_size(self, length):
        return jnp.maximum(length, 3) - 1

    def pair(self, key, length, capacity):
        return super().pair(key, self.input_size(length), max(capacity, 3))


@dataclasses.dataclass(frozen=True)
class _TrackedExpression(_Tracked):
    """An expression and `=` -> its value modulo m."""

    def written(self, length):
        """Number of symbols of the expression."""
        raise NotImplementedError

    def input_size(self, length):
        return self.written(length) + 1

    def pair(self, key, length, capacity):
        size, columns = self.written(length), self.shapes(capacity)[0]
        tokens, value = super().pair(key, size, columns)
        return jnp.where(jnp.arange(columns) == size, self.input_names.index("="), tokens), value


@dataclasses.dataclass(frozen=True)
class TrackedArithmetic(_TrackedExpression, ModularArithmetic):
    """n op n op .. n = with + - * -> the value modulo m; products before sums. Lengths are odd.

    Where an even length is drawn, as published, the expression is one symbol shorter.
    """

    signs: ClassVar[str] = "+-*="

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if length % 2 == 0:
            raise NoSuchLength(f"an expression n op n .. n with its = and its value has an odd length, got {length}")

    def written(self, length):
        return (jnp.maximum(length, 3) - 1) // 2 * 2 - 1


@dataclasses.dataclass(frozen=True)
class TrackedArithmeticBrackets(_TrackedExpression, ModularArithmeticBrackets):
    """An expression with + -, brackets and unary minus, then = -> its value modulo m.

    As published, the expression has 3 symbols less than the length, since a padding token also counts.
    """

    shortest: ClassVar[int] = 5

    operators: ClassVar[str] = "+-"
    signs: ClassVar[str] = "+-()="

    def written(self, length):
        return jnp.maximum(length, 5) - 3
