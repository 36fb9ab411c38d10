"""id_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond id_sort
lenmem beyond id_sort --idea no_index
"""

from ._recipe import experiment as entry

experiment = entry("id_sort")
ideas = {"no_index": entry("id_sort", "two_way")}
