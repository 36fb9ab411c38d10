"""Numerals in ascending order, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/sort_small
lenmem reproduce dnc/sort_small --rows sort-dnc-small sort-dnc-extended-small
"""

from lenmem.tasks.dnc import QuinarySort

from ._recipe import small, small_rows

experiment = small(QuinarySort(), "COMPR&REG")
rows = small_rows(QuinarySort(), "sort")
