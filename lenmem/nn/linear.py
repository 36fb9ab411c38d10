"""Linear maps: Flax's, in a form that suits a CPU, and those with the initialisations of the papers' Torch code."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import lax

from lenmem.nn.module import Part
from lenmem.placement import platform
from lenmem.types import Dtype

Init = Literal["fan_in", "uniform"]
BERT_STD = 0.02
"""Standard deviation of BERT's initial weights (Devlin et al. 2019, published code)."""


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


def product(inputs: jax.Array, kernel: jax.Array, dimension_numbers: Any = None, **options: Any) -> jax.Array:
    """`lax.dot_general` of inputs [..., fan_in] with a kernel [fan_in, ...]; several last axes may be contracted.

    On a CPU it is a product of two matrices. For more axes XLA computes the gradient of the kernel from a transposed
    copy of the outputs' gradient, which takes up to four times as long as the product itself.
    """
    if dimension_numbers is None:
        dimension_numbers = (((inputs.ndim - 1,), (0,)), ((), ()))
    (last, first), (batch, _) = dimension_numbers
    rows, columns = inputs.shape[: inputs.ndim - len(last)], kernel.shape[len(first) :]
    matrices = tuple(first) == (*range(len(first)),) and tuple(last) == (*range(len(rows), inputs.ndim),)
    if platform() != "cpu" or batch or not matrices:
        return lax.dot_general(inputs, kernel, dimension_numbers, **options)
    fan_in = math.prod(kernel.shape[: len(first)])
    inputs, kernel = inputs.reshape(math.prod(rows), fan_in), kernel.reshape(fan_in, math.prod(columns))
    return lax.dot_general(inputs, kernel, (((1,), (0,)), ((), ())), **options).reshape(*rows, *columns)


class Dense(nn.Dense):
    """Flax's `Dense`, with `product`."""

    dot_general: Any = product


class DenseGeneral(nn.DenseGeneral):
    """Flax's `DenseGeneral`, with `product`."""

    dot_general: Any = product


class Linear(Part):
    """x W + b, with weights and bias drawn by `linear_init` (`Dense` initialises biases as 0, Torch does not)."""

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
        return product(inputs, kernel) + bias
