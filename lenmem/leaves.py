"""Trees of arrays as named leaves, for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from lenmem.keys import bits, typed
from lenmem.types import PyTree


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """{path joined by "/": leaf}, in the order of the tree. Random keys are replaced by their bits.

    Raises ValueError if two leaves have the same name.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(bits(tree))[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        if name in named:
            raise ValueError(f"two leaves have the same name {name!r}")
        named[name] = leaf
    return named


def from_leaves(leaves: Mapping[str, Any], like: PyTree) -> PyTree:
    """The inverse of `named_leaves`: a tree with the structure of `like`, and keys where `like` has keys."""
    return typed(jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in named_leaves(like)]), like)


def check_fit(what: str, saved: Mapping[str, Any], wanted: Mapping[str, Any], *, partial: bool = False) -> None:
    """Raises ValueError, with the differences, if saved leaves differ from the wanted ones in name, shape or dtype.

    With `partial`, further saved leaves are allowed.
    """
    faults = [f"{name} is missing" for name in wanted if name not in saved]
    faults += [f"{name} is unexpected" for name in saved if name not in wanted and not partial]
    for name, leaf in wanted.items():
        if name in saved and (got := _described(saved[name])) != (asked := _described(leaf)):
            faults.append(f"{name} is {got}, expected {asked}")
    if faults:
        raise ValueError(f"{what} does not fit: {shortened(faults)}")


def shortened(words: list[str], most: int = 8) -> str:
    """The first items of a list, and the number of the others."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _described(leaf: Any) -> str:
    return f"{leaf.dtype.name}{list(leaf.shape)}"
