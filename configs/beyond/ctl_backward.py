"""ctl_backward, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond ctl_backward
lenmem beyond ctl_backward --idea no_reading
"""

from ._recipe import experiment as entry

experiment = entry("ctl_backward")
ideas = {"no_reading": entry("ctl_backward", reading=False)}
