"""The Long Range Arena of Table 1: three Transformers that differ only in their attention."""

import dataclasses
from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.nn.attention import Mixing
from lenmem.reproduce import Row
from lenmem.tasks.base import Task
from lenmem.training import Training

ATTENTION: dict[str, Mixing] = {
    "Transformer": "softmax",
    "Linear Transformer": "linear",
    "NAM-Transformer": "outer_product",
}


def arena(task: Task, name: str, training: Training, size: dict[str, Any]) -> tuple[Experiment, dict[str, Row]]:
    """The experiment of the NAM-Transformer, and rows `<task>-<model>` of all three. All answer at the begin token, and
    write padding to their memories, as in the published code."""
    size = {"column": "first", "mask_padding": False, **size}
    model = make("nam_transformer", **size)
    experiment = Experiment(task, model, training, Evaluation(test_examples=25_000, batch_size=16))
    rows = {}
    for column, attention in ATTENTION.items():
        own = dataclasses.replace(experiment, model=make("nam_transformer", attention=attention, **size))
        stem = column.lower().replace("-", "_").replace(" ", "_")
        rows[f"{name}-{stem}"] = Row(own, "table_1", {"task": name, "model": column}, {"exact_match": "accuracy"})
    return experiment, rows
