"""Curves by length: exact values, independence of the other arguments, and few compilations."""

from __future__ import annotations

import csv
import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lenmem
from lenmem import Experiment, tasks
from lenmem.evaluation.lengths import Evaluation, LengthCurve, length_curve, score
from lenmem.tasks.base import RepeatedSource
from tests.evaluation import oracle
from tests.evaluation.oracle import Copy, Favourite, Oracle, favourites, reaches

KEY = jax.random.key(3)


def curve_of(lengths, *, params=None, samples=5, model=None, task=Copy(), **kwargs) -> LengthCurve:
    params = reaches(4, 10, 100) if params is None else params
    return length_curve(model or Oracle(), params, task, lengths, samples, KEY, **kwargs)


def test_values_are_indexed_by_length_in_any_order():
    curve = curve_of([21, 3, 9, 3, 40, 1], label="oracle")
    assert curve.lengths.tolist() == [1, 3, 9, 21, 40]
    assert (curve.label, curve.samples, curve.seeds) == ("oracle", 5, 3)
    assert (curve.train_lengths, curve.test_lengths) == ((2, 8), (9, 16))
    for length in (1, 3, 9, 21, 40):
        at = curve.at(length)
        reach = np.array([4, 10, 100])
        np.testing.assert_allclose(at["token_accuracy"], np.minimum(1, reach / length), rtol=1e-6)
        np.testing.assert_array_equal(at["exact_match"], reach >= length)
    with pytest.raises(ValueError, match="length 2 was not measured; measured were 1, 3, 9, 21, 40"):
        curve.at(2)


def test_one_compilation_per_bucket():
    oracle.traced.clear()
    curve_of(range(1, 101), samples=4)
    assert oracle.traced == [(4, 16), (4, 32), (4, 64), (4, 100)]
    curve_of(range(1, 101), samples=4, params=reaches(1, 2, 3))
    assert len(oracle.traced) == 4  # the second curve compiles nothing


def test_no_capacity_beyond_the_longest_length():
    oracle.traced.clear()
    curve_of([1, 5], samples=3)
    assert oracle.traced == [(3, 5)]


class Long(Copy):
    """Rows are twice as wide as their length."""

    def shapes(self, capacity):
        return 2 * capacity, 2 * capacity

    def sample(self, key, length, capacity):
        return super().sample(key, length, 2 * capacity)


def test_batches_shrink_with_capacity():
    oracle.traced.clear()
    curve = curve_of([1024], samples=64, batch_size=64, params=reaches(256))
    assert oracle.traced == [(16, 1024)]
    np.testing.assert_allclose(curve.at(1024)["token_accuracy"], 0.25)
    oracle.traced.clear()
    curve_of([512], samples=64, batch_size=64, params=reaches(256), task=Long())
    assert oracle.traced == [(16, 1024)]


def test_examples_of_a_length_depend_on_nothing_else():
    params = favourites(0, 5)
    values = curve_of([7], params=params, model=Favourite(), samples=13).at(7)
    assert 0 < values["token_accuracy"][0] < 0.4  # depends on the draw
    for lengths, batch_size in [([7, 100], 64), ([3, 7, 8], 4), ([7], 1)]:
        again = curve_of(lengths, params=params, model=Favourite(), samples=13, batch_size=batch_size).at(7)
        np.testing.assert_allclose(again["token_accuracy"], values["token_accuracy"], rtol=1e-6)
    other = length_curve(Favourite(), params, Copy(), [7], 13, jax.random.key(4)).at(7)
    assert not np.allclose(other["token_accuracy"], values["token_accuracy"])


class First(Copy):
    """Has the first token as a metric."""

    def metrics(self, outputs, batch):
        return {"first": batch.targets[:, 0]}


def test_each_length_has_examples_of_its_own():
    curve = length_curve(Favourite(), favourites(0), First(), [6, 7, 8], 50, KEY)
    assert len(set(curve.values["first"][0].tolist())) == 3


def test_dead_seeds_are_nan():
    curve = curve_of([2, 5], params=reaches(3, np.nan, np.inf))
    assert np.isnan(curve.values["token_accuracy"]).tolist() == [[False] * 2, [True] * 2, [True] * 2]


def test_unhashable_model_is_evaluated():
    curve = curve_of([2, 8], model=Oracle(options=np.arange(3)))
    np.testing.assert_allclose(curve.at(8)["token_accuracy"], [0.5, 1, 1])


def test_json_round_trip():
    curve = curve_of([2, 5, 30], params=reaches(3, np.nan), label="a")
    again = LengthCurve.from_dict(json.loads(json.dumps(curve.to_dict(), allow_nan=False)))
    assert again.to_dict() == curve.to_dict()
    for name, values in curve.values.items():
        np.testing.assert_array_equal(again.values[name], values)


def test_merged_curves_have_all_lengths_and_the_metrics_of_both():
    near, far = curve_of([3, 9], label="near"), curve_of([21, 1])
    far.values.pop("exact_match")
    both = LengthCurve.merged([near, far])
    assert both.lengths.tolist() == [1, 3, 9, 21] and both.label == "near"
    assert list(both.values) == ["token_accuracy"]
    for curve in (near, far):
        for length in curve.lengths.tolist():
            np.testing.assert_array_equal(both.at(length)["token_accuracy"], curve.at(length)["token_accuracy"])
    assert near.lengths.tolist() == [3, 9] and "exact_match" in near.values, "the curves themselves have changed"


class Ambiguous(Copy):
    """Has no certain answer at lengths above 4."""

    unit = "letters"

    def ceiling_at(self, length):
        return 1.0 if length < 5 else 2 / length


class Answer(nn.Module):
    """The same answer in every slot."""

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        bias = self.param("bias", nn.initializers.zeros, (2,))
        return jnp.broadcast_to(bias, (*target_mask.shape, 2))


def test_a_curve_says_what_is_possible_and_of_which_task_it_is():
    def of(task, *lengths):
        return length_curve(Favourite(), favourites(0), task, lengths, 2, KEY)

    np.testing.assert_allclose(of(Ambiguous(), 8, 3, 5).ceiling, [1, 0.4, 0.25])
    assert of(Ambiguous(), 3, 4).ceiling is None and of(Copy(), 8).ceiling is None
    both = LengthCurve.merged([of(Ambiguous(), 8), of(Ambiguous(), 5)])
    np.testing.assert_allclose(both.ceiling, [0.4, 0.25])
    np.testing.assert_allclose(LengthCurve.merged([of(Ambiguous(), 8), of(Copy(), 5)]).ceiling, [1, 0.25])
    assert LengthCurve.merged([of(Copy(), 8), of(Copy(), 5)]).ceiling is None
    parity = length_curve(Answer(), {"bias": np.zeros((1, 2))}, tasks.make("parity_check"), [3], 2, KEY)
    counted = length_curve(Favourite(), favourites(0), Ambiguous(), [3], 2, KEY)
    assert [(curve.task, curve.unit) for curve in (parity, counted)] == [
        ("parity_check", "symbols"),
        ("Ambiguous", "letters"),
    ]


def test_csv(tmp_path):
    curve_of([4, 20]).save_csv(tmp_path / "curve.csv")
    with open(tmp_path / "curve.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        *("length", "token_accuracy", "exact_match"),
        *("token_accuracy_low", "token_accuracy_high", "exact_match_low", "exact_match_high"),
    ]
    assert [[float(x) for x in row] for row in rows[1:]] == [[4, 1, 1, 1, 1, 1, 1], [20, 0.5, 0, 0.2, 1, 0, 1]]


def test_score_is_the_mean_over_the_test_split():
    task, samples = Copy(), 10
    # An independent sum over the first ten examples of the stream, of batches of four.
    source = task.source("test", 4)
    lengths = np.concatenate([np.sum(source.batch(jax.random.key(1), step).target_mask, axis=1) for step in range(3)])[
        :samples
    ]
    scores = score(Oracle(), reaches(0, 11, 12, 16), task, samples, 4, seed=1)
    expected = np.mean(np.minimum(1, np.array([0, 11, 12, 16])[:, None] / lengths), axis=1)
    np.testing.assert_allclose(scores["token_accuracy"], expected, rtol=1e-6)
    np.testing.assert_allclose(scores["exact_match"], np.mean(np.array([[0], [11], [12], [16]]) >= lengths, axis=1))


class Fixed(Copy):
    """Has only six test examples."""

    def examples_of(self, split):
        return 6

    def source(self, split, batch_size):
        return RepeatedSource(super().source(split, batch_size), 6, shuffle=False)


def test_score_takes_each_example_of_a_small_split_once():
    params = reaches(0, 11, 12, 16)
    few, many = (score(Oracle(), params, Fixed(), samples, 3) for samples in (6, 10))
    assert few.keys() == many.keys()
    for name in few:
        np.testing.assert_array_equal(few[name], many[name])
    assert 0 < few["token_accuracy"][1] < 1


def test_evaluation_lengths():
    assert Evaluation().lengths_for(Copy()) == tuple(range(2, 17))
    assert Evaluation(lengths=(5, 3)).lengths_for(Copy()) == (5, 3)


def test_default_lengths_are_those_that_occur(monkeypatch, tmp_path):
    """Otherwise `sample` would give the next shorter length, which may be one of training."""
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path))
    apart = {"kinds": ("one_fact",), "train_lengths": (4, 6), "test_lengths": (10, 12)}
    story = tasks.Stories(**apart, examples=30, held_out_examples=60)
    assert story.curve_lengths == Evaluation().lengths_for(story) == (4, 5, 6, 10, 11, 12)
    few = dataclasses.replace(story, held_out_examples=3)
    held = np.concatenate([few.row_lengths(few.tables()[split]) for split in ("validation", "test")])
    assert Evaluation().lengths_for(few) == tuple(np.unique(held)) != few.curve_lengths
    with pytest.raises(ValueError, match="add_or_sub.txt cannot be read"):
        Evaluation().lengths_for(tasks.make("add_or_sub", origin="/nowhere"))


@pytest.mark.parametrize(
    ("name", "fields", "most", "message"),
    [
        ("addition", {"format": "index_hints", "hints": 40, "test_lengths": (21, 39)}, 39, "hints is 40; sums of"),
        (
            "associative_recall",
            {"vocabulary": 80, "test_lengths": (17, 39)},
            39,
            "80 tokens has 39 keys, too few for 40",
        ),
        ("priority_sort", {"unary": False, "max_priority": 20}, 20, "length 21 needs as many priorities"),
    ],
)
def test_lengths_that_the_fields_exclude_are_refused_before_the_training(name, fields, most, message):
    task = tasks.make(name, **fields)
    assert Evaluation(lengths=(most,)).lengths_for(task) == (most,)
    with pytest.raises(ValueError, match=message):
        Evaluation(lengths=(1, most + 1)).lengths_for(task)


def test_an_experiment_is_measured_as_its_evaluation_says():
    asked = Evaluation(lengths=(7, 2), samples=13, seed=3, batch_size=5, smallest_capacity=4)
    oracle.traced.clear()
    curve = lenmem.measure(Experiment(Copy(), Oracle(), evaluation=asked), reaches(1, 100))
    assert oracle.traced == [(5, 4), (5, 7)]
    assert (curve.lengths.tolist(), curve.samples, curve.label) == ([2, 7], 13, "Oracle")
    params, alive, asked = favourites(0, 5), np.array([True, False]), dataclasses.replace(asked, lengths=(7,))
    curve = lenmem.measure(Experiment(Copy(), Favourite(), evaluation=asked), params, alive=alive)
    expected = curve_of([7], params=params, model=Favourite(), samples=13).at(7)["token_accuracy"]
    np.testing.assert_allclose(curve.at(7)["token_accuracy"], [expected[0], np.nan], rtol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "message"), [((), "empty"), ((3, 0), "at least 1, got 0"), ((2.5,), "integers, got")]
)
def test_wrong_lengths(lengths, message):
    with pytest.raises(ValueError, match=message):
        curve_of(lengths)
    with pytest.raises(ValueError, match=message):
        Evaluation(lengths=lengths)


def test_wrong_counts():
    with pytest.raises(ValueError, match=r"samples.*got 0"):
        curve_of([3], samples=0)
    with pytest.raises(ValueError, match="got 5 and 0"):
        curve_of([3], batch_size=0)
    with pytest.raises(ValueError, match="samples is 0; it must be an integer, at least 1"):
        Evaluation(samples=0)
    with pytest.raises(ValueError, match="batch_size is -1; it must be an integer"):
        Evaluation(batch_size=-1)
    with pytest.raises(ValueError, match="samples and batch_size must be at least 1, got 0"):
        score(Oracle(), reaches(1), Copy(), samples=0)


def test_parameters_without_seeds_are_refused():
    with pytest.raises(ValueError, match="leading axis of seeds"):
        curve_of([3], params={"a": np.zeros(3), "b": np.zeros(())})
    with pytest.raises(ValueError, match=r"leading axes \[2, 3\]"):
        curve_of([3], params={"a": np.zeros(3), "b": np.zeros((2, 3))})


def test_the_mean_beyond_training():
    """Over the lengths above those of training alone, per seed, each with the same weight."""
    values = {"token_accuracy": np.array([[1.0, 1.0, 0.5, 0.3], [1.0, 0.9, 0.4, 0.0]])}
    curve = LengthCurve("x", np.array([2, 5, 6, 9]), values, train_lengths=(1, 5), samples=3)
    np.testing.assert_allclose(curve.mean_beyond(), [0.4, 0.2])
    uneven = dataclasses.replace(curve, lengths=np.array([2, 6, 7, 15]))  # 0.5, then 0.3 at the ninth after it
    np.testing.assert_allclose(uneven.mean_beyond()[0], (1.0 + 0.5 + sum(0.5 - 0.025 * i for i in range(1, 9))) / 10)
    far = dataclasses.replace(curve, lengths=np.array([8, 9, 10, 12]))  # nothing was measured at 6 and 7
    np.testing.assert_allclose(far.mean_beyond()[0], (1.0 + 1.0 + 0.5 + 0.4 + 0.3) / 5)
    with pytest.raises(ValueError, match="no length above 9 was measured; measured were 2, 5-6, 9"):
        dataclasses.replace(curve, train_lengths=(1, 9)).mean_beyond()
