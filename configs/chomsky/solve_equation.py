"""The unknown number of an equation modulo 5, as in Table 2 of Delétang et al. (2023), for a CPU.

lenmem train chomsky/solve_equation --model delta_net
lenmem reproduce chomsky/solve_equation --rows solve_equation-elman-small
"""

from lenmem.tasks.chomsky import SolveEquation

from ._recipe import networks, small, table_rows

experiment = small(SolveEquation())
models = networks()
rows = table_rows(SolveEquation(), "solve_equation")
