"""A Sphinx extension for the docstrings of lenmem, which are plain text and not reStructuredText.

Paragraphs stay paragraphs. Names in backticks become links if they name something in lenmem. Indented blocks and
aligned columns are shown literally. Everything else is escaped, so `w_i`, `|x|` and `*p` are shown as written.
References to a flat name (`lenmem.ops.nam_write`) are resolved to the module where the object is documented.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

_INLINE = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)|(?<![\w*])\*(?P<stress>[A-Za-z][\w ]*)\*(?![\w*])")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_BULLET = re.compile(r"\* ")
_ARGUMENT = re.compile(r" {4}(\w+): ")
_COLUMNS = re.compile(r"\S {3,}\S")


def locate(name: str, module: str | None = None) -> str | None:
    """The full name in lenmem of `name` as used in `module`, or None."""
    start = sys.modules.get(module or "")
    first, *rest = name.split(".")
    if first == "lenmem":
        found: Any = importlib.import_module("lenmem")
    elif start is not None and hasattr(start, first):
        found = getattr(start, first)
    else:
        return None
    path = found.__name__ if inspect.ismodule(found) else None
    for part in rest:
        if inspect.ismodule(found) and not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except ImportError:
                return None
        try:
            found = getattr(found, part)
        except AttributeError:
            return None
        if not inspect.ismodule(found) and path is not None:
            path = f"{path}.{part}"
    home = getattr(found, "__name__" if inspect.ismodule(found) else "__module__", None)
    if not isinstance(home, str) or not home.startswith("lenmem"):
        return path
    return home if inspect.ismodule(found) else f"{home}.{getattr(found, '__qualname__', first)}"


def inline(text: str, module: str | None) -> str:
    """One run of text as reStructuredText."""
    pieces, end = [], 0
    for match in _INLINE.finditer(text):
        pieces.append(_escaped(text[end : match.start()]))
        end = match.end()
        code = match["code"]
        if code is None:
            pieces.append(f"*{match['stress']}*")
            continue
        target = locate(code, module) if _NAME.fullmatch(code) else None
        pieces.append(f":py:obj:`{code} <{target}>`" if target else f"``{code}``")
        if text[end : end + 1].isalnum():
            pieces.append("\\ ")
    return "".join([*pieces, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def restructured(lines: Iterable[str], module: str | None = None) -> list[str]:
    """A docstring of lenmem as lines of reStructuredText."""
    result: list[str] = []
    arguments = False
    for kind, block in _blocks(lines):
        if kind == "literal" and arguments:
            for line in block:
                argument = _ARGUMENT.match(line)
                text = inline(line[argument.end() :] if argument else line.strip(), module)
                result.append(f"* ``{argument[1]}``: {text}" if argument else f"  {text}")
        elif kind == "literal":
            result += ["::", "", *textwrap.indent(textwrap.dedent("\n".join(block)), "    ").split("\n")]
        elif kind == "bullets":
            # Inline code may continue on the next line.
            for item in re.split(r"\n(?=\* )", "\n".join(block)):
                result.append("* " + inline(" ".join(item[2:].split()), module))
        else:
            result += inline("\n".join(block), module).split("\n")
        arguments = block == ["Args:"]
        result.append("")
    return result


def _blocks(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(kind, lines) of the paragraphs: `text`, `bullets`, or `literal`."""
    blocks: list[tuple[str, list[str]]] = []
    last = ""
    for line in lines:
        line = line.rstrip()
        if not line:
            # An indented block continues over an empty line if the next line is indented too.
            last = "literal gap" if last == "literal" else ""
            continue
        indented = line.startswith("    ") or (line.startswith("  ") and last != "bullets")
        kind = "literal" if indented else "bullets" if _BULLET.match(line) or line.startswith("  ") else "text"
        if last == "literal gap" and kind == "literal":
            blocks[-1][1].append("")
        if kind == last.partition(" ")[0]:
            blocks[-1][1].append(line)
        else:
            blocks.append((kind, [line]))
        last = kind
    return [(_aligned(kind, block), block) for kind, block in blocks]


def _aligned(kind: str, block: list[str]) -> str:
    """`literal` for text in columns, which must be kept as it is; else its kind."""
    columns = sum(bool(_COLUMNS.search(line)) for line in block)
    return "literal" if kind == "text" and columns > 1 else kind


def _module_of(what: str, name: str, obj: Any) -> str | None:
    if what == "module":
        return name
    return getattr(obj, "__module__", None) if what != "attribute" else None


def _read(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines, _module_of(what, name, obj))


def _shorten(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Drops the signature of classes whose fields are listed below; elsewhere shortens JAX's Array."""
    if what == "class" and (dataclasses.is_dataclass(obj) or hasattr(obj, "_fields")):
        return "", None
    return tuple(part and part.replace("jaxlib._jax.Array", "Array") for part in (signature, returns))


def _lead_home(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolves a reference to an object by another name than the one it is documented under."""
    target = locate(node.get("reftarget", "")) if node.get("refdomain") == "py" else None
    if target is None or target == node["reftarget"]:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, node["reftype"], target, node, content)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _read)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("missing-reference", _lead_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
