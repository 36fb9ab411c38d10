"""The Long Range Arena of Table 1: three Transformers that differ only in their attention."""

import dataclasses
from typing import Any

import flax.linen as nn

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
    """The experiment of the NAM-Transformer, and rows `<task>-<model>` of all three.

    As in the published code, all answer at the begin token, and linear and outer-product attention also see padding. In
    that code there is no end token, and the output layer has a hidden layer of the width of the other feed-forward
    networks; here it is linear.
    """

    def network(attention: Mixing) -> nn.Module:
        masked = attention == "softmax"
        return make("nam_transformer", column="first", mask_padding=masked, attention=attention, **size)

    experiment = Experiment(task, network("outer_product"), training, Evaluation(test_examples=25_000, batch_size=16))
    rows = {}
    for column, attention in ATTENTION.items():
        own = dataclasses.replace(experiment, model=network(attention))
        stem = column.lower().replace("-", "_").replace(" ", "_")
        rows[f"{name}-{stem}"] = Row(own, "table_1", {"task": name, "model": column}, {"exact_match": "accuracy"})
    return experiment, rows
