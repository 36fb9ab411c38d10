"""double, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond double
lenmem beyond double --idea indexed_walks
"""

from ._recipe import experiment as entry
from ._recipe import indexed_walks

experiment = entry("double")
ideas = indexed_walks("double")
