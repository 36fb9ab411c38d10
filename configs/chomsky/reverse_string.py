"""Bits backwards, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/reverse_string --model delta_net
lenmem reproduce chomsky/reverse_string --rows reverse_string-elman-small
"""

from lenmem.tasks.chomsky import ReverseString

from ._recipe import networks, small, table_rows

experiment = small(ReverseString())
models = networks()
rows = table_rows(ReverseString(), "reverse_string")
