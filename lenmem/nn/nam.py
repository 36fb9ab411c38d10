"""Parts of the NAM networks: Transformer blocks with exchangeable attention, moves of a tape's heads, and a scan.

Nam & Seo, "Neural Attention Memory", https://arxiv.org/abs/2302.09422, sections 4 and 5.2. The three attentions share
everything but the way values are mixed, so that a comparison compares just that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.nn.linear import check_choices
from lenmem.nn.positions import ADDED, PositionScores
from lenmem.nn.recurrence import CHUNK, any_valid
from lenmem.types import Dtype, PyTree

AttentionKind = Literal["outer_product", "linear", "softmax"]


class SelfAttention(nn.Module):
    """Multi-head self-attention; the heads share nothing and none of the projections has a bias.

        outer_product   y_i = (sum_s v_s k_s^T) q_i with unit q and k (section 4.1); no denominator
        linear          y_i = (sum_s v_s phi(k_s)^T) phi(q_i) / sum_s phi(k_s).phi(q_i), phi = elu + 1
        softmax         y_i = sum_s softmax_s(q_i.k_s / sqrt(d_k)) v_s

    Cost for N states of width d: O(N d^2 / heads) for the first two, O(N^2 d) for softmax.
    """

    kind: AttentionKind = "outer_product"
    heads: int = 4
    causal: bool = False
    mask_padding: bool = True
    """Keys of padding write nothing. The published code lets them write; results then depend on the padded length."""
    size: int | None = None
    """Width of queries, keys and values, all heads together; None: the states' width d."""
    encoding: PositionScores | None = None
    """What positions do to the logits of softmax; None: nothing."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """[B, N, d], bool[B, N], int[N] or int[B, N] for the encoding -> [B, N, d]."""
        check_choices(self, kind=get_args(AttentionKind))
        width = states.shape[-1]
        size = self.size or width
        if size % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {size}")
        options: dict[str, Any] = {
            "use_bias": False,
            "kernel_init": nn.initializers.xavier_uniform(),
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        query, key, value = (
            nn.DenseGeneral((self.heads, size // self.heads), **options, name=name)(states)
            for name in ("query", "key", "value")
        )
        visible = mask if self.mask_padding else jnp.ones_like(mask)
        if self.kind == "softmax":
            scores = None
            if self.encoding is not None and positions is not None:
                query, key, scores = self.encoding(query, key, positions, positions)
            bias = None if scores is None else (scores * query.shape[-1] ** -0.5).astype(query.dtype)
            mixed = jax.nn.dot_product_attention(
                query, key, value, bias, visible[:, None, None, :], is_causal=self.causal
            )
        elif self.encoding is not None and self.encoding.positions not in (*ADDED, "none"):
            raise ValueError(
                f"positions is {self.encoding.positions!r}, which acts on logits of pairs; {self.kind!r} attention has "
                f"none and allows {', '.join(ADDED)}, none"
            )
        else:
            kernel = ops.normalized_outer_product_attention if self.kind == "outer_product" else ops.linear_attention
            heads_first = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
            read: Any = kernel(*heads_first, causal=self.causal, key_mask=visible[:, None, :])
            mixed = jnp.swapaxes(read, 1, 2).astype(value.dtype)
        return nn.DenseGeneral(width, axis=(-2, -1), **options, name="out")(mixed)


class PreNormLayer(nn.Module):
    """One pre-norm layer: a = x + drop(Attention(LN(x))), a + drop(W_2 drop(f(W_1 LN(a)))).

    With `kernel_size` above 1 both maps of the feed-forward network are convolutions over positions, which see padding
    as zeros.
    """

    heads: int = 4
    feedforward_size: int = 512
    attention: AttentionKind = "outer_product"
    causal: bool = False
    mask_padding: bool = True
    attention_size: int | None = None
    kernel_size: int = 1
    activation: Callable[[jax.Array], jax.Array] = nn.gelu
    dropout: float = 0.0
    encoding: PositionScores | None = None
    """What positions do to the logits of softmax; None: nothing."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """[B, N, d], bool[B, N], int[N] or int[B, N] for the encoding -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def drop(x):
            return nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x) if self.dropout else x

        def over_positions(x, features, name):
            if self.kernel_size == 1:
                return nn.Dense(features, **options, name=name)(x)
            before = self.kernel_size - 1 if self.causal else self.kernel_size // 2
            padding = [(before, self.kernel_size - 1 - before)]
            convolution = nn.Conv(features, (self.kernel_size,), padding=padding, **options, name=name)
            return convolution(jnp.where(mask[..., None], x, 0))

        kind = self.attention, self.heads, self.causal, self.mask_padding, self.attention_size, self.encoding
        attend = SelfAttention(*kind, **options, name="attention")
        states = states + drop(attend(nn.LayerNorm(1e-6, **options, name="attention_norm")(states), mask, positions))
        hidden = nn.LayerNorm(1e-6, **options, name="feedforward_norm")(states)
        hidden = drop(self.activation(over_positions(hidden, self.feedforward_size, "feedforward_in")))
        return states + drop(over_positions(hidden, states.shape[-1], "feedforward_out"))


# Tapes, section 5.2 ---------------------------------------------------------------------------------------------------


class Tapes(NamedTuple):
    """T and K, float32[B, P, d_t, L]; one that no transition looks at is None while the heads move."""

    values: jax.Array | None
    keys: jax.Array | None


class Controls(NamedTuple):
    """What the controller and the input say at one step (with a time axis in front: at all steps)."""

    value: jax.Array
    """v [B, P, d_t]."""
    key: jax.Array
    """k [B, P, d_t], of unit length."""
    query: jax.Array
    """q_jump [B, P, d_t], of unit length."""
    read_probability: jax.Array
    """p_r [B, P]."""
    write_probability: jax.Array
    """p_w [B, P]."""
    read_actions: jax.Array
    """Probabilities of the transitions of the read head [B, P, actions]."""
    write_actions: jax.Array
    """Probabilities of the transitions of the write head [B, P, actions]."""


@dataclasses.dataclass(frozen=True)
class Transition:
    """A rule by which a head may move. A new one is a frozen dataclass with these three; `NAMTM(rules=(Mine(),))`."""

    looks_at: ClassVar[tuple[Literal["values", "keys"], ...]] = ()
    """The tapes the rule needs to see. Each costs O(d L) a step."""

    @property
    def reach(self) -> int:
        """Cells beyond the outermost one ever visited to which it may take a head."""
        return 0

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        """H [B, P, L], the tapes after this step's write -> where the head would go, [B, P, L]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Shift(Transition):
    """LEFT, NO-OP and RIGHT: roll the head by a number of cells."""

    cells: int = 1

    @property
    def reach(self) -> int:
        return abs(self.cells)

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        return jnp.roll(head, self.cells, axis=-1)


@dataclasses.dataclass(frozen=True)
class Jump(Transition):
    """JUMP: H_jump = K'^T q_jump, the positions whose keys are like the query. Neither bounded nor normalised."""

    looks_at: ClassVar[tuple[Literal["values", "keys"], ...]] = ("keys",)

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        assert tapes.keys is not None
        return jnp.einsum("...dl,...d->...l", tapes.keys, controls.query)


LEFT, NO_OP, RIGHT, JUMP = Shift(-1), Shift(0), Shift(1), Jump()


# A scan that saves memory ---------------------------------------------------------------------------------------------


def recomputed_scan(body: Callable, carry: PyTree, xs: PyTree, valid: jax.Array) -> tuple[PyTree, PyTree]:
    """`lax.scan` of `body(carry, x)` over time-major `xs` [T, ...] that keeps one carry per chunk of `CHUNK` steps.

    The backward pass recomputes the steps of a chunk from it: memory O(T / CHUNK + CHUNK) carries instead of O(T), for
    one more forward pass. `valid` bool[T, B]: a chunk without a valid step is skipped, its outputs are zeros; the last
    chunk is filled up with zeros that are not valid. `body` must leave a row's carry alone where it is not valid. It is
    a pure function: it may close over arrays, but not call Linen modules.
    """
    length = valid.shape[0]
    count = -(-length // CHUNK)
    size = -(-length // count)

    def chunks(x):
        return jnp.pad(x, [(0, count * size - length)] + [(0, 0)] * (x.ndim - 1)).reshape(count, size, *x.shape[1:])

    @jax.checkpoint
    def run(carry, xs):
        return jax.lax.scan(body, carry, xs)

    def chunk(carry, inputs):
        xs, valid = inputs

        def skip(carry, xs):
            return carry, jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(run, carry, xs)[1])

        return jax.lax.cond(any_valid(valid), run, skip, carry, xs)

    carry, outputs = jax.lax.scan(chunk, carry, jax.tree.map(chunks, (xs, valid)))
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:])[:length], outputs)
