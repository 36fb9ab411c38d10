"""Priority Sort of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/priority_sort_small
lenmem reproduce panm/priority_sort_small --rows priority_sort-panm-small

Rows: `priority_sort-<model>-small`, and `priority_sort-panm_a2_c<m>-small` with m Mode-2 pointers, as in Figure 8.

Rows `priority_sort-<model>-long` are the same with 20,000 steps.

Records, tokens right at lengths 10, 11 and 21 in percent, for which the paper prints 97, 97 and 86 after 50,000 steps:
after 20,000, PANM has 93, 88 and 23 (`priority_sort-panm-long`), and the network of the authors' code 97, 96 and 56
(`priority_sort-panm_published-long`). Its controller also reads the memory by content, with its own state as the query;
in the paper's text, only pointers select what is read. The authors' code for this task is not published.
"""

from lenmem.tasks.panm import PanmPrioritySort

from ._recipe import ablation_rows, small, small_rows

experiment = small(PanmPrioritySort(), steps=3000)
rows = small_rows(PanmPrioritySort(), "priority_sort", steps=3000)
rows |= ablation_rows(PanmPrioritySort(), "priority_sort", {"figure_8": [(2, 0), (2, 2)]}, steps=3000)
