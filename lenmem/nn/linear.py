"""Linear maps with the initialisations of the papers' Torch code."""

from __future__ import annotations

from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from lenmem.nn.module import Part
from lenmem.types import Dtype

Init = Literal["fan_in", "uniform"]


def uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound)."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32, **_: object) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def glorot(gain: float = 1.0) -> nn.initializers.Initializer:
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")


def linear_init(init: Init, fan_in: int) -> nn.initializers.Initializer:
    """`fan_in`: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), Torch's default; `uniform`: U(-1, 1). ValueError otherwise."""
    if init not in get_args(Init):
        raise ValueError(f"initialization is {init!r}; allowed are {', '.join(get_args(Init))}")
    return uniform(1.0 if init == "uniform" else fan_in**-0.5)


class Linear(Part):
    """x W + b, with weights and bias drawn by `linear_init` (`nn.Dense` initialises biases as 0, Torch does not)."""

    features: int
    initialization: Init = "fan_in"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[..., fan_in] -> [..., features]."""
        width = inputs.shape[-1]
        init = linear_init(self.initialization, width)
        kernel = self.param("kernel", init, (width, self.features), self.param_dtype)
        bias = self.param("bias", init, (self.features,), self.param_dtype)
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return inputs @ kernel + bias
