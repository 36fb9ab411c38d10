"""ID Sort as in Table 12 of Le et al. (2024), at the published scale.

lenmem train panm/id_sort
lenmem reproduce panm/id_sort --rows id_sort-panm

Not measured: 100,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import IDSort

from ._recipe import paper, table_rows

experiment = paper(IDSort(), steps=100_000)
rows = table_rows(IDSort(), "id_sort", steps=100_000)
