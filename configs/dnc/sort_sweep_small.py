"""Weight and number of pairs of the state regularisation, on sorting. Our copy of the paper's text lacks both.

lenmem reproduce dnc/sort_sweep_small --rows sort-lambda0.1-k20-small

Rows: `sort-lambda<weight>-k<pairs>-small`, a short training of the compressed and regularised controller.

Records: `results/dnc/sort-lambda<weight>-k<pairs>-small.json`. Seeds differ by as much as the settings do, so the
defaults are in the middle: 0.1 and 20.
"""

import dataclasses

from lenmem.reproduce import ByLength, Row
from lenmem.tasks.dnc import QuinarySort

from ._recipe import small

WEIGHTS, PAIRS = (0.03, 0.1, 0.3), (10, 20, 50)

experiment = small(QuinarySort(), "COMPR&REG", steps=4000)
lengths = ByLength((*range(2, 46), 50, 60, 70, 80, 90, 100), samples=192)
rows = {
    f"sort-lambda{weight}-k{pairs}-small": Row(
        dataclasses.replace(experiment, model=experiment.model.clone(regularization=weight, nearest_pairs=pairs)),
        "table_2",
        {"task": "sort", "model": "COMPR&REG"},
        {"longest_length": "max_length"},
        by_length=lengths,
    )
    for weight in WEIGHTS
    for pairs in PAIRS
}
