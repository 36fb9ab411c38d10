"""Answers to a whole split, and their scores."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from lenmem.evaluation.sets import set_answers, set_scores
from lenmem.tasks.base import SetScore
from tests.evaluation.oracle import VOCABULARY, Copy, Oracle, reaches


@dataclasses.dataclass(frozen=True)
class Counted(Copy):
    """Scored by the number of its answers, and by its first answer."""

    def set_scores(self, answers, split):
        return {"count": SetScore(float(len(answers)), split), "first": SetScore(float(answers[0, 0]), "a token")}


def test_answers_are_those_to_the_first_examples_of_the_split_for_every_seed():
    """Five examples, in batches of two."""
    batch = jax.jit(Copy().source("test", 2).batch)
    inputs = np.concatenate([batch(jax.random.key(0), step).inputs for step in range(3)])[:5]
    found = set_answers(Oracle(), reaches(3, 100), Copy(), 5, batch_size=2)
    for answers, reach in zip(found, (3, 100), strict=True):
        np.testing.assert_array_equal(answers, (inputs + (np.arange(16) >= reach)) % VOCABULARY)


def test_a_dead_seed_has_no_score():
    scores = set_scores(Oracle(), reaches(0, np.nan, 1), Counted(), 3, split="validation", batch_size=2)
    assert scores["count"].told == "validation"
    np.testing.assert_array_equal(scores["count"].values, [3, np.nan, 3])
    wrong, _, right = scores["first"].values
    assert (right + 1) % VOCABULARY == wrong
    partly = reaches(0, 1) | {"other": np.array([[0.0, 0.0], [0.0, np.inf]], np.float32)}
    scores = set_scores(Oracle(), partly, Counted(), 3, split="validation", batch_size=2)
    np.testing.assert_array_equal(scores["count"].values, [3, np.nan])


def test_training_examples_have_no_order():
    with pytest.raises(ValueError, match="score another split"):
        set_answers(Oracle(), reaches(1), Copy(), 3, split="train")
