"""Attention: scaled dot products with several heads, and recurrent decoders that attend by content or location."""

from __future__ import annotations

from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.cells import as_cell
from lenmem.nn.encoders import first_and_last
from lenmem.nn.linear import Linear, check_choices
from lenmem.nn.positions import PositionScores
from lenmem.ops import masked_softmax
from lenmem.types import Dtype, PyTree, Step

AttentionKind = Literal["content", "location", "hybrid"]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with `heads` heads (Vaswani et al. 2017): Flax's own, with traces.

    Softmax in float32; dropout on the weights where there is a stream `dropout`. Traces `attention` [B, heads, Q, N].
    """

    heads: int
    dropout: float = 0.0
    encoding: PositionScores | None = None
    """What positions do to the logits; None: nothing."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        memory: jax.Array,
        mask: jax.Array,
        positions: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:
        """[B, Q, d], [B, N, e], bool[B, Q or 1, N] of what each query may see -> [B, Q, d].

        `positions`, for the encoding: of the queries int[Q] or int[B, Q], and of the memory. Masked states have no
        effect as long as they are finite. A query that may see nothing gets some finite mean.
        """

        def attend(query, key, value, mask=None, dropout_rng=None, dropout_rate=0.0, deterministic=True, dtype=None):
            scores = None
            if self.encoding is not None and positions is not None:
                query, key, scores = self.encoding(query, key, *positions)
            weights = nn.dot_product_attention_weights(
                query,
                key,
                bias=None if scores is None else scores * query.shape[-1] ** -0.5,
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


class LocationAttention(nn.Module):
    """Attention to places, whatever is there (Luong, Pham & Manning 2015, Eq. 8): weights softmax(W q + b).

    Each of `max_positions` places has weights of its own. Those beyond the longest input of the training are never
    trained. The softmax runs over the places that a row has.
    """

    max_positions: int
    """Longest memory, padding included."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.nowrap
    def keys(self, memory: jax.Array) -> None:
        """Nothing: what the memory holds plays no role. A ValueError where it is longer than `max_positions`."""
        if memory.shape[1] > self.max_positions:
            raise ValueError(
                f"an input of {memory.shape[1]} positions (padding included) is longer than max_positions, "
                f"{self.max_positions}"
            )

    @nn.compact
    def __call__(self, query: jax.Array, keys: None, mask: jax.Array) -> jax.Array:
        """[B, q], bool[B, N] -> weights float32[B, N], exactly 0 where masked."""
        scores = Linear(self.max_positions, dtype=self.dtype, param_dtype=self.param_dtype, name="score")(query)
        return masked_softmax(scores[:, : mask.shape[-1]].astype(jnp.float32), mask)


class AttentionDecoder(nn.Module):
    """A recurrent decoder with attention (Bahdanau, Cho & Bengio 2015): a decoder for `EncoderDecoder`.

    With s the vectors of the cell's carry, y what is read and m_j the memory:

        c_i = sum_j a_ij m_j,  a_i = AdditiveAttention(s_{i-1}, m),  s_i = cell(s_{i-1}, [y_i; c_i]),  output [s_i; c_i]

    With `attention="location"` a_i = LocationAttention(s_{i-1}). With "hybrid" c_i is [content's c_i; location's c_i].

    The cell starts from its own start plus tanh of a linear map of the memory at the first and the last real position
    (the final states of the backward and the forward direction). Traces `attention` [B, N], of both kinds in turn if
    hybrid.
    """

    cell: nn.Module
    features: int
    """Width of the attention network."""
    attention: AttentionKind = "content"
    max_positions: int = 512
    """Longest memory of attention by location, padding included."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        check_choices(self, attention=get_args(AttentionKind))
        if self.attention != "location":
            self.scorer = AdditiveAttention(self.features, self.dtype, self.param_dtype)
        if self.attention != "content":
            self.locator = LocationAttention(self.max_positions, self.dtype, self.param_dtype)
        self.bridge = Bridge(self.dtype, self.param_dtype)
        self.recurrence = as_cell(self.cell)

    @nn.nowrap
    def scorers(self) -> list[Any]:
        """What weighs the memory: by content, by location, or both in this order."""
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


class PointingDecoder(nn.Module):
    """A recurrent decoder that points at the input (Vinyals, Fortunato & Jaitly 2015): a decoder for `EncoderDecoder`.

    The encoder gives [m_j; x_j], with x_j one-hot, or zero where j cannot be pointed at. With d the vectors of the
    cell's carry and y what is read:

        d_i = cell(d_{i-1}, [y_i; c_{i-1}]),  a_i = AdditiveAttention(d_i, m),  c_i = sum_j a_ij m_j, c_0 = 0

    and the output is sum_j a_ij x_j, float32[B, symbols]: the pointer of Eq. 3, summed over positions that hold the
    same. The paper's cell reads the one input that was pointed at; here it reads the mean c. The cell starts as that of
    `AttentionDecoder`. Traces `attention` [B, N].
    """

    cell: nn.Module
    features: int
    """Width of the attention network."""
    symbols: int
    """Width of x."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        self.scorer = AdditiveAttention(self.features, self.dtype, self.param_dtype)
        self.bridge = Bridge(self.dtype, self.param_dtype)
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
