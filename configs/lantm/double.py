"""Double as in Table 1b of Yang & Rush (2017).

lenmem train lantm/double
lenmem reproduce lantm/double --rows double-lantm-L

Expected: 100% exact match at 41-80 digits in the median of 3 seeds, 33% in the worst. Seen: 5 min on one core.
"""

from lenmem.tasks.lantm import Double

from ._recipe import paper, table_rows

experiment = paper(Double())
rows = table_rows(Double(), "double")
