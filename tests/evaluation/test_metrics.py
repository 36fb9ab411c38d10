"""Means over a stream of batches."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from lenmem.evaluation.metrics import evaluate
from lenmem.tasks.base import RepeatedSource
from tests.evaluation import oracle
from tests.evaluation.oracle import Copy, Oracle, reaches


@dataclasses.dataclass(frozen=True)
class Coarse(Copy):
    """Has a metric of its own."""

    def metrics(self, outputs, batch):
        return {"length": batch.target_mask.sum(-1) / 100}


def mean_length(source, steps) -> float:
    return float(np.mean([np.sum(source.batch(step).target_mask, axis=1) for step in steps]))


@pytest.mark.parametrize("repeated", [False, True])
def test_mean_over_the_batches(repeated):
    source = Copy().source("validation", 6, 2)
    source = RepeatedSource(source, 30) if repeated else source
    values = evaluate(Oracle(), reaches(1, 100), Coarse(), source, 4)
    np.testing.assert_allclose(values["length"], [mean_length(source, range(4)) / 100] * 2, rtol=1e-6)
    values = evaluate(Oracle(), reaches(1, 100), Coarse(), source, 2, start=5)
    np.testing.assert_allclose(values["length"], [mean_length(source, (5, 6)) / 100] * 2, rtol=1e-6)


def test_every_seed_is_measured():
    values = evaluate(Oracle(), reaches(0, np.nan, 8), Copy(), Copy().source("train", 4, 0), 3)
    np.testing.assert_allclose(values["token_accuracy"], [0, np.nan, 1])
    np.testing.assert_allclose(values["exact_match"], [0, np.nan, 1])


def test_equal_sources_share_one_compilation():
    oracle.traced.clear()
    for _ in range(3):
        evaluate(Oracle(), reaches(1, 2, 3, 4), Copy(), Copy().source("validation", 3, 0), 2)
    assert oracle.traced == [(3, 8)]


def test_source_that_cannot_be_hashed():
    source = Copy().source("train", 4, jax.numpy.asarray(0))
    with pytest.raises(TypeError):
        hash(source)
    expected = evaluate(Oracle(), reaches(3), Copy(), Copy().source("train", 4, 0), 3)
    np.testing.assert_allclose(
        evaluate(Oracle(), reaches(3), Copy(), source, 3)["token_accuracy"], expected["token_accuracy"]
    )


def test_no_batches():
    with pytest.raises(ValueError, match="batches must be at least 1, got 0"):
        evaluate(Oracle(), reaches(1), Copy(), Copy().source("train", 4, 0), 0)
