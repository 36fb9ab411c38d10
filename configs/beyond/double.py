"""double, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond double
lenmem beyond double --idea common
"""

from ._recipe import common
from ._recipe import experiment as entry

experiment = entry("double")
ideas = common("double")
