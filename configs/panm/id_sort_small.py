"""ID Sort of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/id_sort_small
lenmem reproduce panm/id_sort_small --rows id_sort-panm-small

Rows: `id_sort-<model>-small`, and `id_sort-panm_a<n>_c<m>-small` with n Mode-1 and m Mode-2 pointers, as in Figure 8.
The paper varies n on Copy and Reverse alone; here such rows stand beside its 2 and 1. Mode 2 asks with what Mode 1
read, so that without Mode 1 there is neither.

Token accuracy in % at lengths 10, 11, 21, 41 and 81, median of 3 seeds after 3,000 steps (the paper's after 100,000):

    panm               100  100   91   41   21    (100  100   56   25   15)
    ptrnet              56   49   28   20   15    ( 27   24   15   12   11)
    content_attention   28   27   21   17   15    ( 98   56   28   16   12)
    lstm                28   27   19   14   11    ( 48   40   20   13   11)
    transformer         28   27   19   13   11    ( 34   29   19   15   12)

One Mode-1 pointer is enough (100, 99, 88, 40, 21). Mode 2 is what sorts: 21% at length 21 without it, 82% with two
heads.
"""

from lenmem.tasks.panm import IDSort

from ._recipe import ablation_rows, small, small_rows

experiment = small(IDSort(), steps=3000)
rows = small_rows(IDSort(), "id_sort", steps=3000)
rows |= ablation_rows(
    IDSort(),
    "id_sort",
    {"table_12": [(0, 0), (1, 1), (3, 1)], "figure_8": [(2, 0), (2, 2)]},
    steps=3000,
)
