"""palindrome, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond palindrome
lenmem beyond palindrome --idea common
lenmem beyond palindrome --idea far
"""

from ._recipe import experiment as entry
from ._recipe import ideas_of

experiment = entry("palindrome")
ideas = ideas_of("palindrome", "common", "far")
