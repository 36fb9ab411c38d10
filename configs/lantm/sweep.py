"""The grid of Table A.1 of Yang & Rush (2017) for the LANTM, on copy: 12 combinations of 3 seeds.

lenmem sweep lantm/sweep

Combinations of one initialisation are one program. The LANTM-s: `--model.weighting softmax`; another task: a file like
this one. The paper takes the best scores on its test lengths; here the validation at training lengths selects, and what
is chosen is then measured on longer ones. Not yet run to its end here.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import GRIDS, paper

experiment = paper(Copy())
over = GRIDS["LANTM"]
