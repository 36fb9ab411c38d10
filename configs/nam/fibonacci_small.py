"""Fibonacci of Nam & Seo (2023) at widths for a CPU.

lenmem train nam/fibonacci_small
lenmem reproduce nam/fibonacci_small --rows fibonacci-nam_tm-small

No network learns the task in these 2000 steps. Records: `results/nam/fibonacci-<model>-small.json`.
"""

from lenmem.tasks.nam import Fibonacci

from ._recipe import small, small_rows

experiment = small(Fibonacci(), steps=2000)
rows = small_rows(Fibonacci(), "fibonacci", steps=2000)
