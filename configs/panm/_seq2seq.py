"""The training of Le et al. (2024) for Table 2, which follows Csordás et al. (2021), and the same at width 64."""

import dataclasses
from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.base import Task
from lenmem.training import Cosine, Optimizer, Training

RELATIVE: dict[str, Any] = {"positions": "relative", "embedding": "xavier"}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "transformer_rpe": RELATIVE,
    "universal_transformer": {"shared_layers": True},
    "universal_transformer_rpe": RELATIVE | {"shared_layers": True},
    "panm": {"pointers": True},
}
"""The table's models. PANM replaces the last layer of the decoder."""
OVER_RELATIVE: dict[str, Any] = {"pointers": True, "positions": "relative", "decoder_positions": "absolute"}
"""PANM over an encoder with relative positions, as on mathematics."""


def paper(task: Task, model: dict[str, Any], optimizer: Optimizer, **size: Any) -> Experiment:
    """One cell: batches of 256 for 50,000 steps, teacher forcing; the last parameters."""
    training = Training(steps=50_000, batch_size=256, seeds=5, optimizer=optimizer)
    return Experiment(task, make("transformer_seq2seq", **(size | model)), training, Evaluation(test_examples=10_000))


def small(task: Task, model: dict[str, Any], steps: int = 4000) -> Experiment:
    """The same cell at width 64: batches of 64, a rate that falls to zero."""
    optimizer = Optimizer("adam", learning_rate=1e-3, schedule=Cosine(warmup=200), clip_norm=1.0)
    size = {"hidden_size": 64, "heads": 4, "feedforward_size": 128}
    experiment = paper(task, model, optimizer, **size)
    training = dataclasses.replace(experiment.training, steps=steps, batch_size=64, seeds=3)
    return dataclasses.replace(experiment, training=training, evaluation=Evaluation(test_examples=2000))


def rows_of(
    table: str,
    name: str,
    where: dict[str, Any],
    scores: dict[str, str],
    cells: dict[str, Experiment],
    suffix: str = "",
) -> dict[str, Row]:
    """Rows `<name>-<model><suffix>`. `scores`: metric -> column; exact match includes the end."""
    return {
        f"{name}-{model}{suffix}": Row(cell, table, where | {"model": model}, scores) for model, cell in cells.items()
    }
