"""Sequences cut into chunks, and the sums of outer products that linear attention and linear recurrences share.

Shapes: keys and queries [..., S, d_k], values [..., S, d_v], memories [..., d_v, d_k]; any leading axes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def sum_type(*arrays: jax.Array) -> jnp.dtype:
    """The dtype in which sums over these arrays are computed."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *arrays)


def result_type(*arrays: jax.Array) -> jnp.dtype:
    """The dtype of a result: that of the arrays, or float32 for integers and truth values."""
    kind = jnp.result_type(*arrays)
    return kind if jnp.issubdtype(kind, jnp.inexact) else jnp.dtype(jnp.float32)


def finite_logarithms(logarithms: jax.Array, kind: jnp.dtype) -> jax.Array:
    """Logarithms in the dtype `kind`, bounded from below where their exponential is 0 anyway.

    Sums of logarithms beyond that, such as -inf, would be inexact or infinite.
    """
    return jnp.maximum(logarithms, math.log(jnp.finfo(kind).smallest_subnormal) - 1).astype(kind)


def varying_like(tree: PyTree, *others: PyTree) -> PyTree:
    """The same arrays, which inside `jax.shard_map` vary over all mesh axes over which an array of the trees does.

    The carry of a loop must have this type from the start, zeros included.
    """
    axes = frozenset().union(*(jax.typeof(x).mat.varying for x in jax.tree.leaves((tree, others))))
    return jax.tree.map(lambda array: varying_over(array, axes), tree)


def varying_over(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    """The same array, which inside `jax.shard_map` varies over these axes of the mesh, too."""
    missing = tuple(axes - jax.typeof(array).mat.varying)
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def chunked(array: jax.Array, size: int) -> jax.Array:
    """[..., S, d] -> [..., ceil(S / size), size, d], with zeros after the end: at least one chunk."""
    *leading, length, width = array.shape
    missing = -length % size if length else size
    if missing:
        array = jnp.pad(array, [(0, 0)] * len(leading) + [(0, missing), (0, 0)])
    return array.reshape(*leading, (length + missing) // size, size, width)


def unchunked(chunks: jax.Array, length: int) -> jax.Array:
    """[..., n, size, d] -> [..., length, d]: the inverse of `chunked`."""
    *leading, count, size, width = chunks.shape
    return chunks.reshape(*leading, count * size, width)[..., :length, :]


def outer_products(keys: jax.Array, values: jax.Array) -> jax.Array:
    """sum_s v_s k_s^T."""
    return jnp.einsum("...sv,...sk->...vk", values, keys, preferred_element_type=sum_type(values))


def read_all(memory: jax.Array, queries: jax.Array) -> jax.Array:
    """M q_i for every i, in the dtype of sums. The memory is cast to the dtype of the queries for the product, unless
    that is float16, whose largest number is 65504."""
    kind = result_type(queries)
    kind = sum_type(queries) if kind == jnp.float16 else kind
    memory, queries = memory.astype(kind), queries.astype(kind)
    return jnp.einsum("...vk,...sk->...sv", memory, queries, preferred_element_type=sum_type(queries))
