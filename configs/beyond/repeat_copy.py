"""repeat_copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond repeat_copy
lenmem beyond repeat_copy --idea no_reading
"""

from ._recipe import experiment as entry

experiment = entry("repeat_copy")
ideas = {"no_reading": entry("repeat_copy", reading=False)}
