"""The mathematics tasks against the questions they are built from."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from lenmem.data import mathematics
from lenmem.tasks.mathematics import ANSWERS, CHARACTERS, END, AddOrSub, PlaceValue, encoded

TASKS = [AddOrSub(examples=600, held_out_examples=60), PlaceValue(examples=600, held_out_examples=60)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path))


def pair(example):
    """Question and answer of an example."""
    inputs, mask, targets, target_mask, score_mask = map(np.asarray, example)
    count = int(score_mask.sum()) - 1
    assert targets[count] == END
    assert not score_mask[count + 1 :].any()
    assert (target_mask | ~score_mask).all()
    return "".join(CHARACTERS[i] for i in inputs[mask]), "".join(ANSWERS[i] for i in targets[:count])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.module)
def test_splits_hold_the_questions_of_the_data_set(task):
    sets = mathematics.generated(mathematics.MODULES[task.module], 200, 60, seed=0)
    known = {question: answer for pairs in sets.values() for question, answer in pairs}
    tables = task.tables()
    assert {split: len(rows) for split, rows in tables.items()} == {
        "train": 600,
        "validation": 180,
        "interpolate": 60,
        "test": 60,
    }
    asked = {}
    for split in task.splits:
        batch = jax.tree.map(np.asarray, jax.jit(task.source(split, 60).batch)(jax.random.key(0), 0))
        asked[split] = {pair(jax.tree.map(lambda x, row=row: x[row], batch)) for row in range(60)}
        assert all(known[question] == answer for question, answer in asked[split])
    assert asked["test"] == set(sets["extrapolate"])
    assert asked["interpolate"] == set(sets["interpolate"])
    assert not asked["train"] & asked["validation"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.module)
def test_lengths_are_digits_and_shapes_are_large_enough(task):
    sample = jax.jit(task.sample, static_argnums=2)
    for length in (4, task.digits[1]):
        question, _ = pair(sample(jax.random.key(0), length, task.digits[1]))
        assert sum(c.isdigit() for c in question) <= length
    small, large = (sample(jax.random.key(1), 5, capacity) for capacity in (5, 20))
    assert pair(small) == pair(large)
    for split, (_, longest) in task.splits.items():
        rows = task.tables()[split]
        inputs, slots = task.shapes(longest)
        assert task.row_lengths(rows).max() <= longest
        assert rows.input_lengths.max() <= inputs
        assert rows.answer_lengths.max() < slots
        assert (rows.answer_lengths - task.row_lengths(rows)).max() <= task.extra


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.module)
def test_chance_is_that_of_the_best_constant_answer(task):
    rows = dataclasses.replace(task, examples=6000).tables()["train"]
    real = np.arange(rows.answers.shape[1]) < rows.answer_lengths[:, None]
    slots = rows.answer_lengths + 1
    shares = [((rows.answers == c) & real).sum(1) / slots for c in range(END)] + [1 / slots]
    assert task.spec.chance == pytest.approx(max(share.mean() for share in shares), abs=0.01)


def test_the_length_may_be_given():
    task = dataclasses.replace(TASKS[0], length_given=True)
    batch = task.source("train", 8).batch(jax.random.key(0), 0)
    np.testing.assert_array_equal(batch.target_mask, batch.score_mask)
    assert task.spec.length_rule == "given"
    assert TASKS[0].source("train", 8).batch(jax.random.key(0), 0).target_mask.all()


def test_the_release_and_tfds_are_split_alike(tmp_path, monkeypatch):
    module = mathematics.MODULES["place_value"]
    sets = mathematics.generated(module, 100, 20, seed=3)
    sets["medium"] += sets["easy"][:5]  # repeated questions
    for name, pairs in sets.items():
        folder = tmp_path / (name if name in ("interpolate", "extrapolate") else f"train-{name}")
        folder.mkdir()
        file = folder / f"{module.name}{'_big' if name == 'extrapolate' else ''}.txt"
        file.write_text("".join(f"{question}\n{answer}\n" for question, answer in pairs))
    task = PlaceValue(examples=10_000, held_out_examples=20, origin=str(tmp_path))
    sizes = {"train": 300, "validation": 60, "interpolate": 20, "test": 20}
    assert {split: len(rows) for split, rows in task.tables().items()} == sizes
    pooled = {"train": sets["easy"] + sets["medium"][:-5] + sets["hard"], "test": sets["interpolate"]}
    monkeypatch.setattr(mathematics, "examples", lambda name, split, features: pooled[split])
    by_tfds = PlaceValue(examples=10_000, held_out_examples=20, origin="tfds").tables()
    assert {split: len(rows) for split, rows in by_tfds.items()} == sizes
    with pytest.raises(ValueError, match="the set 'easy' has 120 questions; 120 are to be held out"):
        dataclasses.replace(task, held_out_examples=120).tables()


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="examples is 2; it must be an integer, at least 3"):
        PlaceValue(examples=2)
    with pytest.raises(ValueError, match=r"question 2 of the set 'train', '4 × 3' with the answer '12', has a '×'"):
        encoded([("1 + 1", "2"), ("4 × 3", "12")], "train")
