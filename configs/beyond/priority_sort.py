"""priority_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond priority_sort
lenmem beyond priority_sort --idea indexed_walks
lenmem beyond priority_sort --idea common
lenmem beyond priority_sort --idea no_reading
"""

from ._recipe import common, indexed_walks
from ._recipe import experiment as entry

experiment = entry("priority_sort")
# The order needs no preparation: the heads have nothing to do while the input is read, but to stay.
ideas = (
    common("priority_sort")
    | indexed_walks("priority_sort")
    | {
        "no_reading": entry("priority_sort", reading=False),
        "no_index": entry("priority_sort", "two_way"),
    }
)
