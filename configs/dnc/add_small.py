"""Sums of pairs of bits, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/add_small
lenmem reproduce dnc/add_small --rows add-dnc-small add-dnc-extended-small
"""

from lenmem.tasks.dnc import BinaryAdd

from ._recipe import small, small_rows

experiment = small(BinaryAdd(), "COMPR&REG")
rows = small_rows(BinaryAdd(), "add")
