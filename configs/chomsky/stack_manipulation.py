"""A stack after pushes and pops, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/stack_manipulation --model delta_net
lenmem reproduce chomsky/stack_manipulation --rows stack_manipulation-elman-small
"""

from lenmem.tasks.chomsky import StackManipulation

from ._recipe import networks, small, table_rows

experiment = small(StackManipulation())
models = networks()
rows = table_rows(StackManipulation(), "stack_manipulation")
