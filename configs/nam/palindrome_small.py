"""Palindrome of Nam & Seo (2023) at widths for a CPU.

lenmem train nam/palindrome_small
lenmem reproduce nam/palindrome_small --rows palindrome-nam_tm-small

Records: `results/nam/palindrome-<model>-small.json`. Seeds of the NAM-TM may diverge; with unit heads (row
`palindrome-nam_tm_normalized-small`) none did.
"""

from lenmem.tasks.nam import Palindrome

from ._recipe import small, small_rows

experiment = small(Palindrome())
rows = small_rows(Palindrome(), "palindrome")
