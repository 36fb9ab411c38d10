"""A tree of arrays as named leaves, which is how files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from lenmem.keys import bits, typed
from lenmem.types import PyTree


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """{path joined by "/": leaf}, in the order of the tree; of random keys the bits.

    ValueError where two leaves have the same name.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(bits(tree))[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        if name in named:
            raise ValueError(f"two leaves have the same name {name!r}")
        named[name] = leaf
    return named


def from_leaves(leaves: Mapping[str, Any], like: PyTree) -> PyTree:
    """The inverse: a tree with the structure of `like`, and keys where it has keys."""
    return typed(jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in named_leaves(like)]), like)


def check_fit(what: str, saved: Mapping[str, Any], wanted: Mapping[str, Any], *, partial: bool = False) -> None:
    """ValueError, naming every difference, where saved leaves are not those that are wanted.

    Leaves are compared by name, shape and dtype. With `partial`, there may be more saved than wanted.
    """
    faults = [f"{name} is missing" for name in wanted if name not in saved]
    faults += [f"{name} is one too many" for name in saved if name not in wanted and not partial]
    for name, leaf in wanted.items():
        if name in saved and (got := _described(saved[name])) != (asked := _described(leaf)):
            faults.append(f"{name} is {got}, expected {asked}")
    if faults:
        raise ValueError(f"{what} does not fit: {shortened(faults)}")


def shortened(words: list[str], most: int = 8) -> str:
    """The first words of a list, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _described(leaf: Any) -> str:
    return f"{leaf.dtype.name}{list(leaf.shape)}"
