"""Progress of long computations. The library reports it but prints nothing; callers may register a listener.

with progress.track("measuring") as at:    # in the library
    at(0.5)

with progress.listened(shown):          # in the command line, or a notebook
    lenmem.measure(experiment, params)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

At = Callable[[float], None]
"""Takes the fraction that is done, from 0 to 1."""
Listener = Callable[[str], AbstractContextManager[At]]
"""Takes a description of the work; used as a context manager around it."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listened(listener: Listener) -> Iterator[None]:
    """Reports all work inside the context to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def wanted() -> bool:
    """Whether there is a listener."""
    return _listener.get() is not None


@contextmanager
def track(what: str) -> Iterator[At]:
    """Reports work inside the context. Yields a function that takes the fraction that is done."""
    listener = _listener.get()
    if listener is None:
        yield lambda share: None
    else:
        with listener(what) as at:
            yield at


def duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
