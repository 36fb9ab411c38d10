"""The grid of Table A.1 of Yang & Rush (2017) for RAM with a tape, on copy: 48 combinations with 3 seeds.

lenmem sweep lantm/sweep_ram_tape

Selection as in sweep.py. Not run to its end yet.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import GRIDS, paper

experiment = paper(Copy(), "RAM/Tape")
over = GRIDS["RAM/Tape"]
