"""PrioritySort as in Table 1b of Yang & Rush (2017).

lenmem train lantm/priority_sort
lenmem reproduce lantm/priority_sort --rows priority_sort-lantm-L

Expected: 6% exact match at 11-20 items in the best of 3 seeds, 1% in the median; with the open read gate
(`priority_sort-lantm-open_read_gate-L`) 100% and 76%. Seen: 11 min on one core.
"""

from lenmem.tasks.lantm import PrioritySort

from ._recipe import paper, table_rows

experiment = paper(PrioritySort())
rows = table_rows(PrioritySort(), "priority_sort")
