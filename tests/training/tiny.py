"""The smallest experiment: 4 tokens, 4 units, a few steps."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import Evaluation, Experiment, Optimizer, Training, models
from lenmem.tasks.lantm import Copy
from lenmem.types import Spec

TASK = Copy(vocabulary=4, train_lengths=(1, 3))
MODEL = models.make("gru", hidden_size=4, embedding_size=3)
SGD = Optimizer("sgd", learning_rate=0.1)
"""For two programs that compute the same: Adam makes a whole step of a gradient that is all rounding."""


def experiment(model: nn.Module = MODEL, **training: Any) -> Experiment:
    """Two seeds and 6 steps by default."""
    fields = {"steps": 6, "seeds": 2, "batch_size": 4, "log_every": 2, "checkpoint_every": 2} | training
    fields.setdefault("optimizer", Optimizer("adam", learning_rate=1e-2))
    return Experiment(TASK, model, Training(**fields), Evaluation(lengths=(2, 5), samples=4, test_examples=8))


class Bag(nn.Module):
    """Answers from the set of tokens, without their order. Compiles in half the time of a recurrent model."""

    width: int = 4
    spec: Spec | None = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        assert self.spec is not None
        states = nn.Embed(self.spec.vocabulary, self.width)(jnp.where(input_mask, inputs, 0)) * input_mask[..., None]
        answer = nn.Dense(self.spec.output_size)(jnp.tanh(states.sum(axis=1)))
        return jnp.broadcast_to(answer[:, None], (*target_mask.shape, self.spec.output_size))


class Poisoned(nn.Module):
    """A bag of tokens whose answer becomes NaN when its bias has passed `limit`."""

    output_size: int = 5
    limit: float = 0.1

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        bias = self.param("bias", nn.initializers.normal(0.05), (self.output_size,))
        outputs = jnp.broadcast_to(bias, (*target_mask.shape, self.output_size))
        return jnp.where(jnp.max(jnp.abs(bias)) > self.limit, jnp.nan, outputs)


class Cusp(nn.Module):
    """Always the same answer, with a gradient that is NaN."""

    output_size: int = 5

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        bias = self.param("bias", nn.initializers.ones, (self.output_size,))
        return jnp.broadcast_to(jnp.sqrt(0 * bias), (*target_mask.shape, self.output_size))


class Telling(nn.Module):
    """Always the same answer. The norm of its gradient tells what it sees in training."""

    what: Literal["noise", "length"] = "noise"
    """The difference of the noise of two streams, or the mean length of the inputs."""
    output_size: int = 5

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        weight = self.param("weight", nn.initializers.ones, ())
        if train and self.what == "noise":
            self.sow("losses", "told", weight * (self.noise("dropout") - self.noise("gate")))
        if train and self.what == "length":
            self.sow("losses", "told", weight * jnp.mean(jnp.sum(input_mask, axis=1)))
        return jnp.zeros((*target_mask.shape, self.output_size))

    def noise(self, stream: str) -> jax.Array:
        """A number from a stream."""
        return jax.random.normal(self.make_rng(stream))


def with_steps(setup: Experiment, steps: int) -> Experiment:
    """The same experiment, longer or shorter."""
    return dataclasses.replace(setup, training=dataclasses.replace(setup.training, steps=steps))
