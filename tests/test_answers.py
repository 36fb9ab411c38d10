"""A network's answers as text: typed inputs, where an answer ends, examples by number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import Experiment, Run, Training, runs, tasks
from lenmem.types import Spec


class Fixed(nn.Module):
    """Gives these numbers [M, K] for the first slots, whatever it reads, and the first of them for the others."""

    outputs: tuple[tuple[float, ...], ...]
    spec: Spec | None = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        slots = np.resize(np.arange(len(self.outputs)), target_mask.shape[1])
        return jnp.asarray(self.outputs)[slots][None] + self.param("zero", nn.initializers.zeros, ())


def a_run(task, *outputs):
    """A run of one seed."""
    experiment = Experiment(task, Fixed(tuple(map(tuple, outputs))), Training(steps=1))
    return Run(experiment, {"zero": np.zeros(1, np.float32)}, 1, Path("nowhere"), {}, np.ones(1, bool))


COPY = tasks.make("copy", vocabulary=4, train_lengths=(1, 3))
"""4 is the end symbol."""


def saying(*symbols):
    return a_run(COPY, *np.eye(5)[list(symbols)].tolist())


def test_an_answer_ends_before_its_first_end_symbol():
    assert runs.predict(saying(2, 0, 4, 1, 4), "3 1 2 0") == ["2", "0"]
    assert runs.predict(saying(4, 1), "3") == []
    assert runs.predict(saying(1, 3), "0 2 1") == ["1", "3", "1", "3"]
    assert runs.predict(saying(1, 3), "0 2 1", answers=2) == ["1", "3"]


def test_slots_are_marked_one_by_one():
    """Reading `a b c`, the answer is `a b c end`; the network gives 1 2 0 4 in all of them."""
    seen = [runs.answer_example(saying(1, 2, 0, 4), 3, example=number) for number in range(4)]
    assert len({tuple(one.inputs) for one in seen}) > 1
    for number, one in enumerate(seen):
        assert one.inputs == runs.answer_example(saying(0), 3, example=number).inputs
        assert one.right == [*one.inputs, COPY.answer_names[4]]
        assert one.given == ["1", "2", "0", COPY.answer_names[4]]
        assert one.hits == [a == b for a, b in zip(one.right, one.given, strict=True)]


def test_values_are_typed_step_by_step_and_printed():
    task = tasks.make("dnc_copy")
    batch = runs.typed_batch(task, "0.5 0; -1 0; 0 1")
    np.testing.assert_array_equal(batch.inputs, [[[0.5, 0], [-1, 0], [0, 1]]])
    assert runs.predict(a_run(task, [0.5, 0.25], [-1, 1]), "0.5 0; 0 1") == ["0.5 0.25", "-1 1"]
    told = "must be 2 numbers per step, with steps separated by semicolons; "
    for text, message in (("0.5 0; 1", r"got \[2, 1\] values"), ("0.5 x", "could not convert")):
        with pytest.raises(ValueError, match=f"{told}{message}"):
            runs.typed_batch(task, text)
    with pytest.raises(ValueError, match=r"must be typed as text, such as \"3 1 4\", got \[1, 2\]"):
        runs.predict(a_run(task, [0.5, 0.25]), [1, 2])


def test_aligned_answers_are_one_for_each_input():
    """Also if the sizes of the task are multiples of something else."""
    task = tasks.make("associative_recall", vocabulary=8, train_lengths=(1, 2), test_lengths=(3, 3), spacing=4)
    one = np.eye(8)[5].tolist()
    assert runs.predict(a_run(task, one), "1 5 2 6 1") == ["5"] * 5
    assert runs.typed_batch(tasks.make("reduce", whole_sequence=True), "1 2 10 3").targets.shape == (1, 4)
    assert runs.typed_batch(task, "1 5", answers=3).targets.shape == (1, 3)


def test_a_length_that_is_that_of_the_answer_does_not_cut_it():
    """The inputs of this task are equally wide at every length."""
    task = tasks.make("scan", length_given=True)
    inputs = " ".join(task.input_names[:3])
    assert runs.typed_batch(task, inputs).targets.shape == (1, task.shapes(task.test_lengths[1])[1])


def test_bits_are_those_above_zero():
    task = dataclasses.replace(tasks.make("dyck"), examples=16)
    assert runs.predict(a_run(task, [1, 0.5, -1, -0.1], [2, -1, 3, 0]), "( (") == ["1100", "1010"]
