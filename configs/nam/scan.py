"""SCAN, split by length, as in Table 2 of Nam & Seo (2023), at the published sizes and with the whole-line form.

lenmem train nam/scan
lenmem reproduce nam/scan --rows scan-lsam

Not measured: 17 to 32 million parameters need a GPU. The printed numbers are missing in our copies of the paper. The
paper reports the best test accuracy of any epoch, and so does this configuration (`running_ood`).
"""

import dataclasses
from typing import Any

from lenmem.experiment import Evaluation
from lenmem.reproduce import Row
from lenmem.tasks.scan import Scan
from lenmem.training import StepDecay

from ._recipe import MODELS, paper

EPOCH = 132
"""Number of steps of one pass over the 16,990 training pairs, in batches of 128."""


def best_on_test(column: str):
    """The training of the other tasks, for 150 passes, with a decay and a selection on the whole test after each."""
    base = paper(Scan(whole_line=True, validation_share=0.0), column)
    optimizer: Any = base.training.optimizer
    optimizer = dataclasses.replace(optimizer, schedule=StepDecay(factor=0.98, every=EPOCH, delay=0))
    training = dataclasses.replace(
        base.training,
        steps=150 * EPOCH,
        optimizer=optimizer,
        selection="running_ood",
        validation_split="validation",
        validate_every=EPOCH,
        validation_batches=31,
        log_every=EPOCH,
        checkpoint_every=10 * EPOCH,
    )
    return dataclasses.replace(base, training=training, evaluation=Evaluation(test_examples=3920))


experiment = best_on_test("LSAM")
rows = {
    f"scan-{model.name}": Row(
        best_on_test(column), "table_2_scan", {"task": "scan", "model": column}, {"exact_match": "test"}
    )
    for column, model in MODELS.items()
}
