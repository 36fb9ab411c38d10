"""A network from scratch: a bag of tokens, and a layer for every answer slot."""

import flax.linen as nn
import jax.numpy as jnp

import lenmem


class MyModel(nn.Module):
    spec: lenmem.Spec | None = None  # the experiment fills it in: vocabulary, output_size, ...

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        states = nn.Embed(self.spec.vocabulary, 64)(inputs)  # [B, N, 64]
        states = jnp.where(input_mask[..., None], states, 0)  # padding holds anything, which may become NaN
        summary = jnp.sum(states, axis=1)
        slots = nn.Embed(512, 64)(jnp.arange(target_mask.shape[1]))  # [M, 64]
        hidden = nn.relu(nn.Dense(256)(summary[:, None] + slots))
        return nn.Dense(self.spec.output_size)(hidden)  # [B, M, K]


task = lenmem.tasks.make("copy", train_lengths=(2, 16))
experiment = lenmem.Experiment(task, MyModel(), lenmem.Training(steps=1000))
