"""Residual layers whose mixer is a recurrence over the sequence, and the parts that such mixers share.

DeltaNet, Mamba-2 and xLSTM (`lenmem.models`) are such layers with different mixers. With the same `feedforward_size`
they differ in the mixer alone; by default Mamba-2 and mLSTM have no feed-forward network. All of them are causal:
position t depends only on positions 0 .. t. Padding comes after the real positions of a row, so it has no effect on
them.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.dropout import dropped
from lenmem.nn.interfaces import FlatModel, sequential
from lenmem.nn.linear import Dense, uniform
from lenmem.nn.module import Part


class ShortConvolution(Part):
    """y_t = silu(sum_{j < K} c_j * x_{t-j} (+ b)): a causal convolution of each channel with a kernel of its own.

    x is zero before the start. The kernel is initialised as U(-1 / sqrt K, 1 / sqrt K), as in Torch. Cost O(N K d).
    """

    kernel_size: int = 4
    """K: number of positions, including the current one, that an output depends on."""
    use_bias: bool = False

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, N, d] -> [B, N, d]."""
        length, width = states.shape[1:]
        init = uniform(self.kernel_size**-0.5)
        kernel = self.param("kernel", init, (self.kernel_size, width), self.param_dtype).astype(states.dtype)
        past = jnp.pad(states, [(0, 0), (self.kernel_size - 1, 0), (0, 0)])
        # Sums of shifted states: XLA's grouped convolutions are many times slower on a CPU.
        ends = range(self.kernel_size - 1, -1, -1)
        total = sum(kernel[j] * past[:, end : end + length] for j, end in enumerate(ends))
        if self.use_bias:
            total = total + self.param("bias", init, (width,), self.param_dtype).astype(states.dtype)
        return nn.silu(total)


class LogDecay(Part):
    """log a_t = -A softplus(s_t + b) <= 0 for each head, with positive A and b learned (Mamba-2, Gated DeltaNet).

    A is initialised as U(`rates`), and b such that softplus(b) is log-uniform in [0.001, 0.1]. Also returns the step
    size softplus(s_t + b). In float32.
    """

    heads: int
    rates: tuple[float, float] = (1.0, 16.0)

    @nn.compact
    def __call__(self, signal: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, N, heads] -> (log a, step sizes), both float32[B, N, heads]."""

        def log_rate(key, shape, dtype):
            return jnp.log(jax.random.uniform(key, shape, dtype, *self.rates))

        def step_bias(key, shape, dtype):
            step = jnp.exp(jax.random.uniform(key, shape, dtype, jnp.log(1e-3), jnp.log(1e-1)))
            return step + jnp.log(-jnp.expm1(-step))  # the inverse of softplus

        rate = jnp.exp(self.param("log_rate", log_rate, (self.heads,), self.param_dtype).astype(jnp.float32))
        bias = self.param("step_bias", step_bias, (self.heads,), self.param_dtype)
        step = nn.softplus((signal + bias).astype(jnp.float32))
        return -rate * step, step


def to_heads(states: jax.Array, heads: int) -> jax.Array:
    """[B, N, heads width] -> [B, heads, N, width]."""
    return jnp.swapaxes(states.reshape(*states.shape[:-1], heads, -1), 1, 2)


def from_heads(states: jax.Array) -> jax.Array:
    """[B, heads, N, width] -> [B, N, heads width]: the inverse of `to_heads`."""
    return jnp.swapaxes(states, 1, 2).reshape(states.shape[0], states.shape[2], -1)


class ResidualEncoder(Part):
    """Layers x + Mixer(RMSNorm(x)), then x + SwiGLU(RMSNorm(x)), and a final RMSNorm. An encoder.

        SwiGLU(n) = W_3 (silu(W_1 n) * W_2 n), without biases

    States at padding are zero.
    """

    mixer: Callable[..., nn.Module]
    """Makes the mixer of a layer, [B, N, d] -> [B, N, d], from `depth` in [0, 1] (the first and the last layer) and
    `name`."""
    layers: int = 2
    feedforward_size: int | None = 256
    """Hidden width of the feed-forward networks; None: there are none."""
    dropout: float = 0.0

    causal = True

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""

        def norm(states, name):
            return nn.RMSNorm(1e-6, **self.dtypes, name=name)(states)

        def linear(size, name):
            return Dense(size, use_bias=False, **self.dtypes, name=name)

        states = jnp.where(mask[..., None], states, 0)
        for number in range(self.layers):
            mixer = self.mixer(depth=number / max(1, self.layers - 1), name=f"mixer_{number}")
            mixed = mixer(norm(states, f"mixer_norm_{number}"))
            states = states + dropped(mixed, self.dropout, deterministic=deterministic)
            if self.feedforward_size is None:
                continue
            hidden = norm(states, f"feedforward_norm_{number}")
            gate = nn.silu(linear(self.feedforward_size, f"feedforward_gate_{number}")(hidden))
            hidden = gate * linear(self.feedforward_size, f"feedforward_in_{number}")(hidden)
            change = linear(states.shape[-1], f"feedforward_out_{number}")(hidden)
            states = states + dropped(change, self.dropout, deterministic=deterministic)
        return jnp.where(mask[..., None], norm(states, "norm"), 0)


class ResidualModel(FlatModel):
    """Base of the models of residual layers. Subclasses define `mixer`.

    The answer is read at mask tokens after the input, or at each input if the task is aligned. There are no position
    encodings, because the recurrence depends on the order.
    """

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    layers: PositiveInt = 2
    """Number of layers."""
    heads: PositiveInt = 4
    """Number of heads, each with a state of its own."""
    feedforward_size: PositiveInt | None = 256
    """Hidden width of the feed-forward networks; None: there are none."""
    dropout: UnitInterval = 0.0
    """Dropout of the output of each sublayer."""

    @nn.nowrap
    def mixer(self, depth: float, name: str) -> nn.Module:
        """The mixer of a layer; see `ResidualEncoder`."""
        raise NotImplementedError

    @nn.nowrap
    def head_width(self) -> int:
        """d_h, the width of a head. Raises ValueError if the heads do not divide `hidden_size`."""
        if self.hidden_size % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a hidden size of {self.hidden_size}")
        return self.hidden_size // self.heads

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        self.head_width()
        encoder = ResidualEncoder(
            mixer=self.mixer,
            layers=self.layers,
            feedforward_size=self.feedforward_size,
            dropout=self.dropout,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size)
