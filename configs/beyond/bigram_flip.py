"""bigram_flip, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond bigram_flip
lenmem beyond bigram_flip --idea common
lenmem beyond bigram_flip --idea longer
"""

from ._recipe import ablations, common
from ._recipe import experiment as entry

experiment = entry("bigram_flip")
ideas = common("bigram_flip") | ablations("bigram_flip") | {"longer": entry("bigram_flip", training={"steps": 4000})}
