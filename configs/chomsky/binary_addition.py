"""The sum of two binary numbers, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/binary_addition --model delta_net
lenmem reproduce chomsky/binary_addition --rows binary_addition-elman-small
"""

from lenmem.tasks.chomsky import BinaryAddition

from ._recipe import networks, small, table_rows

experiment = small(BinaryAddition())
models = networks()
rows = table_rows(BinaryAddition(), "binary_addition")
