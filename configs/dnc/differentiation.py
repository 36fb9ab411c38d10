"""Differences of neighbouring numerals, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/differentiation
lenmem reproduce dnc/differentiation --rows differentiation-dnc
"""

from lenmem.tasks.dnc import Differentiation

from ._recipe import paper, table_rows

experiment = paper(Differentiation())
rows = table_rows(Differentiation(), "differentiation")
