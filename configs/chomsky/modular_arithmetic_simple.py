"""Sums, differences and products modulo 5, without brackets, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/modular_arithmetic_simple --model delta_net
lenmem reproduce chomsky/modular_arithmetic_simple --rows modular_arithmetic_simple-elman-small
"""

from lenmem.tasks.chomsky import ModularArithmetic

from ._recipe import networks, small, table_rows

experiment = small(ModularArithmetic())
models = networks()
rows = table_rows(ModularArithmetic(), "modular_arithmetic_simple")
