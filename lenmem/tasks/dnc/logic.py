"""Boolean formulas."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.tasks.dnc.base import DncTask
from lenmem.types import Example, Spec

TRUTH = {"and": "&", "or": "|", "implies": ">", "equals": "="}
"""The symbols of the binary operators."""
_TABLES = {"and": (0, 0, 0, 1), "or": (0, 1, 1, 1), "implies": (1, 1, 0, 1), "equals": (1, 0, 0, 1)}
"""Value for the operands FF, FT, TF, TT."""
FALSE, TRUE, NOT, OPEN, CLOSE, FLAG = range(6)
"""Token ids; the binary operators follow."""


@dataclasses.dataclass(frozen=True)
class Logic(DncTask):
    """A boolean formula -> its value. Length: tokens of the formula.

    A formula is `F`, `T`, `!` and a formula, or `(` formula operator formula `)`. Negation has no parentheses: with
    them there would be no formula of 2, 3 or 6 tokens, but the paper uses all lengths. Without them, there are formulas
    of both values at every length. Both values are equally likely; the formula is uniform for its value and length.
    """

    operators: tuple[Literal["and", "or", "implies", "equals"], ...] = ("and", "or")
    """The binary operators, besides negation. Our choice: our copy of the paper lacks its list."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.operators or len(set(self.operators)) < len(self.operators):
            raise ValueError(f"operators are {self.operators}; they must be one or more, each once")

    @property
    def spec(self) -> Spec:
        """Tokens, including the flag; the answer is `F` or `T`."""
        return Spec(
            vocabulary=len(self.input_names),
            output_size=2,
            shared_ids=True,
            delimited=True,
            chance=0.5,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The values, negation, brackets, the flag `?`, and the binary operators."""
        return ("F", "T", "!", "(", ")", "?", *(TRUTH[name] for name in self.operators))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the formula with the flag, and its value."""
        return capacity + 1, 1

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        value_key, formula_key = jax.random.split(key)
        value = jax.random.bernoulli(value_key).astype(jnp.int32)
        formula = self.formula(formula_key, value, length, capacity)
        step = jnp.arange(capacity + 1)
        inputs = jnp.where(step < length, jnp.pad(formula, (0, 1)), jnp.where(step == length, FLAG, 0))
        one = jnp.ones(1, bool)
        return Example(inputs, step <= length, value[None], one, one)

    def formula(self, key: jax.Array, value: jax.Array, length: jax.Array | int, capacity: int) -> jax.Array:
        """int[capacity]: a uniform formula with exactly `length` tokens and this value.

        The first tokens of subformulas are expanded from left to right. Each subformula has a known length and value,
        and its construction is drawn in proportion to the number of formulas with that construction. O(capacity) per
        token.
        """
        counts, ways = (jnp.asarray(table, jnp.float32) for table in formula_counts(self.operators, capacity))
        place = jnp.arange(capacity)

        def expand(at, state):
            tokens, sizes, values = state
            size, value = sizes[at], values[at]
            way_key, split_key = jax.random.split(jax.random.fold_in(key, at))
            way = jax.random.categorical(way_key, ways[size, value]).astype(jnp.int32)
            operator, left, right = (way - 1) // 4, (way - 1) % 4 // 2, (way - 1) % 2
            rest = size - 3 - place
            split = jnp.where(rest > 0, counts[place, left] + counts[jnp.maximum(rest, 0), right], -jnp.inf)
            split = jax.random.categorical(split_key, split).astype(jnp.int32)

            negated, paired = (size > 1) & (way == 0), (size > 1) & (way > 0)
            first, second = at + 1, jnp.where(paired, at + 2 + split, capacity)
            starts = jnp.where(size == 1, value, jnp.where(negated, NOT, OPEN))
            tokens = tokens.at[jnp.where(size > 0, at, capacity)].set(starts, mode="drop")
            tokens = tokens.at[jnp.where(paired, second - 1, capacity)].set(FLAG + 1 + operator, mode="drop")
            tokens = tokens.at[jnp.where(paired, at + size - 1, capacity)].set(CLOSE, mode="drop")
            at_first = jnp.where(size > 1, first, capacity)
            sizes = sizes.at[at_first].set(jnp.where(negated, size - 1, split), mode="drop")
            sizes = sizes.at[second].set(size - 3 - split, mode="drop")
            values = values.at[at_first].set(jnp.where(negated, 1 - value, left), mode="drop")
            return tokens, sizes, values.at[second].set(right, mode="drop")

        nothing = jnp.zeros(capacity, jnp.int32)
        start = (nothing, nothing.at[0].set(length), nothing.at[0].set(value))
        return jax.lax.fori_loop(0, capacity, expand, start)[0]


@functools.cache
def formula_counts(operators: tuple[str, ...], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the number of formulas with n tokens and value v, in total and for each construction.

    Returns float64[longest + 1, 2] and float64[longest + 1, 2, 1 + 4 * operators]. The first construction is negation,
    followed by four for each operator: the values FF, FT, TF, TT of its operands. -inf if there is no formula.
    O(longest^2).
    """
    counts = np.full((longest + 1, 2), -np.inf)
    ways = np.full((longest + 1, 2, 1 + 4 * len(operators)), -np.inf)
    truth = np.ravel([_TABLES[name] for name in operators])
    for n in range(1, longest + 1):
        if n == 1:
            counts[1] = 0
            continue
        ways[n, :, 0] = counts[n - 1, ::-1]
        if n >= 5:
            # [splits, 4]: operands of 1 .. n - 4 and n - 4 .. 1 tokens, by their values.
            pairs = (counts[1 : n - 3, :, None] + counts[n - 4 : 0 : -1, None, :]).reshape(-1, 4)
            together = np.tile(np.logaddexp.reduce(pairs, axis=0), len(operators))
            for value in (0, 1):
                ways[n, value, 1:] = np.where(truth == value, together, -np.inf)
        counts[n] = np.logaddexp.reduce(ways[n], axis=-1)
    return counts, ways
