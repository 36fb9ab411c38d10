"""Trained networks by name.

    run = lenmem.load("zoo:lantm/reverse")

`shelf` finds networks by their records, `cards` writes a network as a folder that can be shared, `hub` uploads such
folders to Hugging Face and downloads them.
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
