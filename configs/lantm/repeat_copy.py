"""RepeatCopy as in Table 1b of Yang & Rush (2017).

lenmem train lantm/repeat_copy
lenmem reproduce lantm/repeat_copy --rows repeat_copy-lantm-L

Not solved. Records: `results/lantm/repeat_copy-lantm-L.json`, and for SLANTM with the open read gate
`repeat_copy-slantm-open_read_gate-L.json`.
"""

from lenmem.tasks.lantm import RepeatCopy

from ._recipe import paper, table_rows

experiment = paper(RepeatCopy())
rows = table_rows(RepeatCopy(), "repeat_copy")
