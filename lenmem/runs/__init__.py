"""The commands as functions, for use in a notebook: measure runs, get their answers, compare networks."""

from __future__ import annotations

from lenmem.runs.answers import (
    AnsweredExample,
    answer_example,
    answered,
    example_batch,
    example_batches,
    predict,
    slots_right,
    typed_batch,
)
from lenmem.runs.comparing import compare, comparison_directory, cross, save_comparison, task_named
from lenmem.runs.measuring import (
    Report,
    examples_scored,
    finished,
    measure,
    own_curve,
    read_curve,
    save_curves,
    train_and_measure,
    whole_scores,
    without_dead,
)
from lenmem.runs.places import find_run, is_run, open_run
from lenmem.training.run_directory import fresh_directory, numbered

__all__ = [
    "AnsweredExample",
    "Report",
    "answer_example",
    "answered",
    "compare",
    "comparison_directory",
    "cross",
    "example_batch",
    "example_batches",
    "examples_scored",
    "find_run",
    "finished",
    "fresh_directory",
    "is_run",
    "measure",
    "numbered",
    "open_run",
    "own_curve",
    "predict",
    "read_curve",
    "save_comparison",
    "save_curves",
    "slots_right",
    "task_named",
    "train_and_measure",
    "typed_batch",
    "whole_scores",
    "without_dead",
]
