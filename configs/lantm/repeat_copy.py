"""RepeatCopy as in Table 1b of Yang & Rush (2017).

lenmem train lantm/repeat_copy
lenmem reproduce lantm/repeat_copy --rows repeat_copy-lantm-L

Expected: not solved; 17% of tokens in the median of 3 seeds, no answer whole. SLANTM with the open read gate has 20%
exact match in its best seed: see results/README.md. Seen: 15 min on one core.
"""

from lenmem.tasks.lantm import RepeatCopy

from ._recipe import paper, table_rows

experiment = paper(RepeatCopy())
rows = table_rows(RepeatCopy(), "repeat_copy")
