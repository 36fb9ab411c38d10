"""The base classes of the Chomsky hierarchy tasks: symbols in, one symbol or a string out."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import Lengths, between
from lenmem.tasks.base import Task, evenly_spaced, masked_loss
from lenmem.types import Batch, Example, Spec


@dataclasses.dataclass(frozen=True)
class ChomskyTask(Task):
    """Base class. Subclasses define `pair`, and `answer_slots` if the answer is a string."""

    unit: ClassVar[str] = "symbols"
    ends: ClassVar[bool] = False
    """The answer ends with an end symbol, the last class, before its padding."""
    same_symbols: ClassVar[bool] = True
    """The answer consists of input symbols."""

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
        """Symbols in, classes out. Chance is one over the number of symbols, without the end symbol, as published. The
        most frequent answer can be more frequent: 0.29 for modular arithmetic with brackets, 0.41 for equal repeats."""
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
        (first, last), (shortest, longest) = self.train_lengths, self.test_lengths
        trained, tested = range(first, last + 1), range(shortest, longest + 1)
        return tuple(dict.fromkeys((*evenly_spaced(trained, 8), *evenly_spaced(tested, 24))))

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


@dataclasses.dataclass(frozen=True)
class ModularTask(ChomskyTask):
    """Numbers 0 .. m - 1 and operators; the answer is a number modulo m."""

    modulus: Annotated[int, between(2, 46_341)] = 5
    """m: results are taken modulo this number. Products must be below 2^31."""
    operators: ClassVar[str] = "+-*"
    """The binary operators. `signs` begins with them."""
    signs: ClassVar[str] = ""
    """The symbols that are not numbers. Their ids follow those of the numbers."""

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


def single(symbol: jax.Array) -> jax.Array:
    """A symbol as an answer of one slot."""
    return symbol[None].astype(jnp.int32)
