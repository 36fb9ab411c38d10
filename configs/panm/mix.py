"""Mix as in Table 9 of Le et al. (2024), at the published scale.

lenmem train panm/mix
lenmem reproduce panm/mix --rows mix-panm

The printed rows of LSTM, Transformer, NTM and ESBN repeat those of Table 8, so they cannot be compared.

Not measured: 50,000 steps of batches of 128 with 5 seeds need a GPU.
"""

from lenmem.tasks.panm import Mix

from ._recipe import paper, table_rows

experiment = paper(Mix())
rows = table_rows(Mix(), "mix")
