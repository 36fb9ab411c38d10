"""fibonacci, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond fibonacci
lenmem beyond fibonacci --idea no_reading
"""

from ._recipe import experiment as entry

experiment = entry("fibonacci")
ideas = {"no_reading": entry("fibonacci", reading=False)}
