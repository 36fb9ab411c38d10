"""One chunk of a linear recurrence, for the kernels of `lenmem.ops.pallas.recurrence`, which has its equations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lenmem.ops.lie import unit
from lenmem.ops.pallas.tiles import INNER, OUTER, SUMS, TILE, parts, permuted, positions, product, running

BLOCK = 32
"""Diagonal blocks of this size are inverted by elimination, larger ones by products."""


class Form(NamedTuple):
    """What a recurrence does, and how."""

    normalises: bool
    """Whether queries and keys are projected to the unit sphere."""
    erases: bool
    decays: bool
    exact: bool
    """Whether products of float32 are exact; otherwise their factors are rounded to bfloat16."""


def chunk(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    write: jax.Array,
    erase: jax.Array,
    since: jax.Array,
    left: jax.Array,
    decay: jax.Array,
    state: jax.Array,
    *,
    form: Form,
) -> tuple[jax.Array, jax.Array]:
    """(Z' [d_k, d_v], R [C, d_v]) from w, e, log A and log A_C / A as columns [C, 1], and log a as a row [1, C]."""
    dot = functools.partial(_product, 6 if form.exact else 1)
    careful = 6 if form.exact else 3  # an error in T would be that of every step
    if form.normalises:
        queries, keys = unit(queries.astype(jnp.float32)), unit(keys.astype(jnp.float32))
    row, column = positions()
    updates, products = write * values.astype(write.dtype), dot(OUTER, queries, keys)
    inner = _product(careful, OUTER, keys, keys) if form.erases else None
    factors: Any = 1.0, 1.0, 1.0
    if form.decays:
        ratios = jnp.exp(sums_between(decay))
        factors = jnp.exp(since), jnp.exp(left), jnp.exp(jnp.sum(decay, axis=1, keepdims=True))
        products, inner = ratios * products, None if inner is None else ratios * inner
    since, left, last = factors
    if inner is not None:
        inverse = unit_triangular_inverse(careful, jnp.where(row > column, erase * inner, 0.0))
        updates = dot(INNER, inverse, updates - erase * since * dot(INNER, keys, state))
    reads = dot(INNER, jnp.where(row >= column, products, 0.0), updates) + since * dot(INNER, queries, state)
    return last * state + dot(SUMS, keys, left * updates), reads


def _sums_between(terms: jax.Array) -> jax.Array:
    """sum_{r=s+1..t} of a row [1, C], for rows t and columns s <= t; 0 for s > t. As `lenmem.ops.outward`."""
    row, column = positions()
    return running(jnp.where(column <= row, terms, 0.0), _ones(row > column))


def _sums_between_pull(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
    row, column = positions()
    terms = running(cotangent, _ones(column > row))
    return (jnp.sum(jnp.where(column <= row, terms, 0.0), axis=0, keepdims=True),)


def _ones(where: jax.Array) -> jax.Array:
    return jnp.where(where, 1.0, 0.0).astype(jnp.bfloat16)


sums_between: Callable[..., Any] = jax.custom_vjp(_sums_between)
sums_between.defvjp(lambda terms: (_sums_between(terms), None), _sums_between_pull)


def _in_passes(passes: int, contraction: tuple, left: jax.Array, right: jax.Array) -> jax.Array:
    """The product of two matrices in so many passes: 1 rounds its factors to bfloat16, 3 are exact to 2^-16, 6 exact.

    Its gradient consists of such products, with 1 pass in place of 3.
    """
    if passes != 3:
        return product(left, right, contraction, exact=passes == 6)
    (left, left_rest), (right, right_rest) = parts(left, 2), parts(right, 2)
    pairs = ((left, right), (left, right_rest), (left_rest, right))
    return functools.reduce(jnp.add, [product(*pair, contraction, exact=False) for pair in pairs])


def _product_pull(passes: int, contraction: tuple, kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    left, right = kept
    dot = functools.partial(_product, 6 if passes == 6 else 1)
    if contraction == INNER:
        return dot(OUTER, cotangent, right), dot(SUMS, left, cotangent)
    if contraction == OUTER:
        return dot(INNER, cotangent, right), dot(SUMS, cotangent, left)
    return dot(OUTER, right, cotangent), dot(INNER, left, cotangent)


_product: Callable[..., Any] = jax.custom_vjp(_in_passes, nondiff_argnums=(0, 1))
_product.defvjp(
    lambda passes, contraction, *factors: (_in_passes(passes, contraction, *factors), factors), _product_pull
)


def _inverse(passes: int, below: jax.Array) -> jax.Array:
    """(I + below)^-1 for a strictly lower triangular matrix, as in `lenmem.ops.linear_recurrence`.

    The diagonal blocks lie side by side while they are eliminated, each in its own lanes.
    """
    row, column = positions(BLOCK)
    start = column & -BLOCK
    starts = range(0, TILE, BLOCK)
    blocks = functools.reduce(jnp.add, [jnp.where(start == i, below[i : i + BLOCK], 0.0) for i in starts])
    inverse = jnp.where(row == column - start, 1.0, 0.0)
    for j in range(BLOCK - 1):
        inverse -= permuted(blocks, start + j) * inverse[j : j + 1]
    inverse = jnp.concatenate([jnp.where(start == i, inverse, 0.0) for i in starts])
    row, column = positions()
    size = BLOCK
    while size < TILE:
        corner = jnp.where((row & -size == (column & -size) + size) & (column & size == 0), below, 0.0)
        inverse -= _product(passes, INNER, inverse, _product(passes, INNER, corner, inverse))
        size *= 2
    return inverse


def _inverse_forward(passes: int, below: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = _inverse(passes, below)
    return inverse, inverse


def _inverse_pull(passes: int, inverse: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    """The derivative of Y = (I + B)^-1 is -Y dB Y."""
    return (-_product(passes, OUTER, _product(passes, SUMS, inverse, cotangent), inverse),)


unit_triangular_inverse: Callable[..., Any] = jax.custom_vjp(_inverse, nondiff_argnums=(0,))
unit_triangular_inverse.defvjp(_inverse_forward, _inverse_pull)
