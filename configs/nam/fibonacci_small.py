"""Fibonacci of Nam & Seo (2023) at widths for a CPU.

lenmem train nam/fibonacci_small
lenmem reproduce nam/fibonacci_small --rows fibonacci-nam_tm-small

Records: `results/nam/fibonacci-<model>-small.json`. No seed has learned the task after these 2000 steps; the best, of
the NAM-TM without jumps, has 57% exact match on 5 to 10 digits. The NAM-TM with jumps was measured with
unit heads only (24%).
"""

from lenmem.tasks.nam import Fibonacci

from ._recipe import small, small_rows

experiment = small(Fibonacci(), steps=2000)
rows = small_rows(Fibonacci(), "fibonacci", steps=2000)
