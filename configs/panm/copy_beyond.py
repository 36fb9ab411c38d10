"""Copying and reversing 80 tokens after training on up to 9, beyond the results of Le et al. (2024).

lenmem train panm/copy_beyond
lenmem reproduce panm/copy_beyond --rows copy-beyond reverse-beyond

Rows: `<task>-beyond`, and the ablations `copy-beyond-<field>`, each with one field set back to the paper's value.
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
    """One row: a PANM with the fields of `BEYOND`, except for the changes."""
    return row_of(task, beyond(task, **BEYOND | changes), name, "panm")


experiment = beyond(PanmCopy(), **BEYOND)
rows = {"copy-beyond": cell(PanmCopy(), "copy"), "reverse-beyond": cell(PanmReverse(), "reverse")}
rows |= {f"copy-beyond-{name}": cell(PanmCopy(), "copy", **changes) for name, changes in ABLATIONS.items()}
