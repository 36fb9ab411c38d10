"""double, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond double
lenmem beyond double --idea common
lenmem beyond double --idea far
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("double")
ideas = ideas_of("double", "common", "far")
