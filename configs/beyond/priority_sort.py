"""priority_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond priority_sort
lenmem beyond priority_sort --idea no_index
"""

from ._recipe import experiment as entry

experiment = entry("priority_sort")
ideas = {"no_index": entry("priority_sort", "two_way")}
