"""InterleavedAdd as in Table 1b of Yang & Rush (2017).

lenmem train lantm/interleaved_add
lenmem reproduce lantm/interleaved_add --rows interleaved_add-lantm-L

Expected: not solved; 22% of tokens in the median of 3 seeds, no answer whole. Open read gate: see results/README.md.
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import paper, table_rows

experiment = paper(InterleavedAdd())
rows = table_rows(InterleavedAdd(), "interleaved_add")
