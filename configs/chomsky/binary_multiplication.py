"""The product of two binary numbers, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/binary_multiplication --model delta_net
lenmem reproduce chomsky/binary_multiplication --rows binary_multiplication-elman-small
"""

from lenmem.tasks.chomsky import BinaryMultiplication

from ._recipe import networks, small, table_rows

experiment = small(BinaryMultiplication())
models = networks()
rows = table_rows(BinaryMultiplication(), "binary_multiplication")
