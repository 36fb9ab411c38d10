"""Bits, twice, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/duplicate_string --model delta_net
lenmem reproduce chomsky/duplicate_string --rows duplicate_string-elman-small
"""

from lenmem.tasks.chomsky import DuplicateString

from ._recipe import networks, small, table_rows

experiment = small(DuplicateString())
models = networks()
rows = table_rows(DuplicateString(), "duplicate_string")
