"""modular_arithmetic, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond modular_arithmetic
lenmem beyond modular_arithmetic --idea pushdown
"""

from ._recipe import experiment as entry

experiment = entry("modular_arithmetic")
# States for the computation that a bracket interrupts: 20 pairs of a number and an operator, and signs.
ideas = {"pushdown": entry("modular_arithmetic", "pushdown", training={"steps": 3000}, states=32, letters=32)}
