"""priority_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond priority_sort
lenmem beyond priority_sort --idea indexed_walks
lenmem beyond priority_sort --idea common
lenmem beyond priority_sort --idea far
lenmem beyond priority_sort --idea no_reading
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("priority_sort")
# The order needs no preparation, so the heads only have to stay while the input is read.
ideas = ideas_of("priority_sort", "common", "far", "indexed_walks", "no_reading", "no_index")
