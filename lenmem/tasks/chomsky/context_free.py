"""Tasks that a pushdown automaton solves, deterministic or not."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.tasks.chomsky.base import ChomskyTask, ModularTask, single
from lenmem.tasks.lantm import reversed_prefix
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class ModularArithmeticBrackets(ModularTask):
    """An expression with + - *, brackets and unary minus -> its value modulo m."""

    signs: ClassVar[str] = "+-*()"

    def pair(self, key, length, capacity):
        tokens, value = _expression(self, key, length, capacity)
        return tokens, single(value)


@dataclasses.dataclass(frozen=True)
class SolveEquation(ModularTask):
    """An expression with + and - in which one number is x, then = and its value -> x.

    There are no products, which could leave x undetermined. Inputs shorter than 3 are zeros, and their answer is 0.
    """

    operators: ClassVar[str] = "+-"
    signs: ClassVar[str] = "+-()x="

    def pair(self, key, length, capacity):
        drawn, place = jax.random.split(key)
        size = jnp.maximum(length - 2, 1)
        tokens, value = _expression(self, drawn, size, capacity)
        places = jnp.arange(capacity)
        # x is the first number from a random place on, cyclically.
        after = (places - jax.random.randint(place, (), 0, size)) % size
        hidden = jnp.argmin(jnp.where((tokens < self.modulus) & (places < size), after, capacity))
        answer = tokens[hidden]
        tokens = jnp.where(places == hidden, self.symbol("x"), tokens)
        tokens = jnp.where(places == size, self.symbol("="), jnp.where(places == size + 1, value, tokens))
        short = jnp.asarray(length) < 3
        return jnp.where(short, 0, tokens), single(jnp.where(short, 0, answer))


def _expression(
    task: ModularTask, key: jax.Array, length: jax.Array | int, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """(symbols [capacity], value modulo m) of a random expression of `length` symbols, at least 1.

    As in the published code, an expression of 1 to 4 symbols is n, -n, (n) or (-n); a longer one is (left op right)
    with a left part of a uniform length. A stack holds the parts still to be written: the length of an expression, or
    the negated id of a sign. The value is computed along the way, with a second stack for the open brackets: the value
    so far and the pending operator.
    """
    numbers, chosen, halves = jax.random.split(key, 3)
    numbers = jax.random.randint(numbers, (capacity,), 0, task.modulus, jnp.int32)
    chosen = task.modulus + jax.random.randint(chosen, (capacity,), 0, len(task.operators), jnp.int32)
    halves = jax.random.uniform(halves, (capacity,))
    opened, closed, minus = task.symbol("("), task.symbol(")"), task.symbol("-")
    times = task.symbol("*") if "*" in task.operators else -1

    def joined(operator, left, right):
        product = jnp.where(operator == times, left * right, left + jnp.where(operator == minus, -right, right))
        return product % task.modulus

    def write(state, xs):
        pending, top, values, waiting, depth, negative = state
        number, operator, half = xs
        item = pending[top]
        left = jnp.where(item < 5, item - 2, 1 + (half * (item - 4).astype(half.dtype)).astype(jnp.int32))
        token = jnp.where(item > 2, opened, jnp.where(item == 2, minus, jnp.where(item == 1, number, -item)))
        # The parts of (left op right), of (left), of a minus sign, or none; the first part is on top.
        rest = jnp.where(
            item > 4,
            jnp.stack([-jnp.asarray(closed), item - left - 3, -operator, left]),
            jnp.stack([jnp.where(item == 2, 1, -closed), left, left, left]),
        )
        added = jnp.where(item > 4, 3, jnp.where(item > 2, 1, jnp.where(item == 2, 0, -1)))
        pending = jax.lax.dynamic_update_slice(pending, rest.astype(pending.dtype), (top,))

        is_number, is_closed = token < task.modulus, token == closed
        below = jnp.where(is_closed, depth - 1, depth)
        value = jnp.where(is_closed, values[depth], jnp.where(negative, -token, token))
        value = joined(waiting[below], values[below], value)
        values = values.at[below].set(jnp.where(is_number | is_closed, value, values[below]))
        values = values.at[depth + 1].set(jnp.where(token == opened, 0, values[depth + 1]))
        operates = (token >= task.modulus) & (token < opened) & (item != 2)
        waiting = waiting.at[below].set(jnp.where(operates, token, waiting[below]))
        waiting = waiting.at[depth + 1].set(jnp.where(token == opened, 0, waiting[depth + 1]))
        depth = below + (token == opened).astype(below.dtype)
        running = top >= 0
        state = jax.tree.map(
            lambda new, old: jnp.where(running, new, old),
            (pending, top + added, values, waiting, depth, item == 2),
            state,
        )
        return state, jnp.where(running, token, 0)

    size = capacity + 8
    pending = jnp.zeros(size, jnp.int32).at[0].set(length)
    zero = jnp.zeros((), jnp.int32)
    start = pending, zero, *jnp.zeros((2, size), jnp.int32), zero, jnp.zeros((), bool)
    (_, _, values, *_), tokens = jax.lax.scan(write, start, (numbers, chosen, halves))
    return tokens, values[0]


@dataclasses.dataclass(frozen=True)
class ReverseString(ChomskyTask):
    """Bits -> the bits in reverse."""

    def answer_slots(self, length):
        return length

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, reversed_prefix(bits, length)


@dataclasses.dataclass(frozen=True)
class StackManipulation(ChomskyTask):
    """Bits of a stack, bottom first, then commands -> the stack afterwards, top first, with an end symbol.

    The commands are pop, push 0 and push 1, ids 2 to 4. A pop of an empty stack does nothing.
    """

    ends: ClassVar[bool] = True
    same_symbols: ClassVar[bool] = False

    @property
    def symbols(self) -> int:
        return 5

    @property
    def classes(self) -> int:
        return 3

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits and commands."""
        return ("0", "1", "pop", "push0", "push1")

    def answer_slots(self, length):
        return length + 1

    def pair(self, key, length, capacity):
        bits, commands, size = jax.random.split(key, 3)
        places = jnp.arange(capacity)
        filled = jax.random.randint(size, (), 1, jnp.maximum(length, 2))
        bits = jax.random.randint(bits, (capacity,), 0, 2)
        commands = jax.random.randint(commands, (capacity,), 2, 5)
        tokens = jnp.where(places < filled, bits, commands)

        # A bit and the command to push it have the same remainder by 3.
        return tokens, _stack_after(tokens % 3, tokens != 2, places < length)


@dataclasses.dataclass(frozen=True)
class CompareOccurrence(ChomskyTask):
    """Bits -> 1 if there are at least as many ones as zeros, else 0. As in the published code, a tie is a 1."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        ones = jnp.sum(jnp.where(jnp.arange(capacity) < length, bits, 0))
        return bits, single(2 * ones >= length)


@dataclasses.dataclass(frozen=True)
class EqualRepeats(ChomskyTask):
    """0^l 1^m 0^n -> which two of the three are equal. 0: l = m, also if all are equal; 1: m = n; 2: l = n.

    The answer is drawn uniformly, and so is the number k = 1 .. length / 2 that occurs twice; the third may be 0. The
    only input of length 1 is a zero, and its answer is 0.
    """

    same_symbols: ClassVar[bool] = False

    @property
    def classes(self) -> int:
        return 3

    def pair(self, key, length, capacity):
        kind, count = jax.random.split(key)
        kind = jax.random.randint(kind, (), 0, 3)
        count = jax.random.randint(count, (), 1, jnp.maximum(length // 2, 1) + 1)
        rest = length - 2 * count
        first = jnp.where(kind == 1, rest, count)
        ones = jnp.where(kind == 2, rest, count)
        places = jnp.arange(capacity)
        short = jnp.asarray(length) < 2
        bits = ~short & (places >= first) & (places < first + ones)
        return bits.astype(jnp.int32), single(jnp.where(short | (rest == count), 0, kind))


@dataclasses.dataclass(frozen=True)
class DivideByTwo(ChomskyTask):
    """A single 1 at place n = 0 .. length - 1 among zeros -> a single 1 at place ceil(n / 2), in as many symbols.

    All answer slots are trained. As published, only two are scored: the one, and the zero before it.
    """

    def answer_slots(self, length):
        return length

    def pair(self, key, length, capacity):
        place, places = jax.random.randint(key, (), 0, length), jnp.arange(capacity)
        return (places == place).astype(jnp.int32), (places == (place + 1) // 2).astype(jnp.int32)

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; the slot of the one and the slot before it are scored."""
        example = super().sample(key, length, capacity)
        return example._replace(score_mask=jnp.append(example.targets[1:], 0) + example.targets > 0)


@dataclasses.dataclass(frozen=True)
class MissingPalindrome(ChomskyTask):
    """A palindrome with one symbol hidden -> that symbol. The middle of an odd length is not determined by the rest."""

    @property
    def symbols(self) -> int:
        return 3

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits and the hidden symbol."""
        return ("0", "1", "?")

    @property
    def spec(self) -> Spec:
        """That of the other tasks, and the ceiling of the split `test`."""
        first, last = self.test_lengths
        ceiling = np.mean([self.ceiling_at(length) for length in range(first, last + 1)])
        return dataclasses.replace(super().spec, ceiling=float(ceiling))

    def ceiling_at(self, length: int) -> float:
        """If the length is odd, the hidden symbol is the middle one with probability 1 / length; it is then guessed."""
        return 1 - 0.5 / length if length % 2 else 1.0

    def pair(self, key, length, capacity):
        word, place = jax.random.split(key)
        places = jnp.arange(capacity)
        bits = jax.random.randint(word, (capacity,), 0, 2, jnp.int32)
        bits = bits[jnp.clip(jnp.minimum(places, length - 1 - places), 0)]
        hidden = jax.random.randint(place, (), 0, length)
        return jnp.where(places == hidden, 2, bits), single(bits[hidden])


@dataclasses.dataclass(frozen=True)
class NondeterministicStackManipulation(ChomskyTask):
    """Bits of a stack, bottom first, then commands, one of which is hidden, a bar, and the hidden command -> the stack
    afterwards, top first, with an end symbol.

    The commands are pop, and push, which pushes a 1. A pop of an empty stack does nothing, as in the examples of the
    published code; the code itself never pops the last symbol. Inputs of up to 3 symbols are too short to hide a
    command, and have no bar.
    """

    ends: ClassVar[bool] = True
    same_symbols: ClassVar[bool] = False

    @property
    def symbols(self) -> int:
        return 6

    @property
    def classes(self) -> int:
        return 3

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits, commands, the hidden command and the bar."""
        return ("0", "1", "pop", "push", "?", "|")

    def answer_slots(self, length):
        return length + 1

    def pair(self, key, length, capacity):
        bits, commands, size, place = jax.random.split(key, 4)
        places = jnp.arange(capacity)
        short = jnp.asarray(length) < 4
        acted = jnp.where(short, length, length - 2)
        filled = jax.random.randint(size, (), 1, jnp.maximum(acted, 2))
        bits = jax.random.randint(bits, (capacity,), 0, 2)
        commands = jax.random.randint(commands, (capacity,), 2, 4)
        tokens = jnp.where(places < filled, bits, commands)
        # A bit and the command to push it have the same remainder by 2.
        answer = _stack_after(tokens % 2, tokens != 2, places < acted)
        hidden = jax.random.randint(place, (), filled, jnp.maximum(acted, filled + 1))
        shown = jnp.where(places == hidden, 4, jnp.where(places == acted, 5, tokens))
        shown = jnp.where(places == acted + 1, tokens[jnp.minimum(hidden, capacity - 1)], shown)
        return jnp.where(short, tokens, shown), answer


def _stack_after(bits: jax.Array, pushes: jax.Array, valid: jax.Array) -> jax.Array:
    """The final stack, top first, followed by the end symbol 2: int[N + 1]. Valid steps push their bit where `pushes`
    is True, and pop elsewhere."""

    def run(state, xs):
        stack, height = state
        bit, push, valid = xs
        stack = stack.at[height].set(jnp.where(valid & push, bit, stack[height]))
        height = height + jnp.where(valid, jnp.where(push, 1, -jnp.minimum(height, 1)), 0)
        return (stack, height), None

    start = jnp.zeros(bits.shape[0] + 1, bits.dtype), jnp.zeros((), jnp.int32)
    (stack, height), _ = jax.lax.scan(run, start, (bits, pushes, valid))
    return reversed_prefix(stack, height).at[height].set(2)
