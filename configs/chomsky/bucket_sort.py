"""Five symbols in ascending order, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/bucket_sort --model delta_net
lenmem reproduce chomsky/bucket_sort --rows bucket_sort-elman-small
"""

from lenmem.tasks.chomsky import BucketSort

from ._recipe import networks, small, table_rows

experiment = small(BucketSort())
models = networks()
rows = table_rows(BucketSort(), "bucket_sort")
