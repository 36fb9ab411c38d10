"""Numerals rotated by half their number, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/shift
lenmem reproduce dnc/shift --rows shift-dnc
"""

from lenmem.tasks.dnc import QuinaryShift

from ._recipe import paper, table_rows

experiment = paper(QuinaryShift())
rows = table_rows(QuinaryShift(), "shift")
