"""Copy as in Table 1b of Yang & Rush (2017).

lenmem train lantm/copy
lenmem reproduce lantm/copy --rows copy-lantm-L

Expected: 99.8% exact match at 65-128 in the median of 3 seeds. Seen: 11 min on one core of an AMD EPYC.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import paper, table_rows

experiment = paper(Copy())
rows = table_rows(Copy(), "copy")
