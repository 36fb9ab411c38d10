"""Sequences cut into chunks, and the sums of outer products that linear attention and linear recurrences share.

Shapes: keys and queries [..., S, d_k], values [..., S, d_v], memories [..., d_v, d_k]; any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sum_type(*arrays: jax.Array) -> jnp.dtype:
    """The dtype in which sums over these arrays are computed."""
    return jnp.result_type(jnp.float32, *arrays)


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
    """M q_i for every i, in the dtype of sums. The memory is cast to the dtype of the queries for the product."""
    memory = memory.astype(queries.dtype)
    return jnp.einsum("...vk,...sk->...sv", memory, queries, preferred_element_type=sum_type(queries))
