"""parity, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond parity
lenmem beyond parity --idea elman
"""

from ._recipe import experiment as entry

experiment = entry("parity")
ideas = {"elman": entry("parity", "elman")}
