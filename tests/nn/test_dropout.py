"""`Dropout`: the form for a TPU drops what Flax's does."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.dropout import Dropout
from lenmem.placement import on_platform

X = jnp.arange(1, 121.0).reshape(2, 3, 20)


class Twice(nn.Module):
    """Two modules, with keys of their own."""

    kind: type[nn.Dropout]
    rate: float = 0.4

    @nn.compact
    def __call__(self, x, deterministic=False):
        return self.kind(self.rate)(self.kind(self.rate, deterministic=deterministic)(x), deterministic=deterministic)


def results(module, deterministic=False):
    def value(x, key):
        return module.apply({}, x, deterministic, rngs={"dropout": key})

    keys = jax.random.split(jax.random.key(0), 2)
    return jax.jit(jax.vmap(jax.value_and_grad(lambda x, key: jnp.sum(value(x, key) ** 2))))(X, keys)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_values_and_gradients_are_those_of_flax(platform, rate):
    with on_platform(platform):
        ours = results(Twice(Dropout, rate))
        off = results(Twice(Dropout, rate), deterministic=True)
    jax.tree.map(np.testing.assert_array_equal, ours, results(Twice(nn.Dropout, rate)))
    jax.tree.map(np.testing.assert_array_equal, off, results(Twice(nn.Dropout, 0.0)))


def test_the_mask_is_stored_on_a_tpu_alone():
    def text():
        return jax.jit(lambda x: Twice(Dropout).apply({}, x, rngs={"dropout": jax.random.key(0)})).lower(X).as_text()

    assert "optimization_barrier" not in text()
    with on_platform("tpu"):
        assert "optimization_barrier" in text()
