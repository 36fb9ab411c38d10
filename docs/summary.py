"""A Sphinx extension: each `automodule` with members begins with a table of them, with a line for each.

The table lists what autodoc will document below it, in the same order. The line is the first sentence of a docstring.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

import docstrings
from sphinx.pycode import ModuleAnalyzer


def members(module: str, chosen: Sequence[str] | None = None) -> dict[str, str]:
    """name -> first sentence, in the order of the source: what is defined in a module, public and documented."""
    home = importlib.import_module(module)
    analyzer = ModuleAnalyzer.for_module(module)
    described = {name: " ".join(lines) for (owner, name), lines in analyzer.find_attr_docs().items() if not owner}
    for name, value in vars(home).items():
        if getattr(value, "__module__", None) == module and name in analyzer.tagorder:
            described[name] = getattr(value, "__doc__", None) or ""
    names = chosen or sorted(described, key=lambda name: analyzer.tagorder[name])
    found = {name: first_sentence(described.get(name) or getattr(home, name).__doc__ or "") for name in names}
    return {name: line for name, line in found.items() if line and not name.startswith("_")}


def first_sentence(docstring: str) -> str:
    """Up to the first full stop that ends a sentence, on one line, without what stands in a block of its own."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]{2}\.)\s+(?=[A-Z`(])", paragraph, maxsplit=1)[0]


def table(module: str, chosen: Sequence[str] | None = None) -> list[str]:
    """The lines of the table, as reStructuredText; none if there is nothing to list."""
    rows = members(module, chosen)
    if len(rows) < 2:
        return []
    lines = [".. list-table::", "   :class: summary", "   :widths: 30 70", ""]
    for name, line in rows.items():
        lines += [f"   * - :py:obj:`{name} <{module}.{name}>`"]
        lines += [f"     - {docstrings.inline(line, module)}"]
    return [*lines, ""]


def _append(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "module" and options.members:
        lines += ["", *table(name, options.members if isinstance(options.members, list) else None)]


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx; after `docstrings`, which rewrites what it is given."""
    app.connect("autodoc-process-docstring", _append, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
