"""Mamba-2: a state space model with one scalar decay per head.

Dao & Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality",
ICML 2024 (arXiv 2405.21060). At each step the state S [P, N] of a head decays and an outer product is added. Unlike in
DeltaNet, nothing is erased by key:

    [z : x : B : C : s]_t = W_in u_t,   [x : B : C] = silu(convolution([x : B : C]))
    Delta_t = softplus(s_t + b),   a_t = exp(-A Delta_t)
    S_t = a_t S_{t-1} + Delta_t x_t B_t^T,   o_t = S_t C_t + D x_t
    y_t = W_out RMSNorm(o_t * silu(z_t))

with the learned skip weight D, inner width E d (`expansion` E), divided among H heads of width P = E d / H, and B and C
[N] shared by all heads. All eigenvalues are positive, so a network of finite precision cannot compute parity (Grazzi et
al. 2024). Cost per position: O(d^2 + d N), in parallel over chunks (`ops.linear_recurrence`).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.linear import Dense
from lenmem.nn.module import Part
from lenmem.nn.residual import LogDecay, ResidualModel, ShortConvolution, from_heads, to_heads


class StateSpace(Part):
    """The mixer of a layer; fields as in `Mamba2`."""

    heads: int
    state_size: int = 64
    expansion: int = 2
    kernel_size: int = 4

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, N, d] -> [B, N, d]."""
        width, state_size = states.shape[-1], self.state_size
        inner = self.expansion * width

        def linear(name, size):
            return Dense(size, use_bias=False, **self.dtypes, name=name)

        mixed = linear("in", inner + 2 * state_size)(states)
        mixed = ShortConvolution(self.kernel_size, use_bias=True, **self.dtypes, name="convolution")(mixed)
        inputs, keys, queries = jnp.split(mixed.astype(jnp.float32), [inner, inner + state_size], axis=-1)
        inputs = to_heads(inputs, self.heads)
        log_decay, step = LogDecay(self.heads, **self.dtypes, name="decay")(linear("step", self.heads)(states))
        keys, queries = (jnp.repeat(x[:, None], self.heads, axis=1) for x in (keys, queries))
        log_decay, step = jnp.swapaxes(log_decay, 1, 2), jnp.swapaxes(step, 1, 2)
        _, reads = ops.linear_recurrence(queries, keys, inputs, step, log_decay=log_decay)
        skip = self.param("skip", nn.initializers.ones, (self.heads, 1, 1), self.param_dtype)
        output = from_heads(reads + skip * inputs).astype(mixed.dtype) * nn.silu(linear("gate", inner)(states))
        return linear("out", width)(nn.RMSNorm(1e-5, **self.dtypes, name="read_norm")(output))


class Mamba2(ResidualModel):
    """Residual layers of Mamba-2; by default without feed-forward networks, as published."""

    feedforward_size: PositiveInt | None = None
    state_size: PositiveInt = 64
    """N: width of the keys B and the queries C."""
    expansion: PositiveInt = 2
    """Inner width, relative to `hidden_size`."""
    kernel_size: PositiveInt = 4
    """Kernel size of the short convolution."""

    @nn.nowrap
    def mixer(self, depth: float, name: str) -> nn.Module:
        sizes = {"state_size": self.state_size, "expansion": self.expansion, "kernel_size": self.kernel_size}
        return StateSpace(heads=self.heads, **sizes, **self.dtypes, name=name)
