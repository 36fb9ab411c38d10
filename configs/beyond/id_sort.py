"""id_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond id_sort
"""

from ._recipe import experiment as entry

experiment = entry("id_sort")
