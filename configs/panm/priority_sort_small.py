"""Priority Sort of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/priority_sort_small
lenmem reproduce panm/priority_sort_small --rows priority_sort-panm-small

PANM, median of 3 seeds, at lengths 10, 11, 21, 41 and 81: 76, 69, 20, 14 and 12% after 3,000 steps (the paper's 50,000:
97, 97, 86, 32 and 27%). Seen: 8 min on one core of an AMD EPYC.
"""

from lenmem.tasks.panm import PanmPrioritySort

from ._recipe import small, small_rows

experiment = small(PanmPrioritySort(), steps=3000)
rows = small_rows(PanmPrioritySort(), "priority_sort", steps=3000)
