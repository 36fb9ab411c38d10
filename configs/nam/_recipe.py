"""The training of Nam & Seo (2023) for Table 2, and the same comparison at a width for a CPU."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.base import Task
from lenmem.training import Cosine, Optimizer, StepDecay, Training


class Column(NamedTuple):
    """A column of Table 2."""

    name: str
    """Our name for the model."""
    size: dict[str, Any]
    """Its fields at the published size."""
    small: Mapping[str, Any] = MappingProxyType({})
    """Other fields at width 64."""


MODELS = {
    "TF": Column(
        "bert", {"hidden_size": 512, "layers": 8, "heads": 8, "feedforward_size": 2048}, {"max_positions": 1024}
    ),
    "UT": Column(
        "universal_transformer",
        {"hidden_size": 1536, "steps": 8, "heads": 24, "feedforward_size": 1536, "kernel_size": 3},
    ),
    "LSTM": Column("lstm_attention", {"hidden_size": 1448}),
    # In the paper, two LSTM layers share one memory.
    "DNC": Column("dnc", {"hidden_size": 768, "slots": 32, "width": 768, "read_heads": 8}),
    "LSAM": Column("lsam", {"hidden_size": 1024, "heads": 8, "feedforward_size": 2048}),
    "NAM-TM": Column("nam_tm", {"hidden_size": 1024, "tapes": 8, "tape_length": 32}),
    "NAM-TM (No Jmp)": Column(
        "nam_tm_no_jump",
        {"hidden_size": 1024, "tapes": 8, "tape_length": 32, "controller": "lstm"},
    ),
}

SPLITS = {"validation/exact_match": "id", "od_easy/exact_match": "od_easy", "exact_match": "od_hard"}


def paper(task: Task, column: str = "NAM-TM", epochs: int = 100) -> Experiment:
    """One cell of Table 2 at the published size: Adam with L2, and a rate that falls by 2% after each epoch of 25,600
    examples.

    The published script trains for 100 or 150 epochs; the paper states 200. The parameters with the best OD-easy
    accuracy are selected, as in the paper.
    """
    training = Training(
        steps=200 * epochs,
        batch_size=128,
        seeds=3,
        optimizer=Optimizer(
            "adam",
            learning_rate=1e-4,
            weight_decay=5e-5,
            clip_norm=0.5,
            schedule=StepDecay(factor=0.98, every=200, delay=0),
        ),
        selection="validation",
        validation_split="od_easy",
        validate_every=200,
        validation_batches=16,
    )
    return Experiment(task, make(MODELS[column].name, **MODELS[column].size), training, Evaluation(test_examples=2048))


def small(task: Task, column: str = "NAM-TM", steps: int = 1000, **fields: Any) -> Experiment:
    """The same cell at width 64, for a CPU: fresh batches of 32, loss on answers only, last parameters."""
    training = Training(
        steps=steps,
        batch_size=32,
        seeds=3,
        optimizer=Optimizer("adam", learning_rate=3e-3, schedule=Cosine(), clip_norm=1.0),
    )
    fields = {"hidden_size": 64, **MODELS[column].small, **fields}
    return Experiment(task, make(MODELS[column].name, **fields), training, Evaluation(test_examples=2048))


def table_rows(task: Task, name: str, **options: Any) -> dict[str, Row]:
    """A line of Table 2 at the published size: rows `<task>-<model>`."""
    return _rows(paper, task, name, **options)


def small_rows(task: Task, name: str, **options: Any) -> dict[str, Row]:
    """The same line at width 64: rows `<task>-<model>-small`.

    `<task>-nam_tm_normalized-small` uses unit heads; the authors' later code does this to avoid NaN.
    """
    rows = {f"{row}-small": cell for row, cell in _rows(small, task, name, **options).items()}
    plain = rows[f"{name}-nam_tm-small"]
    rows[f"{name}-nam_tm_normalized-small"] = dataclasses.replace(
        plain, experiment=small(task, normalize_heads=True, **options)
    )
    return rows


def _rows(recipe: Any, task: Task, name: str, **options: Any) -> dict[str, Row]:
    return {
        f"{name}-{ours.name}": Row(
            recipe(task, column, **options), "table_2", {"task": name, "model": column}, SPLITS, lengths=(32, 64, 128)
        )
        for column, ours in MODELS.items()
    }
