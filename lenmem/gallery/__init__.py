"""A static site that shows networks at work: their accuracy by length, and their memory step by step.

`scenes` collects the steps of a network on an example, `views` turns traces into figures, `pack` compresses arrays, and
`site` writes the pages. `page/` contains the HTML, CSS and JavaScript, and uPlot with its licence.
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
