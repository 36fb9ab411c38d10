"""copy, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond copy
lenmem beyond copy --idea single
"""

from ._recipe import experiment as entry
from ._recipe import single

experiment = entry("copy")
ideas = single("copy")
