"""The hidden symbol of a string that is written twice, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/missing_duplicate --model delta_net
lenmem reproduce chomsky/missing_duplicate --rows missing_duplicate-elman-small
"""

from lenmem.tasks.chomsky import MissingDuplicate

from ._recipe import networks, small, table_rows

experiment = small(MissingDuplicate())
models = networks()
rows = table_rows(MissingDuplicate(), "missing_duplicate")
