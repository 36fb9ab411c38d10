"""The grid of Table A.1 of Yang & Rush (2017) for the LSTM, on copy: 32 combinations with 3 seeds.

lenmem sweep lantm/sweep_lstm

Selection as in sweep.py. Not run to its end yet.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import GRIDS, paper

experiment = paper(Copy(), "LSTM")
over = GRIDS["LSTM"]
