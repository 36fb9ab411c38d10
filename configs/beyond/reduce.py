"""reduce, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond reduce
lenmem beyond reduce --idea single
lenmem beyond reduce --idea eager
lenmem beyond reduce --idea short
lenmem beyond reduce --idea certain
lenmem beyond reduce --idea no_reading
"""

from ._recipe import certain, eager, short, single
from ._recipe import experiment as entry

experiment = entry("reduce")
ideas = (
    single("reduce")
    | certain("reduce")
    | eager("reduce")
    | short("reduce")
    | {"no_reading": entry("reduce", reading=False)}
)
