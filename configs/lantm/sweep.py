"""The grid of Table A.1 of Yang & Rush (2017) for the LANTM, on copy: 12 combinations with 3 seeds.

lenmem sweep lantm/sweep

Combinations with the same initialisation are one program. For the LANTM-s use `--model.weighting softmax`; for another
task write a file like this one. The paper takes the best scores on its test lengths; here validation at training
lengths selects, and the selected combination is measured on longer ones. Not run to its end yet.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import GRIDS, paper

experiment = paper(Copy())
over = GRIDS["LANTM"]
