"""modular_arithmetic, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond modular_arithmetic
"""

from ._recipe import experiment as entry

experiment = entry("modular_arithmetic")
