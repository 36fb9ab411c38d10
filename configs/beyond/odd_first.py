"""odd_first, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond odd_first
lenmem beyond odd_first --idea common
lenmem beyond odd_first --idea certain
lenmem beyond odd_first --idea walks
lenmem beyond odd_first --idea no_reading
lenmem beyond odd_first --idea longer
"""

from ._recipe import certain, common, walks
from ._recipe import experiment as entry

experiment = entry("odd_first")
ideas = (
    common("odd_first")
    | certain("odd_first")
    | walks("odd_first")
    | {
        "no_reading": entry("odd_first", reading=False),
        "longer": entry("odd_first", training={"steps": 4000}),
    }
)
