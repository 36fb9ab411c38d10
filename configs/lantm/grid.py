"""The grid of Table A.1 of Yang & Rush (2017) for each cell of Table 1b, around the authors' published configuration.

lenmem reproduce lantm/grid --rows odd_first-lantm-grid-uniform-bound_action-learning_rate0.02-delay6000-L

Rows: `<task>-<model>-grid-<settings>-<regime>`. The paper prints the best of a cell's grid on the test lengths; that
configuration is the row `<task>-<model>-published-<regime>` and is not repeated here. A cell has 12 combinations for a
LANTM, 24 for SLANTM and RAM, 48 for RAM/tape and 32 for the LSTM, each with 3 seeds: 2,704 rows in all.
"""

from lenmem.tasks.lantm import OddFirst

from ._recipe import grid_rows, paper

experiment = paper(OddFirst())
rows = grid_rows()
