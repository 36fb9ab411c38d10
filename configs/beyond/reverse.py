"""reverse, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond reverse
lenmem beyond reverse --idea indexed_walks
lenmem beyond reverse --idea common
lenmem beyond reverse --idea far
lenmem beyond reverse --idea no_jumps
lenmem beyond reverse --idea soft
lenmem beyond reverse --idea no_reading
lenmem beyond reverse --idea one_head
"""

from ._recipe import ablations, ideas_of
from ._recipe import experiment as entry

experiment = entry("reverse")
ideas = ideas_of("reverse", "common", "far", "indexed_walks") | ablations("reverse")
