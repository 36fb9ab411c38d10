"""interleaved_add, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond interleaved_add
lenmem beyond interleaved_add --idea common
lenmem beyond interleaved_add --idea certain
lenmem beyond interleaved_add --idea walks
lenmem beyond interleaved_add --idea slow_walks
lenmem beyond interleaved_add --idea no_reading
lenmem beyond interleaved_add --idea longer
"""

from ._recipe import certain, common, slow_walks, walks
from ._recipe import experiment as entry

experiment = entry("interleaved_add")
ideas = (
    common("interleaved_add")
    | certain("interleaved_add")
    | walks("interleaved_add")
    | slow_walks("interleaved_add")
    | {
        "no_reading": entry("interleaved_add", reading=False),
        "longer": entry("interleaved_add", training={"steps": 4000}),
    }
)
