"""odd_first, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond odd_first
lenmem beyond odd_first --idea common
lenmem beyond odd_first --idea far
lenmem beyond odd_first --idea certain
lenmem beyond odd_first --idea walks
lenmem beyond odd_first --idea no_reading
lenmem beyond odd_first --idea longer
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("odd_first")
ideas = ideas_of("odd_first", "common", "far", "certain", "walks", "no_reading", "longer")
