"""Copy of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/copy_small
lenmem reproduce panm/copy_small --rows copy-panm-small

Rows: `copy-<model>-small`, and `copy-panm_a<n>_c<m>-small` with n Mode-1 and m Mode-2 pointers, as in Figures 7 and 8.

Token accuracy in % at lengths 9, 10, 20, 40 and 80, median of 3 seeds after 2,000 steps (the paper's after 50,000):

    panm               100  100   93   49   35    (100  100   84   52   36)
    ptrnet             100  100   54   34   24    (100   90   52   32   20)
    content_attention  100  100   63   32   20    (100   92   53   33   22)
    neural_stack        94   88   37   14   11    (100   90   47   29   17)
    lstm                81   74   33   15   11    (100   47   11   10   10)
    transformer         38   29   18   14   13    (100   20   16   13   11)

At length 20 with n Mode-1 pointers and no Mode 2: 36, 91, 96 and 99% for n = 0 to 3; with two of each 96%. One to five
minutes a row on one core of an AMD EPYC with other work on it.
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
