"""Sums of pairs of bits, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/add
lenmem reproduce dnc/add --rows add-dnc
"""

from lenmem.tasks.dnc import BinaryAdd

from ._recipe import paper, table_rows

experiment = paper(BinaryAdd())
rows = table_rows(BinaryAdd(), "add")
