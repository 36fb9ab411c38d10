"""SCAN cut at 26 actions, as in Table 2 (left) of Le et al. (2024), at width 64 for a CPU.

lenmem train panm/scan_small
lenmem reproduce panm/scan_small --rows scan_26-panm-small scan_26-transformer-small

Rows: `scan_26-<model>-small`. Exact match includes the end symbol. Records: `results/panm/scan_26-panm-small.json` and
`scan_26-transformer-small.json`; the other models are not measured yet.
"""

from lenmem.tasks.scan import Scan

from ._seq2seq import MODELS, rows_of, small

task = Scan(max_actions=26)
experiment = small(task, MODELS["panm"])
cells = {name: small(task, model) for name, model in MODELS.items()}
rows = rows_of("table_2_scan", "scan_26", {"task": "scan", "length": 26}, {"exact_match": "median"}, cells, "-small")
