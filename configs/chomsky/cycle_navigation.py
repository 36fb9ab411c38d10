"""Where moves on a cycle of five end, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/cycle_navigation --model delta_net
lenmem reproduce chomsky/cycle_navigation --rows cycle_navigation-elman-small
"""

from lenmem.tasks.chomsky import CycleNavigation

from ._recipe import networks, small, table_rows

experiment = small(CycleNavigation())
models = networks()
rows = table_rows(CycleNavigation(), "cycle_navigation")
