"""reduce, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond reduce
lenmem beyond reduce --idea single
lenmem beyond reduce --idea eager
lenmem beyond reduce --idea short
lenmem beyond reduce --idea certain
lenmem beyond reduce --idea no_reading
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("reduce")
ideas = ideas_of("reduce", "single", "certain", "eager", "short", "no_reading")
