"""Priority Sort as in Table 11 of Le et al. (2024), at the published scale.

lenmem train panm/priority_sort
lenmem reproduce panm/priority_sort --rows priority_sort-panm

Not measured: 50,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import PanmPrioritySort

from ._recipe import paper, table_rows

experiment = paper(PanmPrioritySort())
rows = table_rows(PanmPrioritySort(), "priority_sort")
