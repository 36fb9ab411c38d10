"""The axis of seeds: networks that differ only in their random numbers are one computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

PyTree = Any
SEEDS = "seeds"
"""Name of the mapped axis of seeds."""


def over_seeds(function: Callable[..., PyTree], *, spread: str | None = None) -> Callable[..., PyTree]:
    """`jax.vmap` of `function` over the leading axis of its first argument, named `SEEDS`; results [S, ...].

    A single seed is computed without the axis: on a CPU, XLA's sums of products take up to twenty times as long if an
    axis has size 1 (jaxlib 0.10.2). `spread`: the axis of a device mesh over which seeds are distributed.
    """

    def mapped(of_seeds: PyTree, *others: Any) -> PyTree:
        named: dict[str, Any] = {"axis_name": SEEDS, "spmd_axis_name": spread}
        if jax.tree.leaves(of_seeds)[0].shape[0] > 1:
            return jax.vmap(function, in_axes=(0, *[None] * len(others)), **named)(of_seeds, *others)
        alone = jax.tree.map(lambda x: x[0], of_seeds)
        return jax.vmap(lambda: function(alone, *others), axis_size=1, **named)()

    return mapped
