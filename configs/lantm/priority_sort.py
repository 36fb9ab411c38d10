"""PrioritySort as in Table 1b of Yang & Rush (2017).

lenmem train lantm/priority_sort
lenmem reproduce lantm/priority_sort --rows priority_sort-lantm-L

Not measured with both gates closed yet; with the open read gate see results/README.md.
"""

from lenmem.tasks.lantm import PrioritySort

from ._recipe import paper, table_rows

experiment = paper(PrioritySort())
rows = table_rows(PrioritySort(), "priority_sort")
