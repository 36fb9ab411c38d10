"""odd_first, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond odd_first
lenmem beyond odd_first --idea longer
"""

from ._recipe import experiment as entry

experiment = entry("odd_first")
ideas = {"longer": entry("odd_first", training={"steps": 4000})}
