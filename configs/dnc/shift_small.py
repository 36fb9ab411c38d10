"""Numerals rotated by half their number, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/shift_small
lenmem reproduce dnc/shift_small --rows shift-dnc-small shift-dnc-extended-small
"""

from lenmem.tasks.dnc import QuinaryShift

from ._recipe import small, small_rows

experiment = small(QuinaryShift(), "COMPR&REG")
rows = small_rows(QuinaryShift(), "shift")
