"""A task and a model with known accuracy: the model copies exactly the first `reach` tokens correctly."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem.tasks.base import Task
from lenmem.types import Batch, Example, Spec

VOCABULARY = 8

traced: list[tuple[int, ...]] = []
"""Shapes of the inputs of every time the oracle was traced."""


@dataclasses.dataclass(frozen=True)
class Copy(Task):
    """Repeat the input."""

    @property
    def train_lengths(self) -> tuple[int, int]:
        return 2, 8

    @property
    def test_lengths(self) -> tuple[int, int]:
        return 9, 16

    @property
    def spec(self) -> Spec:
        return Spec(vocabulary=VOCABULARY, output_size=VOCABULARY)

    def shapes(self, capacity: int) -> tuple[int, int]:
        return capacity, capacity

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        # One draw, distributed over the positions by a hash: compiles fast, and more capacity changes nothing.
        spread = jax.random.bits(key) + jnp.arange(capacity, dtype=jnp.uint32) * jnp.uint32(2654435761)
        tokens = ((spread >> 16) % VOCABULARY).astype(jnp.int32)
        mask = jnp.arange(capacity) < length
        return Batch(tokens, mask, tokens, mask, mask)


class Oracle(nn.Module):
    """Right for tokens before `reach` (a parameter), and off by one after it."""

    spec: Spec | None = None
    options: object = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        assert targets is None
        assert not train
        traced.append(inputs.shape)
        reach = self.param("reach", nn.initializers.zeros, ())
        wrong = jnp.arange(inputs.shape[1]) >= reach
        return jax.nn.one_hot((inputs + wrong) % VOCABULARY, VOCABULARY)


class Favourite(nn.Module):
    """Answers the same token everywhere, so its accuracy depends on the examples drawn."""

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        bias = self.param("bias", nn.initializers.zeros, (VOCABULARY,))
        return jnp.broadcast_to(bias, (*inputs.shape, VOCABULARY))


def reaches(*values: float) -> dict[str, jax.Array]:
    """Parameters of one oracle per value."""
    return {"reach": jnp.asarray(values, dtype=jnp.float32)}


def favourites(*tokens: int) -> dict[str, jax.Array]:
    """Parameters with one favourite per token."""
    return {"bias": jnp.asarray(np.eye(VOCABULARY, dtype=np.float32)[list(tokens)])}
