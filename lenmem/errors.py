"""What an error message says beside the fact."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(got: object, allowed: Iterable[str]) -> str:
    """` Did you mean 'name'?`, with the allowed name most like `got`; empty if none is like it."""
    close = difflib.get_close_matches(str(got), list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
