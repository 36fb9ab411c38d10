"""Parity of a bit string, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/parity_check --model delta_net
lenmem reproduce chomsky/parity_check --rows parity_check-elman-small
"""

from lenmem.tasks.chomsky import ParityCheck

from ._recipe import networks, small, table_rows

experiment = small(ParityCheck())
models = networks()
rows = table_rows(ParityCheck(), "parity_check")
