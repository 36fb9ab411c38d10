"""interleaved_add, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond interleaved_add
lenmem beyond interleaved_add --idea common
lenmem beyond interleaved_add --idea far
lenmem beyond interleaved_add --idea certain
lenmem beyond interleaved_add --idea walks
lenmem beyond interleaved_add --idea slow_walks
lenmem beyond interleaved_add --idea no_reading
lenmem beyond interleaved_add --idea longer
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("interleaved_add")
ideas = ideas_of("interleaved_add", "common", "far", "certain", "walks", "slow_walks", "no_reading", "longer")
