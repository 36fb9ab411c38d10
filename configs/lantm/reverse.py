"""Reverse as in Table 1b of Yang & Rush (2017).

lenmem train lantm/reverse
lenmem reproduce lantm/reverse --rows reverse-lantm-L

Expected: 100% exact match at 65-128 in all 3 seeds. Seen: 9 min on one core of an AMD EPYC.
"""

from lenmem.tasks.lantm import Reverse

from ._recipe import paper, table_rows

experiment = paper(Reverse())
rows = table_rows(Reverse(), "reverse")
