"""Reverse of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/reverse_small
lenmem reproduce panm/reverse_small --rows reverse-panm-small

Rows: `reverse-<model>-small`, and `reverse-panm_a<n>_c0-small` with n Mode-1 pointers and no Mode-2 pointer, as in
Figure 7.

Rows `reverse-<model>-long` are the same with 20,000 steps.

Records: `results/panm/reverse-<model>-small.json`, after 2,000 steps; the paper trains for 50,000. A stack pops its
values in reverse order at any length, so the neural stack needs no pointers here.
"""

from lenmem.tasks.panm import PanmReverse

from ._recipe import ablation_rows, small, small_rows

experiment = small(PanmReverse(), steps=2000)
rows = small_rows(PanmReverse(), "reverse", steps=2000)
rows |= ablation_rows(PanmReverse(), "reverse", {"figure_7": [(0, 0), (1, 0), (2, 0), (3, 0)]}, steps=2000)
