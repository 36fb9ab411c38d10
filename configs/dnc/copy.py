"""Copying numerals, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/copy
lenmem reproduce dnc/copy --rows copy-dnc
"""

from lenmem.tasks.dnc import QuinaryCopy

from ._recipe import paper, table_rows

experiment = paper(QuinaryCopy())
rows = table_rows(QuinaryCopy(), "copy")
