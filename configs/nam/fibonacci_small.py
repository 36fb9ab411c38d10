"""Fibonacci of Nam & Seo (2022) at widths for a CPU.

lenmem train nam/fibonacci_small
lenmem reproduce nam/fibonacci_small --rows fibonacci-nam_tm-small

Expected at 14-16 digits: these 2000 steps do not solve it. NAM-TM (unit heads) 0% in the median of 3 seeds and 10% in
the best, without jump 6% and 28%; all others 0%. Seen: 2 to 20 min on one core of an AMD EPYC.
"""

from lenmem.tasks.nam import Fibonacci

from ._recipe import small, small_rows

experiment = small(Fibonacci(), steps=2000)
rows = small_rows(Fibonacci(), "fibonacci", steps=2000)
