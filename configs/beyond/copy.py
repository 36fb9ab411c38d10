"""copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond copy
lenmem beyond copy --idea indexed_walks
lenmem beyond copy --idea common
lenmem beyond copy --idea far
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("copy")
ideas = ideas_of("copy", "common", "far", "indexed_walks")
