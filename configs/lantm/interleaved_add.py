"""InterleavedAdd as in Table 1b of Yang & Rush (2017).

lenmem train lantm/interleaved_add
lenmem reproduce lantm/interleaved_add --rows interleaved_add-lantm-L

Expected: not solved; 22% of tokens in the median of 3 seeds, no answer whole. SLANTM-s (`interleaved_add-slantm-s-L`)
reaches 37% exact match at 17-32 digits in its best seed.
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import paper, table_rows

experiment = paper(InterleavedAdd())
rows = table_rows(InterleavedAdd(), "interleaved_add")
