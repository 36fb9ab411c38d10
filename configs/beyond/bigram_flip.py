"""bigram_flip, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond bigram_flip
"""

from ._recipe import experiment as entry

experiment = entry("bigram_flip")
