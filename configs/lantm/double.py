"""Double as in Table 1b of Yang & Rush (2017).

lenmem train lantm/double
lenmem reproduce lantm/double --rows double-lantm-L

Not measured with both gates closed yet; with the open read gate see results/README.md.
"""

from lenmem.tasks.lantm import Double

from ._recipe import paper, table_rows

experiment = paper(Double())
rows = table_rows(Double(), "double")
