"""Suggestions in error messages, the place of an error, and conversion of other errors to ValueError."""

from __future__ import annotations

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flax.errors import ScopeCollectionNotFound, ScopeParamNotFoundError, ScopeParamShapeError

FEW = 8
"""Most names listed in a message. If there are more, only the nearest are listed."""
_NOT_OWN = (
    Path(__file__).resolve().parent,
    *(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")),
)
"""Where lenmem, Python and other packages are."""


def nearest(got: object, allowed: Iterable[str]) -> str:
    """` Did you mean 'one', 'two' or 'three'?`, with the allowed names most similar to `got`; empty if none is similar.

    A name such as `lantm/copy` or `--training.steps` is also compared by its last part.
    """
    text = str(got)

    def likeness(name: str) -> float:
        last = re.split(r"[./]", name)[-1].removeprefix("--")
        return max(_ratio(text, name), 0.95 * _ratio(text.removeprefix("--"), last))

    scored = sorted(((likeness(name), name) for name in dict.fromkeys(allowed)), key=lambda pair: -pair[0])
    close = [repr(name) for score, name in scored[:3] if score >= 0.6]
    if not close:
        return ""
    *others, last = close
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def choices(got: object, allowed: Iterable[str], listed: str = "", *, every: bool = False) -> str:
    """Suggestions: ` Did you mean 'this'? Allowed: this, that.`

    If there are many names, only the nearest are given; `listed` is the command that lists them all. `every`: all names
    are given, since no command lists them.
    """
    names = list(dict.fromkeys(allowed))
    if every or len(names) <= FEW:
        return f"{nearest(got, names)} Allowed: {', '.join(names) or 'none'}."
    some = nearest(got, names) or f" There are {len(names)}, such as {', '.join(names[:3])}."
    return f"{some} All of them: {listed}" if listed else some


def users_line(error: BaseException) -> str | None:
    """`FILE, line N`: the innermost line of the traceback that is not of lenmem, another package or Python, such as a
    line of a user's class; None if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not any(map(Path(frame.filename).resolve().is_relative_to, _NOT_OWN))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


@contextmanager
def readable(path: str | os.PathLike[str], expected: str = "") -> Iterator[None]:
    """Raises ValueError, with the path and the `expected` contents, if a file or directory cannot be read.

    If a relative path is missing, the message says in which directory it was looked for.
    """
    wanted = f"; expected {expected}" if expected else ""
    try:
        yield
    except OSError as error:
        elsewhere = isinstance(error, FileNotFoundError) and not os.path.isabs(path)
        why = f"{error.strerror or error}{f' in {os.getcwd()}' if elsewhere else ''}"
        raise ValueError(f"{path} cannot be read ({why}){wanted}") from None
    except ValueError as error:
        if "embedded null byte" not in str(error):
            raise
        raise ValueError(f"{str(path)!r} cannot be read{wanted}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def parameters_fit() -> Iterator[None]:
    """Raises ValueError if parameters do not fit the network, for instance because they have other sizes."""
    try:
        yield
    except (ScopeCollectionNotFound, ScopeParamNotFoundError, ScopeParamShapeError) as error:
        what = str(error).partition(" (https://")[0]
        raise ValueError(f"the parameters are those of another network, or of another task: {what}") from error
