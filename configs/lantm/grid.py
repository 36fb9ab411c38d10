"""The grid of Table A.1 of Yang & Rush (2017) for each cell of Table 1b, around the authors' published configuration.

lenmem reproduce lantm/grid --rows odd_first-lantm-grid-uniform-bound_action-learning_rate0.02-delay6000-L

Rows: `<task>-<model>-grid-<settings>-<regime>`. The paper prints the best
of a cell's grid on the test lengths; its winner is the row `<task>-<model>-published-<regime>`, which is not repeated
here. 12 combinations for a LANTM, 24 for SLANTM and RAM, 48 for RAM/tape, 32 for the LSTM: 2,704 rows of 3 seeds, of which a
cell that misses the paper needs its own.
"""

from lenmem.tasks.lantm import OddFirst

from ._recipe import grid_rows, paper

experiment = paper(OddFirst())
rows = grid_rows()
