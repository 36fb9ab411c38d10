"""Copying numerals, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/copy_small
lenmem reproduce dnc/copy_small --rows copy-dnc-small copy-dnc-extended-small
"""

from lenmem.tasks.dnc import QuinaryCopy

from ._recipe import small, small_rows

experiment = small(QuinaryCopy(), "COMPR&REG")
rows = small_rows(QuinaryCopy(), "copy")
