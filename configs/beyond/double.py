"""double, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond double
lenmem beyond double --idea single
"""

from ._recipe import experiment as entry
from ._recipe import single

experiment = entry("double")
ideas = single("double")
