"""Positions of a numeral in a sequence, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/search_small
lenmem reproduce dnc/search_small --rows search-dnc-small search-dnc-extended-small
"""

from lenmem.tasks.dnc import Search

from ._recipe import small, small_rows

experiment = small(Search(), "COMPR&REG")
rows = small_rows(Search(), "search", "hit_rate")
