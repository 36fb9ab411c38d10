"""Double as in Table 1b of Yang & Rush (2017).

lenmem train lantm/double
lenmem reproduce lantm/double --rows double-lantm-L

Record: `results/lantm/double-lantm-L.json`.
"""

from lenmem.tasks.lantm import Double

from ._recipe import paper, table_rows

experiment = paper(Double())
rows = table_rows(Double(), "double")
