"""Reverse as in Table 8 of Le et al. (2024), at the published scale.

lenmem train panm/reverse
lenmem reproduce panm/reverse --rows reverse-panm

Not measured: 50,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import PanmReverse

from ._recipe import paper, table_rows

experiment = paper(PanmReverse())
rows = table_rows(PanmReverse(), "reverse")
