"""What an error message says beside the fact, and other libraries' errors in our words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from flax.errors import ScopeCollectionNotFound, ScopeParamNotFoundError, ScopeParamShapeError


def nearest(got: object, allowed: Iterable[str]) -> str:
    """` Did you mean 'name'?`, with the allowed name most like `got`; empty if none is like it."""
    close = difflib.get_close_matches(str(got), list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


@contextmanager
def parameters_fit() -> Iterator[None]:
    """ValueError where a network meets parameters that are not its own, as of other sizes or another vocabulary."""
    try:
        yield
    except (ScopeCollectionNotFound, ScopeParamNotFoundError, ScopeParamShapeError) as error:
        what = str(error).partition(" (https://")[0]
        raise ValueError(f"the parameters are those of another network, or of another task: {what}") from error
