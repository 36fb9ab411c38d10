"""A task for models that answer with columns of their input."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from lenmem.tasks.base import Task
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class Runs(Task):
    """`5 | 7 2 5 5 1`: the first and the last column that hold the token before the separator: 4, 5.

    Length: tokens behind the separator. Each of these is another one, except in the run.
    """

    vocabulary: int = 8
    longest: int = 16
    separator: int = 0

    @property
    def spec(self) -> Spec:
        """Tokens, the last of which may be the separator; columns."""
        return Spec(
            vocabulary=self.vocabulary,
            output_size=self.longest,
            answers_are_columns=True,
            separator=self.separator,
            shapes=self.shapes,
        )

    @property
    def train_lengths(self) -> tuple[int, int]:
        """(1, 5)."""
        return 1, 5

    @property
    def test_lengths(self) -> tuple[int, int]:
        """(6, 14)."""
        return 6, self.longest - 2

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M)."""
        return capacity + 2, 2

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """The run is anywhere, with one token or more."""
        of_ends, of_asked, of_other = jax.random.split(key, 3)
        first, last = jnp.sort(jax.random.randint(of_ends, (2,), 0, length))
        asked = (self.separator + jax.random.randint(of_asked, (), 1, self.vocabulary)) % self.vocabulary
        # Tokens of positions are drawn one by one, so more capacity does not change them.
        keys = jax.vmap(lambda i: jax.random.fold_in(of_other, i))(jnp.arange(capacity))
        more = jax.vmap(lambda k: jax.random.randint(k, (), 1, self.vocabulary - 1))(keys)
        others = (asked + more) % self.vocabulary
        others = jnp.where(others == self.separator, (asked + self.vocabulary - 1) % self.vocabulary, others)
        others = jnp.where(others == self.separator, (asked + 1) % self.vocabulary, others)
        at = jnp.arange(capacity)
        text = jnp.where((at >= first) & (at <= last), asked, others)
        inputs = jnp.concatenate([asked[None], jnp.full((1,), self.separator), jnp.where(at < length, text, 0)])
        ends = jnp.ones(2, bool)
        return Example(inputs, jnp.arange(capacity + 2) < length + 2, jnp.stack([first, last]) + 2, ends, ends)
