"""The base class of lenmem's Linen modules, and helpers for calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from lenmem.fields import check_fields, settable
from lenmem.types import Dtype


class Module(nn.Module):
    """A Linen module that sows nothing while parameters are created, so that `init` returns parameters alone."""

    def sow(self, *arguments: Any, **options: Any) -> bool:
        """As in Flax."""
        return not self.is_initializing() and super().sow(*arguments, **options)


class Part(Module, kw_only=True):
    """A Linen module that computes in `dtype` with parameters of `param_dtype`.

    Field values are checked against their types (`lenmem.fields`); a wrong value raises a ValueError.
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


def with_dtype(module: nn.Module, dtype: Dtype) -> nn.Module:
    """The module that computes in `dtype` wherever a field `dtype` is None: its own, and those of modules in fields."""
    known: dict[int, nn.Module] = {}  # a module in two fields stays one module

    def changed(value: Any) -> Any:
        if isinstance(value, nn.Module):
            if id(value) not in known:
                known[id(value)] = of_module(value)
            return known[id(value)]
        return type(value)(map(changed, value)) if type(value) in (tuple, list) else value

    def of_module(module: nn.Module) -> nn.Module:
        fields = {name: changed(getattr(module, name)) for name in settable(module)}
        if fields.get("dtype", dtype) is None:
            fields["dtype"] = dtype
        return module.clone(**fields)

    return of_module(module)


def told(call: Callable[..., Any], *arguments: Any, **known: Any) -> Any:
    """`call(*arguments)` with the keyword arguments out of `known` that its signature has.

    Users' modules may have an argument `deterministic`, and the `start` of a cell also `lengths`, but need not.
    """
    asked = inspect.signature(call).parameters
    return call(*arguments, **{name: value for name, value in known.items() if name in asked})


def in_pieces(module: nn.Module) -> bool:
    """Whether a module is applied to the next piece of a sequence, with its state in the collection `memory`."""
    return module.is_mutable_collection("memory") and not module.is_initializing()
