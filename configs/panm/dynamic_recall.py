"""Dynamic Recall as in Table 10 of Le et al. (2024), at the published scale.

lenmem train panm/dynamic_recall
lenmem reproduce panm/dynamic_recall --rows dynamic_recall-panm

The task as described is ambiguous: no network can exceed an expected accuracy of 71.8, 69.4, 52.3, 38.4 and 29.6% at
lengths 9, 10, 20, 40 and 80 (`DynamicRecall.ceiling_at`). At 9 and 10 the printed numbers are higher.

Not measured: 50,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import DynamicRecall

from ._recipe import paper, table_rows

experiment = paper(DynamicRecall())
rows = table_rows(DynamicRecall(), "dynamic_recall")
