"""xLSTM: LSTMs with exponential gates and a matrix memory (mLSTM), or scalar cells that see the last output (sLSTM).

Beck et al., "xLSTM: Extended Long Short-Term Memory", NeurIPS 2024 (arXiv 2405.04517). Exponential gates can overflow,
so all states are divided by e^{m_t}, a factor that cancels in the output:

    m_t = max(log sigmoid(f_t) + m_{t-1}, i_t),  f'_t = exp(log sigmoid(f_t) + m_{t-1} - m_t),  i'_t = exp(i_t - m_t)

*mLSTM* (section 2.3): the matrix C maps keys to values, n is a sum of the keys, and the gates do not see the state.

    C_t = f'_t C_{t-1} + i'_t v_t k_t^T,  n_t = f'_t n_{t-1} + i'_t k_t
    h_t = C_t q_t / (max(|n_t . q_t|, e^{-m_t}) + 1e-6)

Keys are divided by sqrt(d_h). With x_t the input of the mixer and s_t the short convolution of W_in x_t, its output is
W_out ((norm(h_t) + skip * s_t) * silu(W_g x_t)).

This is a linear recurrence, computed in parallel over chunks (`ops.linear_recurrence`); n is computed as another row of
C, for a value of 1. *sLSTM* (section 2.2): the gates i, f, z, o are linear in the input and, within a head, in the last
output.

    c_t = f'_t c_{t-1} + i'_t tanh(z_t),  n_t = f'_t n_{t-1} + i'_t,  y_t = sigmoid(o_t) c_t / n_t

This recurrence is not linear, and is computed step by step. Of the two, only sLSTM can compute parity. Cost per
position: O(d^2 + d d_h).
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.linear import Dense
from lenmem.nn.module import Part
from lenmem.nn.recurrence import recomputed_scan
from lenmem.nn.residual import ResidualModel, ShortConvolution, from_heads, to_heads

BLOCK = 4
"""Width of the blocks of mLSTM's maps to queries, keys and values."""
EMPTY = -1e30
"""m_0 of sLSTM: nothing is stored."""


class BlockLinear(Part):
    """A linear map with `blocks` equal blocks on its diagonal, without a bias."""

    blocks: int

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[..., d] -> [..., d]."""
        size = states.shape[-1] // self.blocks
        init = nn.initializers.lecun_normal(batch_axis=(0,))
        kernel = self.param("kernel", init, (self.blocks, size, size), self.param_dtype).astype(states.dtype)
        blocks = states.reshape(*states.shape[:-1], self.blocks, size)
        return jnp.einsum("...bi,bij->...bj", blocks, kernel).reshape(states.shape)


class HeadNorm(Part):
    """LayerNorm within each head, [B, heads, N, d_h] -> [B, N, heads d_h], with a scale for every channel."""

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, H, N, P] -> [B, N, H P]."""
        normed = from_heads(nn.LayerNorm(1e-5, use_bias=False, use_scale=False, **self.dtypes)(states))
        return normed * self.param("scale", nn.initializers.ones, normed.shape[-1:], self.param_dtype)


class MatrixLSTM(Part):
    """The mLSTM as a mixer: both sides of a gate have width 2 d; q and k see a short convolution, v does not."""

    heads: int
    kernel_size: int = 4

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, N, d] -> [B, N, d]."""
        width, heads = states.shape[-1], self.heads
        inner = 2 * width

        def gate(name, of, bias):
            """[B, heads, N] in float32; at first the bias alone."""
            linear = Dense(heads, kernel_init=nn.initializers.zeros, bias_init=bias, **self.dtypes, name=name)
            return jnp.swapaxes(linear(of), 1, 2).astype(jnp.float32)

        raw = Dense(inner, use_bias=False, **self.dtypes, name="in")(states)
        seen = ShortConvolution(self.kernel_size, use_bias=True, **self.dtypes, name="convolution")(raw)
        query, key, value = (
            BlockLinear(max(1, inner // BLOCK), **self.dtypes, name=name)(x)
            for name, x in (("query", seen), ("key", seen), ("value", raw))
        )
        joined = jnp.concatenate([query, key, value], axis=-1)
        into = gate("input_gate", joined, nn.initializers.normal(0.1))
        log_forget = nn.log_sigmoid(gate("forget_gate", joined, _spread))

        # m_t = max_{s <= t} (i_s + log f_{s+1} + .. + log f_t), or the forgotten m_0 = 0. It cancels: no gradient.
        forgotten = jnp.cumsum(log_forget, axis=-1)
        level = forgotten + jnp.maximum(0, jax.lax.cummax(into - forgotten, axis=2))
        level = jax.lax.stop_gradient(level)
        before = jnp.pad(level, [(0, 0), (0, 0), (1, 0)])[..., :-1]
        # By rounding, a decay may be a little above 1. A bound would cut its gradient wherever the maximum is kept.
        write, log_decay = jnp.exp(into - level), log_forget + before - level

        query, key, value = (to_heads(x, heads).astype(jnp.float32) for x in (query, key, value))
        key = key * key.shape[-1] ** -0.5
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
        _, reads = ops.linear_recurrence(query, key, value, write, log_decay=log_decay)
        total = jnp.maximum(jnp.abs(reads[..., -1]), jnp.exp(-level)) + 1e-6
        read = HeadNorm(**self.dtypes, name="read_norm")(reads[..., :-1] / total[..., None])
        skip = self.param("skip", nn.initializers.ones, (inner,), self.param_dtype)
        output = (read + skip * seen) * nn.silu(Dense(inner, use_bias=False, **self.dtypes, name="gate")(states))
        return Dense(width, use_bias=False, **self.dtypes, name="out")(output.astype(states.dtype))


def _spread(key: jax.Array, shape: tuple[int], dtype: jnp.dtype) -> jax.Array:
    """The initial biases of the forget gates, from 3 to 6."""
    return jnp.linspace(3, 6, *shape, dtype=dtype)


class ScalarLSTM(Part):
    """The sLSTM as a mixer: i and f see a short convolution, z and o do not; then a norm of each head."""

    heads: int
    depth: float = 0.0
    """0 for the first layer, 1 for the last: later layers begin with more cells that remember."""
    kernel_size: int = 4

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, N, d] -> [B, N, d]."""
        batch, length, width = states.shape
        heads, size = self.heads, width // self.heads
        seen = ShortConvolution(self.kernel_size, use_bias=True, **self.dtypes, name="convolution")(states)
        gates = [
            BlockLinear(heads, **self.dtypes, name=name)(x)
            for name, x in (("input_gate", seen), ("forget_gate", seen), ("value", states), ("output_gate", states))
        ]

        def bias(key, shape, dtype):
            forget = 5 - 12 * np.linspace(0, 1, size) ** (0.3 + 1.3 * self.depth)
            return jnp.zeros(shape, dtype).at[1].set(forget)

        start = self.param("bias", bias, (4, heads, size), self.param_dtype)
        recurrent = self.param("recurrent", nn.initializers.zeros, (4, heads, size, size), self.param_dtype)
        recurrent = recurrent.astype(jnp.float32)
        commands = jnp.stack(gates).reshape(4, batch, length, heads, size) + start[:, None, None]
        commands = jnp.moveaxis(commands, 2, 0).astype(jnp.float32)  # [N, 4, B, heads, d_h]

        def step(state, command):
            cell, count, level, last = state
            into, forget, value, output = command + jnp.einsum("bhi,ghij->gbhj", last, recurrent)
            kept = nn.log_sigmoid(forget) + level
            level = jax.lax.stop_gradient(jnp.maximum(kept, into))  # it cancels
            kept, written = jnp.exp(kept - level), jnp.exp(into - level)
            cell, count = kept * cell + written * jnp.tanh(value), kept * count + written
            last = nn.sigmoid(output) * cell / count
            return (cell, count, level, last), last

        zero = jnp.zeros((batch, heads, size), jnp.float32)
        always = jnp.ones((length, batch), bool)
        _, outputs = recomputed_scan(step, (zero, zero, zero + EMPTY, zero), commands, always)
        outputs = jnp.moveaxis(outputs, 0, 2)  # [B, heads, N, d_h]
        return HeadNorm(**self.dtypes, name="read_norm")(outputs).astype(states.dtype)


class XLSTM(ResidualModel):
    """Residual layers of mLSTM or sLSTM, by default without feed-forward networks. The published layers of sLSTM have
    them: set `feedforward_size`."""

    feedforward_size: PositiveInt | None = None
    cell: Literal["mlstm", "slstm"] = "mlstm"
    """The recurrence of the layers."""
    kernel_size: PositiveInt = 4
    """Positions that the short convolutions see."""

    @nn.nowrap
    def mixer(self, depth: float, name: str) -> nn.Module:
        sizes = {"heads": self.heads, "kernel_size": self.kernel_size}
        if self.cell == "mlstm":
            if 2 * self.hidden_size % max(1, 2 * self.hidden_size // BLOCK):
                raise ValueError(f"hidden_size is {self.hidden_size}; mLSTM needs a multiple of {BLOCK // 2}")
            return MatrixLSTM(**sizes, **self.dtypes, name=name)
        return ScalarLSTM(**sizes, depth=depth, **self.dtypes, name=name)
