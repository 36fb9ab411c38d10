"""reverse, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond reverse
"""

from ._recipe import experiment as entry

experiment = entry("reverse")
