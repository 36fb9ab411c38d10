"""The root of a binary number, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/compute_sqrt --model delta_net
lenmem reproduce chomsky/compute_sqrt --rows compute_sqrt-elman-small
"""

from lenmem.tasks.chomsky import ComputeSqrt

from ._recipe import networks, small, table_rows

experiment = small(ComputeSqrt())
models = networks()
rows = table_rows(ComputeSqrt(), "compute_sqrt")
