"""Recurrent decoders that attend to a memory by content or location, and one that points at it."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import AdditiveAttention, LocationAttention
from lenmem.nn.cells import as_cell
from lenmem.nn.encoders import first_and_last
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.types import PyTree, Step

AttentionKind = Literal["content", "location", "hybrid"]


class AttentionDecoder(Part):
    """A recurrent decoder with attention (Bahdanau, Cho & Bengio 2015): a decoder for `EncoderDecoder`.

    With s the vectors of the cell's carry, y the step's input and m_j the memory:

        c_i = sum_j a_ij m_j,  a_i = AdditiveAttention(s_{i-1}, m),  s_i = cell(s_{i-1}, [y_i; c_i]),  output [s_i; c_i]

    With `attention="location"` a_i = LocationAttention(s_{i-1}). With "hybrid" c_i is the concatenation of the c_i of
    both kinds of attention.

    The initial carry is that of the cell plus tanh of a linear map of the memory at the first and the last real
    position, which are the final states of the backward and the forward direction. Traces `attention` [B, N]; if
    hybrid, for both kinds in turn.
    """

    cell: nn.Module
    features: int
    """Width of the attention network."""
    attention: AttentionKind = "content"
    max_positions: int = 512
    """Longest memory for attention by location, including padding."""

    def setup(self):
        if self.attention != "location":
            self.scorer = AdditiveAttention(self.features, **self.dtypes)
        if self.attention != "content":
            self.locator = LocationAttention(self.max_positions, **self.dtypes)
        self.bridge = Bridge(**self.dtypes)
        self.recurrence = as_cell(self.cell)

    @nn.nowrap
    def scorers(self) -> list[Any]:
        """The attention modules: by content, by location, or both in this order."""
        names = {"content": ["scorer"], "location": ["locator"], "hybrid": ["scorer", "locator"]}
        return [getattr(self, name) for name in names[self.attention]]

    def start(self, states: jax.Array, mask: jax.Array) -> tuple[PyTree, PyTree]:
        """[B, N, d], bool[B, N] -> (the cell's carry, (keys, states, mask))."""
        states = jnp.where(mask[..., None], states, 0)
        carry = self.bridge(self.recurrence.start(mask.shape[:1], 0), first_and_last(states, mask))
        return carry, ([scorer.keys(states) for scorer in self.scorers()], states, mask)

    def __call__(self, carry: PyTree, step: Step, memory: PyTree) -> tuple[PyTree, jax.Array]:
        """(new carry, [s_i; c_i])."""
        all_keys, states, mask = memory
        query = jnp.concatenate(jax.tree.leaves(carry), axis=-1)
        contexts = []
        for scorer, keys in zip(self.scorers(), all_keys, strict=True):
            weights = scorer(query, keys, mask)
            self.sow("traces", "attention", weights)
            contexts.append(jnp.einsum("bn,bnd->bd", weights.astype(states.dtype), states))
        inputs = jnp.concatenate([step.inputs, *contexts], axis=-1)
        carry, output = self.recurrence(carry, step._replace(inputs=inputs))
        return carry, jnp.concatenate([output, *contexts], axis=-1)


class PointingDecoder(Part):
    """A recurrent decoder that points at the input (Vinyals, Fortunato & Jaitly 2015): a decoder for `EncoderDecoder`.

    The encoder's outputs are [m_j; x_j], where x_j is one-hot, or zero if the decoder cannot point at j. With d the
    vectors of the cell's carry and y the input of the step:

        d_i = cell(d_{i-1}, [y_i; c_{i-1}]),  a_i = AdditiveAttention(d_i, m),  c_i = sum_j a_ij m_j, c_0 = 0

    and the output is sum_j a_ij x_j, float32[B, symbols]: the pointer of Eq. 3, summed over positions with the same
    symbol. In the paper, the next input of the cell is the input that was pointed at; here it is the mean c. The
    initial carry is that of `AttentionDecoder`. Traces `attention` [B, N].
    """

    cell: nn.Module
    features: int
    """Width of the attention network."""
    symbols: int
    """Width of x."""

    def setup(self):
        self.scorer = AdditiveAttention(self.features, **self.dtypes)
        self.bridge = Bridge(**self.dtypes)
        self.recurrence = as_cell(self.cell)

    def start(self, states: jax.Array, mask: jax.Array) -> tuple[PyTree, PyTree]:
        """[B, N, d + symbols], bool[B, N] -> ((the cell's carry, c_0), (keys, m, x, mask))."""
        states = jnp.where(mask[..., None], states, 0)
        states, symbols = jnp.split(states, [states.shape[-1] - self.symbols], axis=-1)
        carry = self.bridge(self.recurrence.start(mask.shape[:1], 0), first_and_last(states, mask))
        mask = mask & jnp.any(symbols > 0, axis=-1)
        return (carry, jnp.zeros_like(states[:, 0])), (self.scorer.keys(states), states, symbols, mask)

    def __call__(self, carry: PyTree, step: Step, memory: PyTree) -> tuple[PyTree, jax.Array]:
        """(new carry, sum_j a_ij x_j)."""
        state, context = carry
        keys, states, symbols, mask = memory
        inputs = jnp.concatenate([step.inputs, context], axis=-1)
        state, _ = self.recurrence(state, step._replace(inputs=inputs))
        weights = self.scorer(jnp.concatenate(jax.tree.leaves(state), axis=-1), keys, mask)
        self.sow("traces", "attention", weights)
        context = jnp.einsum("bn,bnd->bd", weights.astype(states.dtype), states)
        return (state, context), jnp.einsum("bn,bnk->bk", weights, symbols.astype(weights.dtype))


class Bridge(Part):
    """The initial carry of a decoder: each of its vectors s becomes s + tanh(W summary + b)."""

    @nn.compact
    def __call__(self, carry: PyTree, summary: jax.Array) -> PyTree:
        """`carry` a pytree of [B, width], summary [B, d]."""
        leaves, structure = jax.tree.flatten(carry)
        moves = [Linear(leaf.shape[-1], **self.dtypes)(summary) for leaf in leaves]
        return structure.unflatten([leaf + jnp.tanh(move) for leaf, move in zip(leaves, moves, strict=True)])
