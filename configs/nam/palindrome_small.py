"""Palindrome of Nam & Seo (2022) at widths for a CPU.

lenmem train nam/palindrome_small
lenmem reproduce nam/palindrome_small --rows palindrome-nam_tm-small

Expected at 14-16 digits, median of 3 seeds: NAM-TM 100% (one seed of three dies; none with unit heads, row
`palindrome-nam_tm_normalized-small`) and without jump 100%; LSTM 2%; DNC (99.9% at the
trained lengths), LSAM, Transformer and Universal Transformer 0%. Seen: 3 to 11 min on one core of an AMD EPYC.
"""

from lenmem.tasks.nam import Palindrome

from ._recipe import small, small_rows

experiment = small(Palindrome())
rows = small_rows(Palindrome(), "palindrome")
