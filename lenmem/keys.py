"""Random keys. They are typed keys (`jax.random.key`) everywhere except in files, which contain their raw bits."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp

from lenmem.types import PyTree

_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def namespaced(key: jax.Array, *names: str | int | jax.Array) -> jax.Array:
    """Folds names (strings or integers) into a key, one by one.

    JAX draws are prefix-stable (`randint(k, (20,)) == randint(k, (40,))[:20]`), so one key must not serve two purposes:
    training sequences would occur as prefixes of longer test sequences.
    """
    for name in names:
        key = jax.random.fold_in(key, zlib.crc32(name.encode()) if isinstance(name, str) else name)
    return key


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed keys, or the shape of such an array."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bits(tree: PyTree) -> PyTree:
    """The tree with keys replaced by their raw uint32 bits, and shapes of keys by those of the bits."""

    def bits_or_leaf(leaf: Any) -> Any:
        if not is_key(leaf):
            return leaf
        if isinstance(leaf, jax.Array):
            return jax.random.key_data(leaf)
        shape = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=leaf.sharding)

    return jax.tree.map(bits_or_leaf, tree)


def typed(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of `bits`: converts bits to keys where `like` has keys."""

    def key_or_leaf(leaf: Any, expected: Any) -> Any:
        if not is_key(expected):
            return leaf
        kind = next(name for name in _IMPLEMENTATIONS if jax.random.key(0, impl=name).dtype == expected.dtype)
        return jax.random.wrap_key_data(jnp.asarray(leaf), impl=kind)

    return jax.tree.map(key_or_leaf, tree, like)
