"""The base class of lenmem's Linen modules, with their dtypes, and a helper that passes on `deterministic`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from lenmem.fields import check_fields
from lenmem.types import Dtype


class Part(nn.Module, kw_only=True):
    """A Linen module that computes in `dtype` with parameters of `param_dtype`.

    Field values are checked against their types (`lenmem.fields`); a wrong one is a ValueError.
    """

    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()

    @property
    def dtypes(self) -> dict[str, Any]:
        """Both dtypes, for submodules."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}


def told(call: Callable[..., Any], *arguments: Any, deterministic: bool) -> Any:
    """`call(*arguments)`, with `deterministic=` if its signature has it, since users' modules need not take it."""
    if "deterministic" in inspect.signature(call).parameters:
        return call(*arguments, deterministic=deterministic)
    return call(*arguments)
