"""Truth values of formulas, as in Tables II and V of Ofner & Kern (2021), small.

lenmem train dnc/logic_small
lenmem reproduce dnc/logic_small --rows logic-dnc-small logic-dnc-extended-small
"""

from lenmem.tasks.dnc import Logic

from ._recipe import small, small_rows

experiment = small(Logic(), "COMPR&REG")
rows = small_rows(Logic(), "logic")
