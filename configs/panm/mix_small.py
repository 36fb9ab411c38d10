"""Mix of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/mix_small
lenmem reproduce panm/mix_small --rows mix-panm-small

The printed rows of LSTM, Transformer, NTM and ESBN repeat those of Table 8, so they cannot be compared.

Rows: `mix-<model>-small`, with 20,000 steps `mix-<model>-long`, and `mix-panm_a3_c1-small`, whose third pointer starts
at the middle address. The paper has that pointer in an ablation only (Figure 7). See `docs/papers/panm.md`.

Records: `results/panm/mix-panm-small.json`, after 2,000 steps, `mix-panm-long.json`, after 20,000, and
`mix-panm_a3_c1-small.json`; the paper trains for 50,000. With two pointers and ten times the steps PANM extrapolates no
better. As in the authors' code (`mix-panm_published-long`, 20,000 steps) it does: 100.0 / 93.9 / 56.0 / 54.8 / 54.9 at
9 / 10 / 20 / 40 / 80, where the paper prints 100 / 100 / 98 / 54 / 54. Its controller also reads the memory by content.
"""

from lenmem.tasks.panm import Mix

from ._recipe import TABLES, ablation_rows, small, small_rows

experiment = small(Mix(), steps=2000)
rows = small_rows(Mix(), "mix", steps=2000)
rows |= ablation_rows(Mix(), "mix", {TABLES["mix"]: [(3, 1)]}, steps=2000)
