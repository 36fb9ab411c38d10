"""Multi-query associative recall (Arora et al., "Zoology", ICLR 2024, arXiv 2312.04927).

    k1 v1 k2 v2 .. kD vD . . k2 . . . k1 . ..   ->   v2 at k2, v1 at k1

Pairs of a key and its value are followed by each key once more, as a query; the answer slot of a query is at its
position. As published, the positions of the queries follow a power law, so most of them are close to the pairs.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from lenmem.fields import Lengths, PositiveFloat, at_least
from lenmem.tasks.base import Task
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Task):
    """D pairs in an input of `spacing` D tokens. Length: D pairs.

    Token 0 is the filler, 1 .. V / 2 - 1 are keys and V / 2 .. V - 1 are values. Keys are distinct, and so are values.
    """

    unit: ClassVar[str] = "pairs"

    vocabulary: Annotated[int, at_least(4)] = 8192
    """V: number of tokens."""
    train_lengths: Lengths = (1, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest number of pairs in training, both included."""
    test_lengths: Lengths = (17, 64)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest number of pairs in the test, both included."""
    spacing: Annotated[int, at_least(4)] = 16
    """Input tokens for each pair. In the paper 64 tokens have 4 pairs, 128 have 8, and 256 have 16."""
    exponent: PositiveFloat = 0.01
    """a: the probability of place g = 1, 2, .. of a query is proportional to g^(a - 1). 1: uniform."""
    random_fillers: bool = False
    """Fillers are random tokens of the whole vocabulary. They are not scored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_length(max(self.train_lengths[1], self.test_lengths[1]))

    def check_length(self, length: int) -> None:
        keys = self.vocabulary // 2 - 1
        if length > keys:
            raise ValueError(f"a vocabulary of {self.vocabulary} tokens has {keys} keys, too few for {length} pairs")

    @property
    def spec(self) -> Spec:
        """Tokens in, a token out at each position. Only the outputs at queries are scored."""
        return Spec(
            vocabulary=self.vocabulary,
            output_size=self.vocabulary,
            shared_ids=True,
            alignment="aligned",
            causal=True,
            chance=1 / (self.vocabulary - self.vocabulary // 2),
            shapes=self.shapes,
        )

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): an answer slot for each token."""
        return self.spacing * capacity, self.spacing * capacity

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding and targets that are not scored are 0."""
        self.check_length(capacity)
        of_keys, of_values, of_places, of_fillers = jax.random.split(key, 4)
        half, size = self.vocabulary // 2, self.spacing * capacity
        keys = 1 + jax.random.permutation(of_keys, half - 1)[:capacity]
        values = half + jax.random.permutation(of_values, self.vocabulary - half)[:capacity]
        pairs = jnp.arange(capacity)

        # Each place after the pairs has two tokens. Sorting log-probabilities with Gumbel noise draws distinct places
        # in proportion to their probabilities.
        count = (self.spacing - 2) * capacity // 2
        places = jnp.arange(count)
        noise = jax.random.gumbel(of_places, (count,)) + (self.exponent - 1) * jnp.log(1.0 + places.astype(jnp.float32))
        order = jnp.argsort(jnp.where(places < (self.spacing - 2) * length // 2, -noise, jnp.inf))[:capacity]
        asked = jnp.where(pairs < length, 2 * length + 2 * order, size)

        mask = jnp.arange(size) < self.spacing * length
        fillers = jax.random.randint(of_fillers, (size,), 0, self.vocabulary, jnp.int32)
        tokens = fillers if self.random_fillers else jnp.zeros(size, jnp.int32)
        shown = jnp.where(pairs < length, 2 * pairs, size)
        tokens = tokens.at[shown].set(keys, mode="drop").at[shown + 1].set(values, mode="drop")
        tokens = tokens.at[asked].set(keys, mode="drop")
        targets = jnp.zeros(size, jnp.int32).at[asked].set(values, mode="drop")
        return Example(jnp.where(mask, tokens, 0), mask, targets, mask, targets > 0)
