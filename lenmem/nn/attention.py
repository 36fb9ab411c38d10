"""Attention: scaled dot products with several heads, and the additive attention of recurrent decoders."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.cells import as_cell
from lenmem.nn.encoders import first_and_last
from lenmem.nn.linear import Linear
from lenmem.ops import masked_softmax
from lenmem.types import Dtype, PyTree, Step


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with `heads` heads (Vaswani et al. 2017): Flax's own, with traces.

    Softmax in float32; dropout on the weights where there is a stream `dropout`. Traces `attention` [B, heads, Q, N].
    """

    heads: int
    dropout: float = 0.0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, queries: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, Q, d], [B, N, e], bool[B, Q or 1, N] of what each query may see -> [B, Q, d].

        Masked states have no effect as long as they are finite. A query that may see nothing gets some finite mean.
        """

        def attend(query, key, value, mask=None, dropout_rng=None, dropout_rate=0.0, deterministic=True, dtype=None):
            weights = nn.dot_product_attention_weights(
                query,
                key,
                mask=mask,
                broadcast_dropout=False,
                dropout_rng=dropout_rng,
                dropout_rate=dropout_rate,
                deterministic=deterministic,
                dtype=dtype,
                force_fp32_for_softmax=True,
            )
            self.sow("traces", "attention", weights)
            return jnp.einsum("...hqk,...khd->...qhd", weights, value)

        width = queries.shape[-1]
        if width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {width}")
        attention = nn.MultiHeadDotProductAttention(
            self.heads,
            qkv_features=width,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            dropout_rate=self.dropout,
            deterministic=not self.has_rng("dropout"),
            attention_fn=attend,
            name="projections",
        )
        return attention(queries, memory, mask=mask[:, None])


class AdditiveAttention(nn.Module):
    """Attention by a small network (Bahdanau, Cho & Bengio 2015): e_j = v . tanh(W q + U m_j), weights softmax(e).

    `keys(memory)` gives U m_j, which stays the same for all queries.
    """

    features: int
    """Width of the network's hidden layer."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.of_query = Linear(self.features, **options)
        self.of_memory = Linear(self.features, **options)
        self.score = Linear(1, **options)

    def keys(self, memory: jax.Array) -> jax.Array:
        """[B, N, d] -> U m_j, [B, N, features]."""
        return self.of_memory(memory)

    def __call__(self, query: jax.Array, keys: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, q], [B, N, features], bool[B, N] -> weights float32[B, N], exactly 0 where masked."""
        scores = self.score(jnp.tanh(self.of_query(query)[:, None] + keys))[..., 0]
        return masked_softmax(scores.astype(jnp.float32), mask)


class AttentionDecoder(nn.Module):
    """A recurrent decoder with additive attention (Bahdanau, Cho & Bengio 2015): a decoder for `EncoderDecoder`.

    With s the vectors of the cell's carry, y what is read and m_j the memory:

        c_i = sum_j a_ij m_j,  a_i = AdditiveAttention(s_{i-1}, m),  s_i = cell(s_{i-1}, [y_i; c_i]),  output [s_i; c_i]

    The cell starts from its own start plus tanh of a linear map of the memory at the first and the last real position
    (the final states of the backward and the forward direction). Traces `attention` [B, N].
    """

    cell: nn.Module
    features: int
    """Width of the attention network."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        self.scorer = AdditiveAttention(self.features, self.dtype, self.param_dtype)
        self.bridge = Bridge(self.dtype, self.param_dtype)
        self.recurrence = as_cell(self.cell)

    def start(self, states: jax.Array, mask: jax.Array) -> tuple[PyTree, PyTree]:
        """[B, N, d], bool[B, N] -> (the cell's carry, (keys, states, mask))."""
        states = jnp.where(mask[..., None], states, 0)
        carry = self.bridge(self.recurrence.start(mask.shape[:1], 0), first_and_last(states, mask))
        return carry, (self.scorer.keys(states), states, mask)

    def __call__(self, carry: PyTree, step: Step, memory: PyTree) -> tuple[PyTree, jax.Array]:
        """(new carry, [s_i; c_i])."""
        keys, states, mask = memory
        weights = self.scorer(jnp.concatenate(jax.tree.leaves(carry), axis=-1), keys, mask)
        self.sow("traces", "attention", weights)
        context = jnp.einsum("bn,bnd->bd", weights.astype(states.dtype), states)
        inputs = jnp.concatenate([step.inputs, context], axis=-1)
        carry, output = self.recurrence(carry, step._replace(inputs=inputs))
        return carry, jnp.concatenate([output, context], axis=-1)


class Bridge(nn.Module):
    """The start of a decoder's carry: each of its vectors s becomes s + tanh(W summary + b)."""

    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, carry: PyTree, summary: jax.Array) -> PyTree:
        """`carry` a pytree of [B, width], summary [B, d]."""
        leaves, structure = jax.tree.flatten(carry)
        moves = [Linear(leaf.shape[-1], dtype=self.dtype, param_dtype=self.param_dtype)(summary) for leaf in leaves]
        return structure.unflatten([leaf + jnp.tanh(move) for leaf, move in zip(leaves, moves, strict=True)])
