"""Fibonacci as in Table 2 of Nam & Seo (2023), at the published sizes and with the published whole-sequence loss.

lenmem train nam/fibonacci
lenmem reproduce nam/fibonacci --rows fibonacci-nam_tm

Not measured: 17 to 32 million parameters need a GPU. The printed numbers are missing in our copies of the paper.
"""

from lenmem.tasks.nam import Fibonacci

from ._recipe import paper, table_rows

task = Fibonacci(whole_sequence=True)
experiment = paper(task, epochs=150)
rows = table_rows(task, "fibonacci", epochs=150)
