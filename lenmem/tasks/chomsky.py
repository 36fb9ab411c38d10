"""The tasks of Delétang et al., "Neural Networks and the Chomsky Hierarchy" (ICLR 2023, arXiv 2207.02098).

The paper has fifteen. Six more are in the first versions of its code and have no printed scores: `compare_occurrence`,
`interlocked_pairing`, `equal_repeats`, `missing_palindrome`, `divide_by_two`, `nondeterministic_stack_manipulation`.

Trained on lengths 1 to 40, tested on lengths 41 to 500; a length counts input symbols. An answer is a single symbol, or
a string whose number of slots follows from the length of the input. Where the answer itself may be shorter, it ends
with an end symbol and is padded with 0. As in the published code, padding is trained but not scored.

The paper's score is the token accuracy, averaged over examples and then over the lengths 41 to 500
(`LengthCurve.mean_beyond`). Where the paper and its code differ, the task follows the paper and says so.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import Lengths, at_least
from lenmem.tasks.base import Task, masked_loss
from lenmem.tasks.lantm import add_digits, reversed_prefix
from lenmem.types import Batch, Example, Spec


@dataclasses.dataclass(frozen=True)
class ChomskyTask(Task):
    """Base class. Subclasses define `pair`, and `answer_slots` if the answer is a string."""

    unit: ClassVar[str] = "symbols"
    ends: ClassVar[bool] = False
    """The answer ends with an end symbol, the last class, before its padding."""
    same_symbols: ClassVar[bool] = True
    """The answer consists of symbols of the input."""

    train_lengths: Lengths = (1, 40)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = (41, 500)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest test length, both included."""

    @property
    def symbols(self) -> int:
        """Number of input symbols."""
        return 2

    @property
    def classes(self) -> int:
        """Number of answer symbols, with the end symbol if there is one."""
        return 2

    @property
    def spec(self) -> Spec:
        """Symbols in, classes out. Chance is one over the number of symbols, without the end symbol."""
        return Spec(
            vocabulary=self.symbols,
            output_size=self.classes,
            shared_ids=self.same_symbols,
            chance=1 / (self.classes - self.ends),
            shapes=self.shapes,
        )

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """At most 8 training lengths and 24 test lengths, evenly spaced."""
        return tuple(dict.fromkeys((*_spaced(*self.train_lengths, 8), *_spaced(*self.test_lengths, 24))))

    def answer_slots(self, length: Any) -> Any:
        """Answer slots for an input of `length` symbols, which may be traced."""
        return 1

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): input symbols and answer slots."""
        return capacity, self.answer_slots(capacity)

    def pair(self, key: jax.Array, length: jax.Array | int, capacity: int) -> tuple[jax.Array, jax.Array]:
        """Input and answer, of the static `shapes(capacity)`. Entries beyond their lengths are arbitrary."""
        raise NotImplementedError

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0. With an end symbol, slots up to the first one are scored."""
        inputs, answer = self.pair(key, length, capacity)
        input_mask = jnp.arange(inputs.shape[0]) < self.input_size(length)
        slots = jnp.arange(answer.shape[0])
        target_mask = slots < self.answer_slots(length)
        scored = target_mask
        if self.ends:
            end = jnp.argmax(answer == self.classes - 1)
            scored, answer = slots <= end, jnp.where(slots <= end, answer, 0)
        return Example(
            jnp.where(input_mask, inputs, 0), input_mask, jnp.where(target_mask, answer, 0), target_mask, scored
        )

    def input_size(self, length: Any) -> Any:
        """Input symbols of an example of this length."""
        return length

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Mean cross-entropy per answer slot, padding after the end symbol included, as in the published code."""
        return masked_loss(self.spec.outputs, outputs, batch._replace(score_mask=batch.target_mask))

    def string(self, key: jax.Array, *shape: int) -> jax.Array:
        """Uniform symbols."""
        return jax.random.randint(key, shape, 0, self.symbols, jnp.int32)


def _spaced(first: int, last: int, most: int) -> list[int]:
    """At most `most` integers from `first` to `last`, both included, evenly spaced."""
    count = min(most, last - first + 1)
    return [first + round(i * (last - first) / max(count - 1, 1)) for i in range(count)]


def _single(symbol: jax.Array) -> jax.Array:
    """The answer of one symbol."""
    return symbol[None].astype(jnp.int32)


# Regular --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EvenPairs(ChomskyTask):
    """Bits -> 0 if the number of pairs 01 and 10 is even, else 1. Equivalently, whether the two ends differ."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, _single(bits[0] ^ bits[jnp.maximum(length - 1, 0)])


@dataclasses.dataclass(frozen=True)
class ParityCheck(ChomskyTask):
    """Bits -> the parity of their sum."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        return bits, _single(jnp.sum(jnp.where(jnp.arange(capacity) < length, bits, 0)) % 2)


@dataclasses.dataclass(frozen=True)
class CycleNavigation(ChomskyTask):
    """Moves on a cycle, from position 0 -> the last position. Symbols 0, 1, 2: one back, stay, one forward."""

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
        return moves, _single(jnp.sum(steps) % self.positions)


@dataclasses.dataclass(frozen=True)
class _Arithmetic(ChomskyTask):
    """Numbers 0 .. m - 1 and operators; the answer is a number modulo m."""

    modulus: Annotated[int, at_least(2)] = 5
    """m: results are taken modulo this number."""
    operators: ClassVar[str] = "+-*"
    """The first of the signs: they join two numbers."""
    signs: ClassVar[str] = ""
    """The symbols after the numbers."""

    @property
    def symbols(self) -> int:
        return self.modulus + len(self.signs)

    @property
    def classes(self) -> int:
        return self.modulus

    @property
    def input_names(self) -> tuple[str, ...]:
        """Numbers and signs as they are written."""
        return (*map(str, range(self.modulus)), *self.signs)

    def symbol(self, sign: str) -> int:
        """The id of a sign."""
        return self.modulus + self.signs.index(sign)


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(_Arithmetic):
    """n op n op .. n with + - * -> the value modulo m; products come before sums. An even length is one shorter."""

    signs: ClassVar[str] = "+-*"

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
        return tokens, _single((total + term) % self.modulus)


# Deterministic context-free -------------------------------------------------------------------------------------------


def _expression(
    task: _Arithmetic, key: jax.Array, length: jax.Array | int, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """(symbols [capacity], value modulo m) of a random expression of `length` symbols, at least 1.

    As in the published code: of 1 to 4 symbols it is n, -n, (n) or (-n); a longer one is (left op right) with a left
    part of a uniform length. What is still to be written is on a stack: the length of an expression, or, below zero, a
    sign. The value is computed on the way, with a stack of unfinished brackets: the operator that waits and the value
    before it.
    """
    numbers, chosen, halves = jax.random.split(key, 3)
    numbers = jax.random.randint(numbers, (capacity,), 0, task.modulus)
    chosen = task.modulus + jax.random.randint(chosen, (capacity,), 0, len(task.operators))
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
        left = jnp.where(item < 5, item - 2, 1 + (half * (item - 4)).astype(jnp.int32))
        token = jnp.where(item > 2, opened, jnp.where(item == 2, minus, jnp.where(item == 1, number, -item)))
        # The next items, the first on top: of (left op right), of (left), of a minus sign, or nothing more.
        rest = jnp.where(
            item > 4,
            jnp.stack([-jnp.asarray(closed), item - left - 3, -operator, left]),
            jnp.stack([jnp.where(item == 2, 1, -closed), left, left, left]),
        )
        added = jnp.where(item > 4, 3, jnp.where(item > 2, 1, jnp.where(item == 2, 0, -1)))
        pending = jax.lax.dynamic_update_slice(pending, rest, (top,))

        is_number, is_closed = token < task.modulus, token == closed
        below = jnp.where(is_closed, depth - 1, depth)
        value = jnp.where(is_closed, values[depth], jnp.where(negative, -token, token))
        value = joined(waiting[below], values[below], value)
        values = values.at[below].set(jnp.where(is_number | is_closed, value, values[below]))
        values = values.at[depth + 1].set(jnp.where(token == opened, 0, values[depth + 1]))
        operates = (token >= task.modulus) & (token < opened) & (item != 2)
        waiting = waiting.at[below].set(jnp.where(operates, token, waiting[below]))
        waiting = waiting.at[depth + 1].set(jnp.where(token == opened, 0, waiting[depth + 1]))
        depth = below + (token == opened)
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
class ModularArithmeticBrackets(_Arithmetic):
    """An expression with + - *, brackets and unary minus -> its value modulo m."""

    signs: ClassVar[str] = "+-*()"

    def pair(self, key, length, capacity):
        tokens, value = _expression(self, key, length, capacity)
        return tokens, _single(value)


@dataclasses.dataclass(frozen=True)
class SolveEquation(_Arithmetic):
    """An expression with + and - in which one number is x, then = and its value -> x.

    Without products, which could leave x undetermined. Inputs shorter than 3 are zeros, and the answer is 0.
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
        return jnp.where(short, 0, tokens), _single(jnp.where(short, 0, answer))


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


def _stack_after(bits: jax.Array, pushes: jax.Array, valid: jax.Array) -> jax.Array:
    """The stack after pushing `bits` where `pushes`, and pops elsewhere, top first, and 2, its end: int[N + 1]."""

    def run(state, xs):
        stack, height = state
        bit, push, valid = xs
        stack = stack.at[height].set(jnp.where(valid & push, bit, stack[height]))
        height = height + jnp.where(valid, jnp.where(push, 1, -jnp.minimum(height, 1)), 0)
        return (stack, height), None

    start = jnp.zeros(bits.shape[0] + 1, bits.dtype), jnp.zeros((), jnp.int32)
    (stack, height), _ = jax.lax.scan(run, start, (bits, pushes, valid))
    return reversed_prefix(stack, height).at[height].set(2)


@dataclasses.dataclass(frozen=True)
class CompareOccurrence(ChomskyTask):
    """Bits -> 1 if there are at least as many ones as zeros, else 0. As in the published code, a tie is a 1."""

    same_symbols: ClassVar[bool] = False

    def pair(self, key, length, capacity):
        bits = self.string(key, capacity)
        ones = jnp.sum(jnp.where(jnp.arange(capacity) < length, bits, 0))
        return bits, _single(2 * ones >= length)


# Nondeterministic context-free ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EqualRepeats(ChomskyTask):
    """0^l 1^m 0^n -> which two of the three are equal. 0: l = m, also if all are; 1: m = n; 2: l = n.

    The answer is uniform, and so is the number k = 1 .. length / 2 that occurs twice; the third may be 0. Length 1 is
    a zero, answered by 0.
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
        bits = jnp.where(short, 0, (places >= first) & (places < first + ones))
        return bits.astype(jnp.int32), _single(jnp.where(short | (rest == count), 0, kind))


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
    """A palindrome with one symbol hidden -> that symbol. Nothing determines a symbol that is hidden in the middle."""

    @property
    def symbols(self) -> int:
        return 3

    @property
    def input_names(self) -> tuple[str, ...]:
        """Bits and the hidden symbol."""
        return ("0", "1", "?")

    def ceiling_at(self, length: int) -> float:
        """The middle of an odd length is hidden once in `length` times, and then guessed."""
        return 1 - 0.5 / length if length % 2 else 1.0

    def pair(self, key, length, capacity):
        word, place = jax.random.split(key)
        places = jnp.arange(capacity)
        bits = jax.random.randint(word, (capacity,), 0, 2, jnp.int32)
        bits = bits[jnp.clip(jnp.minimum(places, length - 1 - places), 0)]
        hidden = jax.random.randint(place, (), 0, length)
        return jnp.where(places == hidden, 2, bits), _single(bits[hidden])


@dataclasses.dataclass(frozen=True)
class NondeterministicStackManipulation(ChomskyTask):
    """Bits of a stack, bottom first, then commands, one of which is hidden, a bar, and the hidden command -> the stack
    afterwards, top first, with an end symbol.

    The commands are pop and push, which pushes a 1. A pop of an empty stack does nothing, as in the examples of the
    published code, which itself keeps the last symbol. Lengths up to 3 are too short to hide a command, and have no
    bar.
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


# Context-sensitive ----------------------------------------------------------------------------------------------------


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
    """a^n b^m -> a^n b^(m + n) a^m: the string, then the string with 0 and 1 exchanged. Length 1 has no b."""

    def answer_slots(self, length):
        return 2 * length

    def pair(self, key, length, capacity):
        first, count = jax.random.split(key)
        first = jax.random.randint(first, (), 0, 2, jnp.int32)
        count = jax.random.randint(count, (), 1, jnp.maximum(length, 2))
        places = jnp.arange(2 * capacity)
        flipped = places >= length
        bits = first ^ (places - jnp.where(flipped, length, 0) >= count) ^ flipped
        return bits[:capacity], bits


@dataclasses.dataclass(frozen=True)
class MissingDuplicate(ChomskyTask):
    """w w with one symbol hidden -> that symbol. An odd length ends with a blank; length 1 is a 1, answered by 1."""

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
        return jnp.where(short, 1, tokens), _single(jnp.where(short, 1, bits[hidden % half]))


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

    The numbers share the length uniformly. Inputs shorter than 3 are zeros, and so is the answer.
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


def _positive(key: jax.Array, size: jax.Array | int, capacity: int) -> jax.Array:
    """A number from 1 to 2^size - 1, uniform: zeros are drawn again up to 7 times, then all bits are 1."""
    inside = jnp.arange(capacity) < size
    drawn = jnp.where(inside, jax.random.randint(key, (capacity, 8), 0, 2).T, 0)
    found = jnp.any(drawn > 0, axis=-1)
    return jnp.where(jnp.any(found), drawn[jnp.argmax(found)], inside.astype(drawn.dtype))


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
        totals = jnp.convolve(first, second, precision="highest")[: first.shape[0]].astype(first.dtype)
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
            decided = jnp.where(rest == trial, 0, 2 * places + (rest < trial))
            borrow = jax.lax.cummax(decided) % 2
            enough = borrow[-1] == 0
            left = (rest - trial - jnp.pad(borrow, (1, 0))[:-1]) % 2
            root = jnp.concatenate([enough[None].astype(root.dtype), root[:-1]])
            return (jnp.where(enough, left, rest), root), enough

        start = jnp.zeros(size, number.dtype), jnp.zeros(size, number.dtype)
        _, bits = jax.lax.scan(digit, start, jnp.arange(slots))
        return number, bits.astype(jnp.int32)
