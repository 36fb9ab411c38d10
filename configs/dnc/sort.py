"""Numerals in ascending order, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/sort
lenmem reproduce dnc/sort --rows sort-dnc
"""

from lenmem.tasks.dnc import QuinarySort

from ._recipe import paper, table_rows

experiment = paper(QuinarySort())
rows = table_rows(QuinarySort(), "sort")
