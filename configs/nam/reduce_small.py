"""Reduce of Nam & Seo (2022) at widths for a CPU.

lenmem train nam/reduce_small
lenmem reproduce nam/reduce_small --rows reduce-nam_tm-small

Expected at 14-16 digits, median of 3 seeds: NAM-TM 100% and without jump 100%; LSAM 44%; LSTM 28%; DNC (19% at
the trained lengths), Transformer and Universal Transformer 0%. Seen: 2 to 10 min on one core of an AMD EPYC.
"""

from lenmem.tasks.nam import Reduce

from ._recipe import small, small_rows

experiment = small(Reduce())
rows = small_rows(Reduce(), "reduce")
