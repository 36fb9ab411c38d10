"""odd_first, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond odd_first
"""

from ._recipe import experiment as entry

experiment = entry("odd_first")
