"""Truth values of formulas, as in Tables II and V of Ofner & Kern (2021).

lenmem train dnc/logic
lenmem reproduce dnc/logic --rows logic-dnc
"""

from lenmem.tasks.dnc import Logic

from ._recipe import paper, table_rows

experiment = paper(Logic())
rows = table_rows(Logic(), "logic")
