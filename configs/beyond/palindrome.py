"""palindrome, trained on short lengths and measured far beyond them; see docs/beyond.md.

lenmem beyond palindrome
lenmem beyond palindrome --idea indexed_walks
"""

from ._recipe import experiment as entry
from ._recipe import indexed_walks

experiment = entry("palindrome")
ideas = indexed_walks("palindrome")
