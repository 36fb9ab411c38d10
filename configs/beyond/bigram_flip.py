"""bigram_flip, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond bigram_flip
lenmem beyond bigram_flip --idea common
lenmem beyond bigram_flip --idea far
lenmem beyond bigram_flip --idea longer
lenmem beyond bigram_flip --idea soft
lenmem beyond bigram_flip --idea no_jumps
lenmem beyond bigram_flip --idea no_reading
lenmem beyond bigram_flip --idea one_head
"""

from ._recipe import ablations, ideas_of
from ._recipe import experiment as entry

experiment = entry("bigram_flip")
ideas = ideas_of("bigram_flip", "common", "far", "longer") | ablations("bigram_flip")
