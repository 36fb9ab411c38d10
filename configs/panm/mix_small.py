"""Mix of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/mix_small
lenmem reproduce panm/mix_small --rows mix-panm-small

The printed rows of LSTM, Transformer, NTM and ESBN repeat those of Table 8, so they cannot be compared.

Rows `mix-<model>-long` are the same with 20,000 steps.

Records: `results/panm/mix-panm-small.json`, after 2,000 steps, and `mix-panm-long.json`, after 20,000; the paper trains
for 50,000. With ten times the steps PANM extrapolates no better, so the paper's 100% at L + 1 needs something else.
"""

from lenmem.tasks.panm import Mix

from ._recipe import small, small_rows

experiment = small(Mix(), steps=2000)
rows = small_rows(Mix(), "mix", steps=2000)
