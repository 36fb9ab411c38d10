"""SCAN, split by length, as in Table 2 of Nam & Seo (2023), at the published sizes and with the whole-line form.

lenmem train nam/scan
lenmem reproduce nam/scan --rows scan-lsam

Not measured: 17 to 32 million parameters need a GPU. The printed numbers are missing in our copies of the paper. The
paper reports the best test accuracy of any epoch, and so does this configuration (`running_ood`).
"""

import dataclasses

from lenmem.reproduce import Row
from lenmem.tasks.scan import Scan

from ._recipe import MODELS, paper


def best_on_test(column: str):
    """The training of the other tasks, for 150 passes over 16,990 pairs and with selection on the test."""
    base = paper(Scan(whole_line=True, validation_share=0.0), column)
    training = dataclasses.replace(
        base.training, steps=150 * 132, selection="running_ood", validation_split="validation", validate_every=200
    )
    return dataclasses.replace(base, training=training)


experiment = best_on_test("LSAM")
rows = {
    f"scan-{model.name}": Row(
        best_on_test(column), "table_2_scan", {"task": "scan", "model": column}, {"exact_match": "test"}
    )
    for column, model in MODELS.items()
}
