"""ctl_backward, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond ctl_backward
lenmem beyond ctl_backward --idea no_reading
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("ctl_backward")
ideas = ideas_of("ctl_backward", "no_reading")
