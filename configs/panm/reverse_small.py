"""Reverse of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/reverse_small
lenmem reproduce panm/reverse_small --rows reverse-panm-small

Records: `results/panm/reverse-<model>-small.json`, after 2,000 steps; the paper trains for 50,000. What was pushed is
popped in reverse order, whatever the length: the neural stack needs no pointers here.
"""

from lenmem.tasks.panm import PanmReverse

from ._recipe import small, small_rows

experiment = small(PanmReverse(), steps=2000)
rows = small_rows(PanmReverse(), "reverse", steps=2000)
