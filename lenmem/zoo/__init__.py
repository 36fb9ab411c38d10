"""Trained networks by name.

    run = lenmem.load("zoo:lantm/reverse")

`shelf` finds them from their records, `cards` describes one as a folder that can be given away, `hub` sends such a
folder to Hugging Face and fetches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy

if TYPE_CHECKING:
    from lenmem.zoo import cards, hub, shelf
    from lenmem.zoo.shelf import Entry, entries, find, is_name
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"shelf": ["Entry", "entries", "find", "is_name"]})

__all__ = ["Entry", "cards", "entries", "find", "hub", "is_name", "shelf"]
