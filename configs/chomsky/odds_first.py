"""The bits at odd places, then those at even places, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/odds_first --model delta_net
lenmem reproduce chomsky/odds_first --rows odds_first-elman-small
"""

from lenmem.tasks.chomsky import OddsFirst

from ._recipe import networks, small, table_rows

experiment = small(OddsFirst())
models = networks()
rows = table_rows(OddsFirst(), "odds_first")
