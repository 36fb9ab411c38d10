"""repeat_copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond repeat_copy
lenmem beyond repeat_copy --idea no_reading
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("repeat_copy")
ideas = ideas_of("repeat_copy", "no_reading")
