"""dyck_3, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond dyck_3
lenmem beyond dyck_3 --idea more_states
"""

from ._recipe import experiment as entry

experiment = entry("dyck_3")
ideas = {"more_states": entry("dyck_3", "pushdown", states=8, letters=8)}
