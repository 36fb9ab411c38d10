"""Even pairs: does a bit string end as it begins? As in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/even_pairs --model delta_net
lenmem reproduce chomsky/even_pairs --rows even_pairs-elman-small
"""

from lenmem.tasks.chomsky import EvenPairs

from ._recipe import networks, small, table_rows

experiment = small(EvenPairs())
models = networks()
rows = table_rows(EvenPairs(), "even_pairs")
