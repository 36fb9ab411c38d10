"""SCAN cut at 22 to 40 actions, as in Table 2 (left) of Le et al. (2024), at the published size.

lenmem train panm/scan
lenmem reproduce panm/scan --rows scan_26-panm scan_26-transformer

Rows: `scan_<cut-off>-<model>`. Not measured: 50,000 steps of 256 need a GPU.
"""

from lenmem.tasks.scan import Scan
from lenmem.training import Optimizer

from ._seq2seq import MODELS, paper, rows_of

CUTOFFS = (22, 24, 25, 26, 27, 28, 30, 32, 33, 36, 40)
ADAM = Optimizer("adam", learning_rate=1e-3, clip_norm=5.0)

experiment = paper(Scan(max_actions=26), MODELS["panm"], ADAM)
rows = {
    row: cell
    for cutoff in CUTOFFS
    for row, cell in rows_of(
        "table_2_scan",
        f"scan_{cutoff}",
        {"task": "scan", "length": cutoff},
        {"exact_match": "median"},
        {name: paper(Scan(max_actions=cutoff), model, ADAM) for name, model in MODELS.items()},
    ).items()
}
