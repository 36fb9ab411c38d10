"""Kernels in Pallas. A module is imported when an operation uses it; `import lenmem` imports none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from lenmem import lazy
from lenmem.errors import choices

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.attach(__name__)

Implementation = Literal["auto", "xla", "pallas"]
"""How an operation is computed. `auto`: by a kernel where that is the best form, which depends on the platform."""


def checked(implementation: str) -> None:
    """ValueError unless it is an `Implementation`."""
    allowed = get_args(Implementation)
    if implementation not in allowed:
        raise ValueError(f"there is no implementation {implementation!r}.{choices(implementation, allowed)}")
