"""copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond copy
lenmem beyond copy --idea indexed_walks
lenmem beyond copy --idea common
"""

from ._recipe import common, indexed_walks
from ._recipe import experiment as entry

experiment = entry("copy")
ideas = common("copy") | indexed_walks("copy")
