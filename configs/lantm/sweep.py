"""The grid of Table A.1 of Yang & Rush (2017) for the LANTM, on copy: 12 combinations with 3 seeds.

lenmem sweep lantm/sweep

Combinations with the same initialisation are trained by one program. For the LANTM-s use `--model.weighting softmax`;
for another task write a file like this one. The paper selects on the test lengths; here the combination is selected by
validation at training lengths, and measured on longer ones. Not run to its end yet.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import GRIDS, paper

experiment = paper(Copy())
over = GRIDS["LANTM"]
