"""dyck_2, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond dyck_2
"""

from ._recipe import experiment as entry

experiment = entry("dyck_2")
