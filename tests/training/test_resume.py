"""What a resumed training is told of the fields in which it differs from its run."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import optax

from lenmem import models, tasks
from lenmem.serialize import to_plain
from lenmem.training.optimizer import Optimizer
from lenmem.training.resume import differences, experiment_differences, same_experiment
from tests.training.tiny import TASK, Poisoned, experiment


@dataclasses.dataclass(frozen=True)
class Cell:
    """Not of lenmem; a field without a default."""

    size: int


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of its own, with fields of many kinds."""

    size: int = 3
    rate: float = 0.1
    anything: Any = ()
    label: str = "a"


def saved(value):
    """As it comes out of a manifest."""
    return json.loads(json.dumps(to_plain(value)))


def test_what_was_saved_before_a_field_was_added_is_known():
    value = Leaf(size=5, anything=(Cell(4), {"x": 0.5}))
    data = saved(value)
    assert differences(data, value) == []
    assert differences(data, dataclasses.replace(value, size=6)) == ["size: the run has 5, asked for 6"]
    old = {name: item for name, item in data.items() if name not in ("rate", "label")}
    assert differences(old, value) == []
    assert differences(old, dataclasses.replace(value, rate=0.2)) == ["rate: the run has 0.1, asked for 0.2"]
    assert differences(data | {"more": 1}, value) == ["more: the run has 1, asked for nothing"]
    cell = {name: item for name, item in data["anything"][0].items() if name != "size"}  # It has no default.
    assert differences(data | {"anything": [cell, data["anything"][1]]}, value)


def test_every_field_that_differs_is_named():
    run = experiment()
    other = experiment(
        models.make("lstm", hidden_size=4, dtype=jnp.bfloat16), steps=8, optimizer=Optimizer("rmsprop", 0.5)
    )
    other = dataclasses.replace(other, task=tasks.make("copy", train_lengths=(1, 4)))
    assert experiment_differences(saved(run), other) == [
        "task.vocabulary: the run has 4, asked for 128",
        "task.train_lengths: the run has [1, 3], asked for [1, 4]",
        "task.test_lengths: the run has [4, 6], asked for [5, 8]",
        "model: the run has GRU, asked for LSTM",
        "training.steps: the run has 6, asked for 8",
        'training.optimizer.name: the run has "adam", asked for "rmsprop"',
        "training.optimizer.learning_rate: the run has 0.01, asked for 0.5",
    ]
    half = dataclasses.replace(run, model=run.model.clone(dtype=jnp.bfloat16))
    assert experiment_differences(saved(run), half) == ["model.dtype: the run has None, asked for bfloat16"]
    rows = [tasks.make("pairs", rows=[("a b", "c")] * count) for count in (400, 1)]
    (line,) = differences(saved(rows[0]), rows[1])
    assert line.startswith('rows: the run has [["a b", "c"], ["a b", "c"]') and len(line) < 150


def test_what_only_says_how_it_is_computed_may_differ():
    run = experiment(devices=1, seeds_at_once=1, widths=2)
    assert same_experiment(saved(run), experiment())
    for other in ({"log_every": 1}, {"batch_size": 8}, {"growing": 2}, {"precision": "bf16"}, {"seed": 1}):
        assert not same_experiment(saved(run), experiment(**other)), other
    for transformation in (optax.adam(0.1), optax.sgd(0.5)):  # saved alike, without their numbers
        unknown = experiment(optimizer=transformation)
        assert not same_experiment(saved(unknown), unknown) and not experiment_differences(saved(unknown), unknown)
    assert not same_experiment(None, run) and not same_experiment({"class": "float", "value": "inf"}, run)
    own = experiment(Poisoned())
    assert same_experiment(saved(own), own) and not same_experiment(saved(own), run)
    assert own.task == TASK
