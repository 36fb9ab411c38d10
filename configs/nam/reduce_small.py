"""Reduce of Nam & Seo (2023) at widths for a CPU.

lenmem train nam/reduce_small
lenmem reproduce nam/reduce_small --rows reduce-nam_tm-small

Records: `results/nam/reduce-<model>-small.json`.
"""

from lenmem.tasks.nam import Reduce

from ._recipe import small, small_rows

experiment = small(Reduce())
rows = small_rows(Reduce(), "reduce")
