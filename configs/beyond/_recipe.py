"""The entries of `lenmem beyond`: 19 tasks, a few networks with one set of fields each, and their trainings.

Every task is trained on short lengths, and the parameters of the best validation at up to twice the longest training
length are selected. Longer lengths are not used for selection. The last of the measured lengths is the goal of a task.
"""

import dataclasses
from typing import Any

from lenmem import tasks
from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.tasks.base import Task
from lenmem.training import Cosine, Optimizer, Training

LENGTHS = (32, 64, 128, 256, 512, 1024)
"""2, 4, .. 64 times the longest training length."""

# Networks: name in this file -> (model, fields, training). A network is the same on all tasks.
_WALK = {"steps": 600, "batch_size": 32, "learning_rate": 3e-3}
_READ = {"steps": 1000, "batch_size": 64, "learning_rate": 3e-3}
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "two_way": ("two_way", {}, _WALK),
    "elman": ("elman", {"hidden_size": 32}, _READ),
    "two_way_indexed": ("two_way_indexed", {}, _WALK),
    "pushdown": ("pushdown", {"states": 1, "letters": 4}, {"steps": 600, "batch_size": 64, "learning_rate": 1e-2}),
    "answer_automaton": ("answer_automaton", {}, {"steps": 600, "batch_size": 64, "learning_rate": 0.1}),
}

_LANTM: dict[str, Any] = {"vocabulary": 16, "train_lengths": (1, 16), "test_lengths": (17, 32)}
_DIGITS: dict[str, Any] = {"train_lengths": (1, 16), "test_lengths": (17, 32)}
_PANM: dict[str, Any] = {"train_lengths": (1, 16), "scored_lengths": tuple(range(17, 33))}

# Tasks: name -> (task, its fields, validation split, network of the entry).
TASKS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "copy": ("copy", _LANTM, "test", "two_way"),
    "reverse": ("reverse", _LANTM, "test", "two_way"),
    "bigram_flip": ("bigram_flip", _LANTM, "test", "two_way"),
    "odd_first": ("odd_first", _LANTM, "test", "two_way"),
    "double": ("double", _DIGITS, "test", "two_way"),
    "interleaved_add": ("interleaved_add", _DIGITS, "test", "two_way"),
    "repeat_copy": (
        "repeat_copy",
        {"vocabulary": 16, "train_lengths": (1, 5), "test_lengths": (6, 10)},
        "test",
        "two_way",
    ),
    "priority_sort": ("panm_priority_sort", _PANM, "test", "two_way_indexed"),
    "palindrome": ("palindrome", _DIGITS | {"od_easy_lengths": (17, 32)}, "test", "two_way"),
    "reduce": ("reduce", _DIGITS | {"od_easy_lengths": (17, 32)}, "test", "two_way"),
    "fibonacci": ("fibonacci", _DIGITS | {"od_easy_lengths": (17, 32)}, "test", "two_way"),
    "id_sort": ("panm_id_sort", _PANM, "test", "two_way_indexed"),
    "mix": ("panm_mix", _PANM, "test", "two_way"),
    "dyck_2": ("dyck", {"kinds": 2, "longest": 16, "sampling": "uniform"}, "double", "pushdown"),
    "dyck_3": ("dyck", {"kinds": 3, "longest": 16, "sampling": "uniform"}, "double", "pushdown"),
    "ctl_backward": ("ctl", {"batches": "balanced", "validation_depth": 9}, "deeper_validation", "two_way"),
    "parity": ("parity_check", _DIGITS, "test", "two_way"),
    "modular_arithmetic": ("modular_arithmetic_brackets", _DIGITS, "test", "elman"),
    "s5_words": ("word_problem", {"group": "S5"} | _DIGITS, "test", "answer_automaton"),
}
GOALS = {"repeat_copy": (10, 20, 40, 80), "ctl_backward": (10, 20, 40)}
"""Measured lengths of tasks that end before 1,024."""


# Ideas: name -> (network, changes of its training, changes of its fields). Network None: that of the task's entry.
_WALKS: dict[str, Any] = {"reading": False, "certain": 0.5, "jumps": False}
_COMMON: dict[str, Any] = _WALKS | {"hidden_size": 128, "index": "channels"}
_SLOWLY = {"growing": 5120, "batch_size": 64, "learning_rate": 5e-3}
IDEAS: dict[str, tuple[str | None, dict[str, Any], dict[str, Any]]] = {
    "no_reading": (None, {}, {"reading": False}),
    "no_jumps": (None, {}, {"jumps": False}),
    "one_head": (None, {}, {"heads": 1}),
    "no_index": ("two_way", {}, {}),
    "longer": (None, {"steps": 4000}, {}),
    # An index, no steps during reading, and sharp rows in training.
    "single": ("two_way_indexed", {"steps": 300}, {"reading": False, "sharpest": 8.0}),
    # Half of the rows are rounded in training, and lengths grow so slowly that they end at 7.
    "certain": (None, {"steps": 560, "growing": 1280}, {"reading": False, "certain": 0.5}),
    # As `certain`, but heads only walk.
    "walks": (None, {"steps": 1600, "growing": 2560}, _WALKS),
    "indexed_walks": ("two_way_indexed", {"steps": 1600, "growing": 2560}, _WALKS),
    # As `walks`, with twice the width and the batch size, and lengths that grow half as fast.
    "slow_walks": (None, _SLOWLY | {"steps": 3200}, _WALKS | {"hidden_size": 128}),
    # As `slow_walks` with fewer steps, and an index of the channels if there are any: one set of fields for many tasks.
    "common": ("two_way", _SLOWLY | {"steps": 2000}, _COMMON),
    # As `common`, but a head may walk three slots in a step.
    "far": ("two_way", _SLOWLY | {"steps": 2000}, _COMMON | {"reach": 3}),
    # Patterns of jumps with ten times the learning speed, and sharp rows.
    "eager": (None, {"steps": 400}, {"reading": False, "sharpest": 8.0, "eager": 10.0}),
    # Sharp rows and a higher rate, and lengths that grow so slowly that they end at 10.
    "short": (None, {"steps": 400, "growing": 640, "learning_rate": 1e-2}, {"reading": False, "sharpest": 8.0}),
}


def task_of(name: str) -> Task:
    """The task, with its training lengths."""
    kind, fields, *_ = TASKS[name]
    return tasks.make(kind, **fields)


def ideas_of(name: str, *ideas: str) -> dict[str, Experiment]:
    """Some of `IDEAS` on a task."""
    chosen = {idea: IDEAS[idea] for idea in ideas}
    return {idea: experiment(name, network, training=own, **fields) for idea, (network, own, fields) in chosen.items()}


def ablations(name: str) -> dict[str, Experiment]:
    """The two-way transducer without one of its parts. `soft`, without rounding, is measured only up to 128, since its
    jumps cost O(N^2)."""
    soft = experiment(name, rounding="none")
    near = dataclasses.replace(soft.evaluation, lengths=LENGTHS[:3], batch_size=32, smallest_capacity=128)
    return {"soft": dataclasses.replace(soft, evaluation=near)} | ideas_of(name, "no_jumps", "no_reading", "one_head")


def experiment(
    name: str, network: str | None = None, *, training: dict[str, Any] | None = None, **changes: Any
) -> Experiment:
    """A network on a task, by default that of the entry. `changes` are other values of its fields."""
    *_, split, own = TASKS[name]
    model, fields, recipe = NETWORKS[network or own]
    recipe = recipe | (training or {})
    made = Training(
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        seeds=3,
        growing=recipe.get("growing", 0),
        optimizer=Optimizer("adam", recipe["learning_rate"], schedule=Cosine(warmup=0.05), clip_norm=1.0),
        selection="validation",
        validation_split=split,
        validate_every=100,
        validation_batches=4,
        checkpoint_every=100,
    )
    rows = 64 if model == "elman" else 256
    evaluation = Evaluation(GOALS.get(name, LENGTHS), samples=256, batch_size=rows, smallest_capacity=1024)
    return Experiment(task_of(name), make(model, **(fields | changes)), made, evaluation)
