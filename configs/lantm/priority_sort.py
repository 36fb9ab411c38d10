"""PrioritySort as in Table 1b of Yang & Rush (2017).

lenmem train lantm/priority_sort
lenmem reproduce lantm/priority_sort --rows priority_sort-lantm-L

Records: `results/lantm/priority_sort-lantm-L.json`, and with the open read gate
`priority_sort-lantm-open_read_gate-L.json`.
"""

from lenmem.tasks.lantm import PrioritySort

from ._recipe import paper, table_rows

experiment = paper(PrioritySort())
rows = table_rows(PrioritySort(), "priority_sort")
