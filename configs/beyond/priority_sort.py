"""priority_sort, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond priority_sort
"""

from ._recipe import experiment as entry

experiment = entry("priority_sort")
