"""Copies and reversals of 80 tokens by a network trained on up to 9, beyond what Le et al. (2024) reach.

lenmem train panm/copy_beyond
lenmem reproduce panm/copy_beyond --rows copy-beyond reverse-beyond

Rows: `<task>-beyond`, and the ablations `copy-beyond-<what is taken back>`, each with one field as in the paper.
"""

from typing import Any

from lenmem.models.panm import BEYOND
from lenmem.reproduce import Row
from lenmem.tasks.panm import PanmCopy, PanmReverse, PanmTask

from ._recipe import beyond, row_of

ABLATIONS: dict[str, dict[str, Any]] = {
    "bits": {"address_code": "bits"},
    "memory": {"candidates": "memory"},
    "gru_unit": {"pointer_unit": "gru"},
    "gru_controller": {"controller": "gru"},
    "bigru_encoder": {"encoder": "bigru"},
}


def cell(task: PanmTask, name: str, **changes: Any) -> Row:
    """One row: a PANM of `BEYOND`, but for the changes."""
    return row_of(task, beyond(task, **BEYOND | changes), name, "panm")


experiment = beyond(PanmCopy(), **BEYOND)
rows = {"copy-beyond": cell(PanmCopy(), "copy"), "reverse-beyond": cell(PanmReverse(), "reverse")}
rows |= {f"copy-beyond-{name}": cell(PanmCopy(), "copy", **changes) for name, changes in ABLATIONS.items()}
