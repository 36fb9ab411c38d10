"""Parity and modular arithmetic in the protocol of state tracking, and the scaled accuracy."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.evaluation.lengths import Evaluation
from lenmem.tasks.base import draw, scaled_accuracy

NAMES = ("tracked_parity", "tracked_arithmetic", "tracked_arithmetic_brackets")
LENGTHS = (3, 4, 5, 6, 7, 8, 11, 20)


def rows(name, capacity=24):
    """(length, input, answer) of examples without padding."""
    task, lengths = tasks.make(name), np.repeat(LENGTHS, 12)
    program = jax.jit(lambda key: draw(task, key, jnp.asarray(lengths), capacity))
    batch = jax.tree.map(np.asarray, program(jax.random.key(0)))
    assert batch.inputs.shape[1:] == (task.shapes(capacity)[0],) and batch.targets.shape[1:] == (1,)
    assert batch.score_mask.all() and not batch.inputs[~batch.input_mask].any()
    found = zip(batch.inputs, batch.input_mask, batch.targets, strict=True)
    return [(n, x[mask].tolist(), int(y[0])) for n, (x, mask, y) in zip(lengths.tolist(), found, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_an_independent_solver(name):
    """The lengths of the published generators, and answers by Python's arithmetic."""
    task, seen = tasks.make(name), set()
    for length, inputs, answer in rows(name):
        text = "".join(task.input_names[token] for token in inputs)
        if name == "tracked_parity":
            assert len(text) + 1 == length and answer == text.count("1") % 2
        elif name == "tracked_arithmetic":
            assert len(text) + 1 == 2 * ((length + 1) // 2) - 1
            assert text.index("=") == len(text) - 1 and set(text[1:-1:2]) <= set("+-*")
            assert answer == eval(text[:-1]) % 5
        else:
            assert len(text) + 2 == max(length, 5) and text.index("=") == len(text) - 1
            assert "*" not in text and answer == eval(text[:-1]) % 5
        seen.add(answer)
    assert seen == set(range(task.spec.output_size))


@pytest.mark.parametrize("name", NAMES)
def test_more_capacity_changes_only_the_padding(name):
    assert rows(name, 31) == rows(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_spec(name):
    """Published lengths and vocabulary (without padding); nothing is read behind the input."""
    task = tasks.make(name)
    assert (task.train_lengths, task.test_lengths) == ((3, 40), (40, 256))
    assert task.spec.delimited and len(task.input_names) == task.spec.vocabulary
    assert task.spec.chance == (0.5 if name == "tracked_parity" else 0.2)
    assert (
        task.spec.vocabulary == {"tracked_parity": 2, "tracked_arithmetic": 9, "tracked_arithmetic_brackets": 10}[name]
    )


@pytest.mark.parametrize("name", [*NAMES, "word_problem"])
def test_scaled_accuracy_is_0_at_chance_and_1_if_all_is_right(name):
    """A constant answer scores 0 on average over many examples, the right answers 1, and always wrong ones less."""
    task = tasks.make(name, **({"group": "S3"} if name == "word_problem" else {}))
    batch = jax.jit(lambda key: draw(task, key, jnp.full(4000, 9), 9))(jax.random.key(1))
    classes = task.spec.output_size

    @jax.jit
    def score(answers):
        return task.metrics(jax.nn.one_hot(answers, classes), batch)["scaled_accuracy"].mean()

    assert score(batch.targets) == 1
    guesses = np.random.default_rng(2).integers(classes, size=batch.targets.shape)
    assert abs(score(guesses)) < 0.05
    np.testing.assert_allclose(score((np.asarray(batch.targets) + 1) % classes), -1 / (classes - 1), rtol=1e-5)


def test_scaled_accuracy_of_one_class():
    """The trivial group has nothing above chance."""
    assert scaled_accuracy(jnp.ones(3), 1.0).tolist() == [0, 0, 0]
    task = tasks.make("word_problem", group="Z1")
    batch = draw(task, jax.random.key(0), jnp.full(2, 3), 3)
    assert task.metrics(jnp.zeros((2, 3, 1)), batch)["scaled_accuracy"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        ("tracked_parity", 2, "the shortest example of TrackedParity has length 3, got 2"),
        ("tracked_arithmetic", 1, "the shortest example of TrackedArithmetic has length 3, got 1"),
        ("tracked_arithmetic", 40, "an expression n op n .. n with its = and its value has an odd length, got 40"),
        ("tracked_arithmetic_brackets", 4, "the shortest example of TrackedArithmeticBrackets has length 5, got 4"),
    ],
)
def test_lengths_that_do_not_occur_are_refused(name, length, message):
    task = tasks.make(name)
    with pytest.raises(ValueError, match=re.escape(message)):
        Evaluation(lengths=(length,)).lengths_for(task)
    lengths = Evaluation().lengths_for(task)
    assert length not in lengths and len(lengths) > 5
    assert Evaluation(lengths=(5, 257)).lengths_for(task) == (5, 257)
