"""Reverse as in Table 1b of Yang & Rush (2017).

lenmem train lantm/reverse
lenmem reproduce lantm/reverse --rows reverse-lantm-L

Record: `results/lantm/reverse-lantm-L.json`.
"""

from lenmem.tasks.lantm import Reverse

from ._recipe import paper, table_rows

experiment = paper(Reverse())
rows = table_rows(Reverse(), "reverse")
