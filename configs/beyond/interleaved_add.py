"""interleaved_add, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond interleaved_add
"""

from ._recipe import experiment as entry

experiment = entry("interleaved_add")
