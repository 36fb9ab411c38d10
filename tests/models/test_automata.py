"""The automata of `lenmem.models.pushdown` and `lenmem.models.automaton`: known machines, rounding, forcing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import AnswerAutomaton, Pushdown, make, supports
from lenmem.tasks.base import draw
from lenmem.tasks.chomsky import ParityCheck
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.groups import WordProblem, multiplication_table

DYCK = Dyck(kinds=2, longest=8, sampling="uniform")
SURE = 60.0
"""A logit or weight that decides."""


def dyck_machine() -> Any:
    """The parameters of a pushdown transducer with one state that pushes what opens and pops what closes."""
    model = Pushdown(hidden_size=4, states=1, letters=2, spec=DYCK.spec)
    batch = draw(DYCK, jax.random.key(0), jnp.array([4]), 4)
    params = model.init(jax.random.key(1), batch.inputs, batch.input_mask, batch.target_mask)["params"]
    params = jax.tree.map(jnp.zeros_like, params)
    cell, head = params["cell"], params["Aligned_0"]["head"]
    # Hidden units: the four brackets. Inputs: state, two letters, four brackets.
    cell["look"]["kernel"] = cell["look"]["kernel"].at[3:7].set(jnp.eye(4))
    cell["act"]["kernel"] = SURE * jnp.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    cell["new"]["kernel"] = SURE * jnp.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])
    # Answers: the two letters, and a constant.
    cell["answer"]["kernel"] = cell["answer"]["kernel"].at[1:3, :2].set(jnp.eye(2)).at[0, 2].set(1.0)
    head["kernel"] = head["kernel"].at[0, 2].set(2.0).at[1, 3].set(2.0).at[2].set(jnp.array([1.0, 1, -1, -1]))
    return params


@pytest.mark.parametrize("rounding", ["evaluation", "none"])
def test_a_known_pushdown_machine_answers_dyck_words_of_any_length(rounding):
    """Four times as long as in training, and twice as deep as there are letters and states."""
    batch = draw(DYCK, jax.random.key(3), jnp.array([2, 8, 20, 32, 32]), 32)
    model = Pushdown(hidden_size=4, states=1, letters=2, rounding=rounding, spec=DYCK.spec)
    outputs = model.apply({"params": dyck_machine()}, batch.inputs, batch.input_mask, batch.target_mask)
    np.testing.assert_array_equal(DYCK.metrics(jnp.asarray(outputs), batch)["exact_match"], 1)


def test_a_pushdown_transducer_is_rounded_outside_training_alone():
    batch = draw(DYCK, jax.random.key(3), jnp.array([8, 8]), 8)
    given = batch.inputs, batch.input_mask, batch.target_mask
    model = Pushdown(hidden_size=8, spec=DYCK.spec)
    params = model.init(jax.random.key(0), *given)["params"]
    trained: Any = model.apply({"params": params}, *given, train=True)
    np.testing.assert_array_equal(trained, model.clone(rounding="none").apply({"params": params}, *given))
    rounded: Any = model.apply({"params": params}, *given)
    assert not np.allclose(trained, rounded)
    sown: Any = model.apply({"params": params}, *given, mutable=["traces"])[1]
    for values in sown["traces"]["cell"].values():
        assert set(np.unique(values[0])) <= {0.0, 1.0}


def test_the_table_of_a_group_answers_its_word_problem():
    task = WordProblem(group="S3", train_lengths=(1, 4), test_lengths=(5, 8))
    model = AnswerAutomaton(spec=task.spec)
    # After a, input x gives a x; without a last answer, x itself.
    products = np.concatenate([multiplication_table("S3").T, np.arange(6)[:, None]], axis=1)
    params = {"table": SURE * jax.nn.one_hot(products, 6)}
    batch = draw(task, jax.random.key(0), jnp.array([1, 5, 40]), 40)
    outputs = model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)
    np.testing.assert_array_equal(task.metrics(jnp.asarray(outputs), batch)["exact_match"], 1)


def test_forced_answers_are_those_of_a_machine_that_answered_so():
    """Where the network's own answers are right, they are what it is given in training."""
    task = WordProblem(group="Z3", train_lengths=(1, 6))
    model = AnswerAutomaton(spec=task.spec)
    batch = draw(task, jax.random.key(0), jnp.array([3, 6]), 6)
    given = batch.inputs, batch.input_mask, batch.target_mask
    params = model.init(jax.random.key(1), *given)
    own: Any = model.apply(params, *given)
    forced = model.apply(params, *given, targets=jnp.argmax(own, axis=-1), train=True)
    real = np.asarray(batch.target_mask)
    np.testing.assert_array_equal(np.asarray(own)[real], np.asarray(forced)[real])


@pytest.mark.parametrize(
    "task, reason",
    [
        (ParityCheck(), "its state is the answer to the last input; the task's answers come after the input"),
        (DYCK, "it has a table of input tokens and answer tokens; the task has other values"),
    ],
)
def test_an_automaton_of_answers_needs_tokens_that_are_answered_one_by_one(task, reason):
    assert supports(make("answer_automaton"), task.spec) == reason
