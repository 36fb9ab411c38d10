"""reverse, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond reverse
lenmem beyond reverse --idea single
lenmem beyond reverse --idea no_jumps
"""

from ._recipe import ablations, single
from ._recipe import experiment as entry

experiment = entry("reverse")
ideas = single("reverse") | ablations("reverse")
