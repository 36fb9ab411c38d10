"""Dynamic Recall of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/dynamic_recall_small
lenmem reproduce panm/dynamic_recall_small --rows dynamic_recall-panm-small

The task as described is ambiguous: no network can exceed an expected accuracy of 71.8, 69.4, 52.3, 38.4 and 29.6% at
lengths 9, 10, 20, 40 and 80 (`DynamicRecall.ceiling_at`). At 9 and 10 the printed numbers are higher.

Rows `dynamic_recall-<model>-long` are the same with 20,000 steps. In rows `dynamic_recall-<model>-first-long` the query
means the first token that is equal to it, so every answer is determined.

Records: `results/panm/dynamic_recall-panm-small.json`, after 3,000 steps, and `dynamic_recall-panm-long.json`, after
20,000; the paper trains for 50,000. After 20,000, PANM is near the highest possible accuracy at 9 and 20 and above
the printed numbers at 20, 40 and 80, also with the settings of the published code
(`dynamic_recall-panm_published-long.json`).
"""

from lenmem.tasks.panm import DynamicRecall

from ._recipe import small, small_rows

experiment = small(DynamicRecall(), steps=3000)
rows = small_rows(DynamicRecall(), "dynamic_recall", steps=3000)
rows |= small_rows(DynamicRecall(occurrence="first"), "dynamic_recall", steps=3000, variant="-first")
