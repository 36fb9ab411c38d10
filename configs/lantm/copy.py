"""Copy as in Table 1b of Yang & Rush (2017).

lenmem train lantm/copy
lenmem reproduce lantm/copy --rows copy-lantm-L

Record: `results/lantm/copy-lantm-L.json`.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import paper, table_rows

experiment = paper(Copy())
rows = table_rows(Copy(), "copy")
