"""InterleavedAdd as in Table 1b of Yang & Rush (2017).

lenmem train lantm/interleaved_add
lenmem reproduce lantm/interleaved_add --rows interleaved_add-lantm-L

Not solved. Records: `results/lantm/interleaved_add-lantm-L.json`, and for the best model of the row
`interleaved_add-slantm-s-L.json`.
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import paper, table_rows

experiment = paper(InterleavedAdd())
rows = table_rows(InterleavedAdd(), "interleaved_add")
