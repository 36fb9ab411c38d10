"""SCAN cut at 26 actions, as in Table 2 (left) of Le et al. (2024), at width 64 for a CPU.

lenmem train panm/scan_small
lenmem reproduce panm/scan_small --rows scan_26-panm-small scan_26-transformer-small

Rows: `scan_26-<model>-small`. Exact match, the end included, on commands of more than 26 actions, median of 3 seeds
after 4,000 steps: PANM 20% (seeds 21, 19, 20), the same Transformer without it 2.5% (8, 2.5, 2.5); the paper's at
full size: 100 and 29%. Half an hour a row on one core of an AMD EPYC. The other models: not measured yet.
"""

from lenmem.tasks.scan import Scan

from ._seq2seq import MODELS, rows_of, small

task = Scan(max_actions=26)
experiment = small(task, MODELS["panm"])
cells = {name: small(task, model) for name, model in MODELS.items()}
rows = rows_of("table_2_scan", "scan_26", {"task": "scan", "length": 26}, "median", cells, "-small")
