"""DeltaNet, Gated DeltaNet and DeltaProduct: recurrences that erase before they write.

Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", ICML 2021 (arXiv 2102.11174); Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024 (arXiv 2406.06484); *gated*: Yang et
al., "Gated Delta Networks", 2024 (arXiv 2412.06464); *negative eigenvalues*: Grazzi et al., "Unlocking State-Tracking
in Linear RNNs Through Negative Eigenvalues", 2024 (arXiv 2411.12537); *products*: Siems et al., "DeltaProduct", 2025
(arXiv 2502.10297).

The state S [d_h, d_h] of a head maps unit keys to values. Each step replaces a part of the value stored under a key:

    q_t, k_t = mu(f(W_q x_t)), mu(f(W_k x_t)),  v_t = f(W_v x_t),  beta_t = c sigmoid(W_beta x_t)
    S_t = a_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,  o_t = S_t q_t / sqrt(d_h)
    y_t = W_o (RMSNorm(o_t) [* silu(W_g x_t)])                           (the bracket if gated)

with f a short convolution and SiLU, mu normalisation to unit length, and a_t = 1 without decay. This is the write of
Neural Attention Memory (`ops.nam_write`) with p_w = p_e = beta. LSAM (`lenmem.models.nam`) has the same write, but its
keys depend on its last read, so it must be computed step by step; here they depend on the input alone.

The eigenvalues of I - beta k k^T are 1 and 1 - beta. With c = 1 they are positive, and no such network of finite
precision can compute parity. With c = 2 (`negative_eigenvalues`) the step may reflect. A step with n `products` can
permute n + 1 elements. Cost per position: O(n d^2), in parallel over chunks (`ops.linear_recurrence`).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.nn.linear import Dense
from lenmem.nn.module import Part
from lenmem.nn.residual import LogDecay, ResidualModel, ShortConvolution, from_heads, to_heads


class DeltaRule(Part):
    """The mixer of a layer; fields as in `DeltaNet`."""

    heads: int
    head_size: int
    negative_eigenvalues: bool = False
    decay: bool = False
    products: int = 1
    kernel_size: int = 4
    gated_output: bool = False

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """[B, N, d] -> [B, N, d]."""
        batch, length, width = states.shape
        products, inner = self.products, self.heads * self.head_size

        def linear(name, size):
            return Dense(size, use_bias=False, **self.dtypes, name=name)(states)

        def vectors(name, count=1):
            """f(W x): [B, heads, N count, d_h]."""
            x = linear(name, count * inner)
            if self.kernel_size:
                x = ShortConvolution(self.kernel_size, **self.dtypes, name=f"{name}_convolution")(x)
            else:
                x = nn.silu(x)
            return to_heads(x.reshape(batch, count * length, inner), self.heads).astype(jnp.float32)

        def strengths(signal):
            """[B, N, count heads] -> [B, heads, N count]."""
            return to_heads(signal.reshape(batch, products * length, self.heads), self.heads)[..., 0]

        query, key = ops.unit(vectors("query")), ops.unit(vectors("key", products))
        value = vectors("value", products)
        beta = nn.sigmoid(strengths(linear("strength", products * self.heads)).astype(jnp.float32))
        beta = 2 * beta if self.negative_eigenvalues else beta
        log_decay = None
        if self.decay:
            log_decay, _ = LogDecay(self.heads, rates=(0.01, 16.0), **self.dtypes, name="decay")(
                linear("decay_signal", self.heads)
            )
            first = jnp.arange(products) == 0  # a position decays once, before its products
            log_decay = jnp.where(first[:, None], log_decay[:, :, None], 0)
            log_decay = strengths(log_decay)
        queries = jnp.repeat(query, products, axis=2)
        _, reads = ops.linear_recurrence(queries, key, value, beta, beta, log_decay)
        self.sow("traces", "write_strengths", beta)
        read = reads[:, :, products - 1 :: products] * self.head_size**-0.5
        read = from_heads(nn.RMSNorm(1e-5, **self.dtypes, name="read_norm")(read))
        if self.gated_output:
            read = read * nn.silu(linear("gate", inner))
        return Dense(width, use_bias=False, **self.dtypes, name="out")(read)


class DeltaNet(ResidualModel):
    """Residual layers of the delta rule.

    The defaults are those of the state-tracking experiments of Grazzi et al.: two layers of width 128 with four heads.
    The model `delta_product` is that of Siems et al.: one layer with eight heads of width 32, without convolutions.
    """

    head_size: PositiveInt | None = None
    """d_h: width of the keys and values of a head; None: `hidden_size` / `heads`."""
    negative_eigenvalues: bool = False
    """beta is in (0, 2) instead of (0, 1), so a write may reflect the stored value."""
    decay: bool = False
    """Gated DeltaNet: the state decays by a factor a_t that depends on the input."""
    products: PositiveInt = 1
    """n: writes per position, each with its own key, value and strength."""
    kernel_size: NonNegativeInt = 4
    """Kernel size of the short convolutions; 0: there are none."""
    gated_output: bool = False
    """Multiply the normalised read by silu(W_g x)."""

    @nn.nowrap
    def head_width(self) -> int:
        return self.head_size or super().head_width()

    @nn.nowrap
    def mixer(self, depth: float, name: str) -> nn.Module:
        return DeltaRule(
            heads=self.heads,
            head_size=self.head_width(),
            negative_eigenvalues=self.negative_eigenvalues,
            decay=self.decay,
            products=self.products,
            kernel_size=self.kernel_size,
            gated_output=self.gated_output,
            **self.dtypes,
            name=name,
        )
