"""copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond copy
lenmem beyond copy --idea indexed_walks
"""

from ._recipe import experiment as entry
from ._recipe import indexed_walks

experiment = entry("copy")
ideas = indexed_walks("copy")
