"""Parameters without an initialiser, for tests whose property holds for any parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lenmem.types import PyTree


def drawn(init: Callable[..., Any], *arguments: Any, scale: float = 0.5, seed: int = 0, **options: Any) -> PyTree:
    """U(-scale, scale) in the shapes that `init(key, *arguments, **options)` gives: to compile an initialiser takes
    seconds. Biases and gains differ from zero and one, too."""
    shapes = jax.eval_shape(functools.partial(init, **options), jax.random.key(0), *arguments).get("params", {})
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jax.device_put(generator.uniform(-scale, scale, x.shape).astype(x.dtype)), shapes)
