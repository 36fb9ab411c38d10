"""Copy of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/copy_small
lenmem reproduce panm/copy_small --rows copy-panm-small

Rows: `copy-<model>-small`, and `copy-panm_a<n>_c<m>-small` with n Mode-1 and m Mode-2 pointers, as in Figures 7 and 8.

Rows `copy-<model>-long` are the same with 20,000 steps.

Records: `results/panm/copy-<model>-small.json`, after 2,000 steps; the paper trains for 50,000.
"""

from lenmem.tasks.panm import PanmCopy

from ._recipe import ablation_rows, small, small_rows

experiment = small(PanmCopy(), steps=2000)
rows = small_rows(PanmCopy(), "copy", steps=2000)
rows |= ablation_rows(
    PanmCopy(),
    "copy",
    {"figure_7": [(0, 0), (1, 0), (2, 0), (3, 0)], "figure_8": [(2, 2)]},
    steps=2000,
)
