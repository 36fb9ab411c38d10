"""Copy as in Table 7 of Le et al. (2024), at the published scale.

lenmem train panm/copy
lenmem reproduce panm/copy --rows copy-panm

Not measured: 50,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import PanmCopy

from ._recipe import paper, table_rows

experiment = paper(PanmCopy())
rows = table_rows(PanmCopy(), "copy")
