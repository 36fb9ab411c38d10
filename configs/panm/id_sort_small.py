"""ID Sort of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/id_sort_small
lenmem reproduce panm/id_sort_small --rows id_sort-panm-small

Rows: `id_sort-<model>-small`, and `id_sort-panm_a<n>_c<m>-small` with n Mode-1 and m Mode-2 pointers, as in Figure 8.
The paper varies n only on Copy and Reverse; here such rows are compared with its PANM with 2 and 1 pointers. The
queries of Mode 2 are computed from the values that Mode 1 read, so without Mode 1 there is no Mode 2 either.

Rows `id_sort-<model>-long` are the same with 20,000 steps.

Records: `results/panm/id_sort-<model>-small.json`, after 3,000 steps; the paper trains for 100,000. One Mode-1 pointer
is sufficient, but Mode 2 is necessary. As in the authors' code (`id_sort-panm_published-long`, 20,000 steps) it has
100.0 / 99.9 / 74.7 / 44.7 / 25.8 at 10 / 11 / 21 / 41 / 81, where the paper prints 100 / 100 / 56 / 25 / 15.
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
