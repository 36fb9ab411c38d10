"""A static site that shows networks at work: how far they go, and their memory step by step.

`scenes` computes what a network does on one example, `views` says which trace is drawn how, `pack` makes arrays small,
`site` writes the pages. `page/` holds the HTML, CSS and JavaScript, and uPlot with its licence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy

if TYPE_CHECKING:
    from lenmem.gallery import pack, scenes, site, views
    from lenmem.gallery.site import DEFAULT, write
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"site": ["DEFAULT", "write"]})

__all__ = ["DEFAULT", "pack", "scenes", "site", "views", "write"]
