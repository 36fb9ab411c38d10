"""Positions of a numeral in a sequence, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/search
lenmem reproduce dnc/search --rows search-dnc
"""

from lenmem.tasks.dnc import Search

from ._recipe import paper, table_rows

experiment = paper(Search())
rows = table_rows(Search(), "search", "hit_rate")
