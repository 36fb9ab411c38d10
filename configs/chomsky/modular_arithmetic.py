"""Expressions with brackets modulo 5, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/modular_arithmetic --model delta_net
lenmem reproduce chomsky/modular_arithmetic --rows modular_arithmetic-elman-small
"""

from lenmem.tasks.chomsky import ModularArithmeticBrackets

from ._recipe import networks, small, table_rows

experiment = small(ModularArithmeticBrackets())
models = networks()
rows = table_rows(ModularArithmeticBrackets(), "modular_arithmetic")
