"""Differences of neighbouring numerals, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/differentiation_small
lenmem reproduce dnc/differentiation_small --rows differentiation-dnc-small differentiation-dnc-extended-small
"""

from lenmem.tasks.dnc import Differentiation

from ._recipe import small, small_rows

experiment = small(Differentiation(), "COMPR&REG")
rows = small_rows(Differentiation(), "differentiation")
