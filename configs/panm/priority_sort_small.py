"""Priority Sort of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/priority_sort_small
lenmem reproduce panm/priority_sort_small --rows priority_sort-panm-small

Rows: `priority_sort-<model>-small`, and `priority_sort-panm_a2_c<m>-small` with m Mode-2 pointers, as in Figure 8.

Rows `priority_sort-<model>-long` are the same with 20,000 steps.

Records: `results/panm/priority_sort-panm-small.json`, after 3,000 steps, and `priority_sort-panm-long.json`, after
20,000; the paper trains for 50,000. After 20,000 PANM answers 93, 88 and 23% of the tokens at lengths 10, 11 and 21; in
the paper 97, 97 and 86%. Why is not known: the authors' code for this task is not published.
"""

from lenmem.tasks.panm import PanmPrioritySort

from ._recipe import ablation_rows, small, small_rows

experiment = small(PanmPrioritySort(), steps=3000)
rows = small_rows(PanmPrioritySort(), "priority_sort", steps=3000)
rows |= ablation_rows(PanmPrioritySort(), "priority_sort", {"figure_8": [(2, 0), (2, 2)]}, steps=3000)
