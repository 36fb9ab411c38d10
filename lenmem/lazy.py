"""Packages that import their submodules, and names from these, on first use (PEP 562).

    if not TYPE_CHECKING:
        __getattr__, __dir__ = lazy.attach(__name__, {"runs": ("measure",)})

Then `import package; package.measure` and `package.submodule.name` work, and importing the package is cheap.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any


def attach(
    package: str, homes: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, for its public submodules and the names in `homes`.

    Args:
        package: the package's `__name__`.
        homes: submodule -> the names that the package exports from it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def submodules() -> set[str]:
        found = {module.name for module in pkgutil.iter_modules(sys.modules[package].__path__)}
        return {name for name in found if not name.startswith("_")}

    def get(name: str) -> Any:
        if name in home_of:
            value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and name in submodules():
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *submodules()})

    return get, names
