"""The recurrent networks of the Chomsky-hierarchy study: Elman.

Delétang et al., "Neural Networks and the Chomsky Hierarchy", ICLR 2023 (arXiv 2207.02098), with its published code. Its
Elman network (Elman 1990) has rectified units instead of tanh:

    h = relu(W_x x + b_x + W_h h + b_h)

with h [B, H] from zero. Inputs are one-hot, a linear head answers from relu(h), weights start as normals of standard
deviation 1/sqrt(fan-in) cut at two of them, biases as zero. Cost per step: O(H (X + H)) for inputs of width X.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.module import Part
from lenmem.types import Dtype, Step


def truncated(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """N(0, 1 / fan_in), cut at two standard deviations."""
    return nn.initializers.truncated_normal(shape[0] ** -0.5)(key, shape, dtype)


class ElmanCell(Part):
    """One step of a rectified Elman network. The carry is h [B, hidden_size], and so is the output."""

    hidden_size: int = 256

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> jax.Array:
        """Zeros."""
        return jnp.zeros((*batch_shape, self.hidden_size), self.dtype or self.param_dtype)

    @nn.compact
    def __call__(self, carry: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """(h, h)."""

        def linear(name):
            return nn.Dense(self.hidden_size, kernel_init=truncated, **self.dtypes, name=name)

        hidden = nn.relu(linear("input")(step.inputs) + linear("hidden")(carry))
        return hidden, hidden


class Elman(FlatModel):
    """A rectified Elman network. It answers at each input if the task is aligned, else after the input."""

    hidden_size: PositiveInt = 256
    """Width of the hidden state."""
    embedding_size: PositiveInt | None = None
    """Width of the input embedding; None: the input itself, tokens one-hot."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        return recurrent(ElmanCell(self.hidden_size, **self.dtypes, name="cell"), self)
