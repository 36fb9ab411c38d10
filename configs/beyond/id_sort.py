"""id_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond id_sort
lenmem beyond id_sort --idea no_index
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("id_sort")
ideas = ideas_of("id_sort", "no_index")
