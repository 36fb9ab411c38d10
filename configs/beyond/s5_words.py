"""s5_words, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond s5_words
"""

from ._recipe import experiment as entry

experiment = entry("s5_words")
