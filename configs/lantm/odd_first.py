"""OddFirst as in Table 1b of Yang & Rush (2017).

lenmem train lantm/odd_first
lenmem reproduce lantm/odd_first --rows odd_first-lantm-L

Not solved. Record: `results/lantm/odd_first-lantm-L.json`.
"""

from lenmem.tasks.lantm import OddFirst

from ._recipe import paper, table_rows

experiment = paper(OddFirst())
rows = table_rows(OddFirst(), "odd_first")
