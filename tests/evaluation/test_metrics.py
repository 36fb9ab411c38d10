"""Means over a stream of batches."""

from __future__ import annotations

import dataclasses
import json

import flax.linen as nn
import jax
import numpy as np
import pytest

from lenmem.evaluation.metrics import NATS, SLOTS, ApplyModel, TaskMetrics, evaluate, with_perplexity
from lenmem.tasks.base import RepeatedSource, Task
from tests.evaluation import oracle
from tests.evaluation.oracle import VOCABULARY, Copy, Oracle, reaches


@dataclasses.dataclass(frozen=True)
class Coarse(Copy):
    """Has a metric of its own."""

    def metrics(self, outputs, batch):
        return {"length": batch.target_mask.sum(-1) / 100}


KEY = jax.random.key(2)


@dataclasses.dataclass(frozen=True)
class Listed:
    """A source in a list."""

    sources: list

    def batch(self, key, step):
        return self.sources[0].batch(key, step)


def mean_length(source, steps) -> float:
    return float(np.mean([np.sum(source.batch(KEY, step).target_mask, axis=1) for step in steps]))


def measured(params, source, batches, task: Task = Copy(), start=0):
    return evaluate(ApplyModel(Oracle()), params, TaskMetrics(task), source, KEY, batches, start=start)


@pytest.mark.parametrize("repeated", [False, True])
def test_mean_over_the_batches(repeated):
    source = Copy().source("validation", 6)
    source = RepeatedSource(source, 30) if repeated else source
    values = measured(reaches(1, 100), source, 4, Coarse())
    np.testing.assert_allclose(values["length"], [mean_length(source, range(4)) / 100] * 2, rtol=1e-6)
    values = measured(reaches(1, 100), source, 2, Coarse(), start=5)
    np.testing.assert_allclose(values["length"], [mean_length(source, (5, 6)) / 100] * 2, rtol=1e-6)


def test_every_seed_is_measured():
    values = measured(reaches(0, np.nan, 8), Copy().source("train", 4), 3)
    np.testing.assert_allclose(values["token_accuracy"], [0, np.nan, 1])
    np.testing.assert_allclose(values["exact_match"], [0, np.nan, 1])


def test_one_number_that_is_not_finite_is_enough():
    params = reaches(8, 8) | {"other": np.array([[0.0, 0.0], [0.0, np.inf]], np.float32)}
    np.testing.assert_array_equal(measured(params, Copy().source("train", 4), 1)["exact_match"], [1, np.nan])


def test_equal_sources_share_one_compilation():
    oracle.traced.clear()
    for _ in range(3):
        measured(reaches(1, 2, 3, 4), Copy().source("validation", 3), 2)
    assert oracle.traced == [(3, 8)]


def test_source_that_cannot_be_hashed():
    source = Copy().source("train", 4)
    listed = Listed([source])
    with pytest.raises(TypeError):
        hash(listed)
    expected = measured(reaches(3), source, 3)
    np.testing.assert_allclose(measured(reaches(3), listed, 3)["token_accuracy"], expected["token_accuracy"])


def test_the_loss_is_measured_too_where_it_is_asked_for():
    source = Copy().source("train", 4)
    values = evaluate(ApplyModel(Oracle()), reaches(8, 8), TaskMetrics(Copy(), loss=True), source, KEY, 2)
    right = np.log(1 + (VOCABULARY - 1) / np.e)  # Every answer is right, by a logit of 1 over 0.
    np.testing.assert_allclose(values["loss"], [right, right], rtol=1e-6)
    assert "loss" not in measured(reaches(8), source, 2)


class Forced(Copy):
    """Measures the answers that a network gives when it is told the right ones so far."""

    forced = True


class Obedient(nn.Module):
    """Right where it is given the answers, with a logit of 1 over 0; else all its logits are 0."""

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        reach = self.param("reach", nn.initializers.zeros, ())
        known = 0 * reach if targets is None else 1
        return known * jax.nn.one_hot(inputs, VOCABULARY)


def test_the_loss_of_a_forced_task_is_that_of_the_answers_given_the_right_ones():
    metrics = TaskMetrics(Forced(), loss=True)
    values = evaluate(ApplyModel(Obedient()), reaches(8), metrics, Copy().source("train", 4), KEY, 2)
    right = 1 + (VOCABULARY - 1) / np.e
    np.testing.assert_allclose(values["loss"], np.log(right), rtol=1e-6)
    np.testing.assert_allclose(values["perplexity"], right, rtol=1e-6)
    assert values["exact_match"] < 0.5  # of its own answers


def test_an_infinite_perplexity_is_the_largest_float():
    means = {NATS: np.array([8000.0, 4.0]), SLOTS: np.array([4.0, 4.0]), "exact_match": np.zeros(2)}
    found = with_perplexity(means)["perplexity"]
    assert json.loads(json.dumps(found.tolist(), allow_nan=False)) == [np.finfo(float).max, np.e]


def test_no_batches():
    with pytest.raises(ValueError, match="batches must be at least 1, got 0"):
        measured(reaches(1), Copy().source("train", 4), 0)
