"""ctl_backward, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond ctl_backward
"""

from ._recipe import experiment as entry

experiment = entry("ctl_backward")
