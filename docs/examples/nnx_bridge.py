"""Geometric attention, a Linen module of lenmem, inside an NNX model."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from lenmem.nn.ndr import GeometricAttention


class Router(nnx.Module):
    """An embedding and a head in NNX around one attention layer of lenmem."""

    def __init__(self, rngs):
        states, mask = jnp.zeros((1, 4, 32)), jnp.ones((1, 4), bool)
        self.embedding = nnx.Embed(10, 32, rngs=rngs)
        self.attention = nnx.bridge.ToNNX(GeometricAttention(features=32, heads=2), rngs=rngs).lazy_init(states, mask)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, tokens, mask):
        states = self.embedding(tokens)
        return self.head(states + self.attention(states, mask))


@nnx.jit
def train_step(model, optimizer, tokens, mask):
    """One training step: predict the left neighbour."""

    def loss(model):
        logits = model(tokens, mask)[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, :-1])
        return jnp.sum(losses * mask[:, 1:]) / jnp.sum(mask[:, 1:])

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


model = Router(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
tokens = jax.random.randint(jax.random.key(1), (16, 12), 0, 10)
mask = jnp.arange(12) < jnp.arange(1, 17)[:, None]  # rows of 1 to 12 tokens
losses = [float(train_step(model, optimizer, tokens, mask)) for _ in range(20)]
