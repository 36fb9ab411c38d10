"""palindrome, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond palindrome
lenmem beyond palindrome --idea single
"""

from ._recipe import experiment as entry
from ._recipe import single

experiment = entry("palindrome")
ideas = single("palindrome")
