"""Convolutions over the sequence, as an encoder for any task."""

import flax.linen as nn
import jax.numpy as jnp

import lenmem


class Convolutions(nn.Module):
    """Each layer reads one position to either side."""

    layers: int = 4

    @nn.compact
    def __call__(self, states, mask):  # [B, N, d], bool[B, N] -> [B, N, d]
        for _ in range(self.layers):
            states = jnp.where(mask[..., None], states, 0)  # padding reads as zeros
            states = states + nn.relu(nn.Conv(states.shape[-1], (3,))(states))
        return states


task = lenmem.tasks.make("reverse", train_lengths=(2, 8))
model = lenmem.nn.Completion(Convolutions(), embedding_size=64)
experiment = lenmem.Experiment(task, model, lenmem.Training(steps=1000))
