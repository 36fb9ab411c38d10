"""dyck_2, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond dyck_2
lenmem beyond dyck_2 --idea more_states
"""

from ._recipe import experiment as entry

experiment = entry("dyck_2")
ideas = {"more_states": entry("dyck_2", "pushdown", states=8, letters=8)}
