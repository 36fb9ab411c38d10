"""RepeatCopy as in Table 1b of Yang & Rush (2017).

lenmem train lantm/repeat_copy
lenmem reproduce lantm/repeat_copy --rows repeat_copy-lantm-L

Not measured with both gates closed yet; with the open read gate see results/README.md.
"""

from lenmem.tasks.lantm import RepeatCopy

from ._recipe import paper, table_rows

experiment = paper(RepeatCopy())
rows = table_rows(RepeatCopy(), "repeat_copy")
