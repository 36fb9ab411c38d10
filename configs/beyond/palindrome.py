"""palindrome, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond palindrome
lenmem beyond palindrome --idea common
"""

from ._recipe import common
from ._recipe import experiment as entry

experiment = entry("palindrome")
ideas = common("palindrome")
