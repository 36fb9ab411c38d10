"""fibonacci, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond fibonacci
lenmem beyond fibonacci --idea no_reading
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("fibonacci")
ideas = ideas_of("fibonacci", "no_reading")
