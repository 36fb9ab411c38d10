"""The automata of `lenmem.models.pushdown` and `lenmem.models.automaton`: known machines, rounding, forcing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import AnswerAutomaton, Pushdown, make, supports
from lenmem.tasks.base import Task, draw
from lenmem.tasks.chomsky import ParityCheck
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.groups import WordProblem, multiplication_table
from lenmem.tasks.lantm import Copy
from lenmem.types import Batch
from tests.drawing import drawn

DYCK = Dyck(kinds=2, longest=8, sampling="uniform")
SURE = 60.0
"""A logit or weight that decides."""


def a_batch(task: Task, lengths: list[int]) -> Batch:
    return jax.jit(lambda: draw(task, jax.random.key(3), jnp.array(lengths), max(lengths)))()


def dyck_machine() -> Any:
    """The parameters of a pushdown transducer with one state that pushes what opens and pops what closes."""
    model = Pushdown(hidden_size=4, states=1, letters=2, spec=DYCK.spec)
    batch = a_batch(DYCK, [4])
    shapes = jax.eval_shape(model.init, jax.random.key(1), batch.inputs, batch.input_mask, batch.target_mask)["params"]
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    cell, head = params["cell"], params["Aligned_0"]["head"]
    # Hidden units: the four brackets. Inputs: state, two letters, four brackets.
    cell["look"]["kernel"] = cell["look"]["kernel"].at[3:7].set(jnp.eye(4))
    cell["act"]["kernel"] = SURE * jnp.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    cell["new"]["kernel"] = SURE * jnp.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])
    # Answers: the two letters, and a constant.
    cell["answer"]["kernel"] = cell["answer"]["kernel"].at[1:3, :2].set(jnp.eye(2)).at[0, 2].set(1.0)
    head["kernel"] = head["kernel"].at[0, 2].set(2.0).at[1, 3].set(2.0).at[2].set(jnp.array([1.0, 1, -1, -1]))
    return params


def matches(model: Any, params: Any, task: Task, batch: Batch) -> jax.Array:
    """Which rows are answered exactly."""

    @jax.jit
    def run(params: Any) -> jax.Array:
        outputs = model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)
        return task.metrics(outputs, batch)["exact_match"]

    return run(params)


@pytest.mark.parametrize("rounding", ["evaluation", "none"])
def test_a_known_pushdown_machine_answers_dyck_words_of_any_length(rounding):
    """Four times as long as in training, and twice as deep as there are letters and states."""
    batch = a_batch(DYCK, [2, 8, 20, 32, 32])
    model = Pushdown(hidden_size=4, states=1, letters=2, rounding=rounding, spec=DYCK.spec)
    np.testing.assert_array_equal(matches(model, dyck_machine(), DYCK, batch), 1)


def test_a_pushdown_transducer_is_rounded_outside_training_alone():
    batch = a_batch(DYCK, [8, 8])
    given = batch.inputs, batch.input_mask, batch.target_mask
    model = Pushdown(hidden_size=8, spec=DYCK.spec)
    params = drawn(model.init, *given)
    trained: Any = jax.jit(functools.partial(model.apply, train=True))({"params": params}, *given)
    np.testing.assert_array_equal(trained, jax.jit(model.clone(rounding="none").apply)({"params": params}, *given))
    rounded: Any
    rounded, sown = jax.jit(functools.partial(model.apply, mutable=["traces"]))({"params": params}, *given)
    assert not np.allclose(trained, rounded)
    for values in sown["traces"]["cell"].values():
        assert set(np.unique(values[0])) <= {0.0, 1.0}


@pytest.mark.parametrize("train", [True, False])
def test_a_stack_has_room_for_what_is_pushed_while_answering(train):
    """Padding of the input gave it more, so that answers changed."""
    model = Pushdown(hidden_size=8, letters=3, spec=Copy(vocabulary=4).spec)
    row, answers = jnp.array([[1, 3]]), jnp.ones((1, 16), bool)
    params = jax.tree.map(lambda x: 8 * x, drawn(model.init, row, row > 0, answers))
    narrow, wide = (
        jax.jit(functools.partial(model.apply, train=train))(
            {"params": params}, jnp.pad(row, ((0, 0), (0, more))), jnp.arange(2 + more)[None] < 2, answers
        )
        for more in (0, 38)
    )
    np.testing.assert_allclose(narrow, wide, atol=1e-5)


def test_the_table_of_a_group_answers_its_word_problem():
    task = WordProblem(group="S3", train_lengths=(1, 4), test_lengths=(5, 8))
    model = AnswerAutomaton(spec=task.spec)
    # After a, input x gives a x; without a last answer, x itself.
    products = np.concatenate([multiplication_table("S3").T, np.arange(6)[:, None]], axis=1)
    params = {"table": SURE * jax.nn.one_hot(products, 6)}
    np.testing.assert_array_equal(matches(model, params, task, a_batch(task, [1, 5, 40])), 1)


def test_forced_answers_are_those_of_a_machine_that_answered_so():
    """Where the network's own answers are right, they are what it is given in training."""
    task = WordProblem(group="Z3", train_lengths=(1, 6))
    model = AnswerAutomaton(spec=task.spec)
    batch = a_batch(task, [3, 6])
    given = batch.inputs, batch.input_mask, batch.target_mask
    params = {"params": drawn(model.init, *given)}
    run = jax.jit(model.apply, static_argnames="train")
    own: Any = run(params, *given)
    forced = run(params, *given, targets=np.argmax(own, axis=-1), train=True)
    real = np.asarray(batch.target_mask)
    np.testing.assert_array_equal(np.asarray(own)[real], np.asarray(forced)[real])
    others = (np.argmax(own, axis=-1) + 1) % 3
    told, table = np.asarray(run(params, *given, targets=others, train=True)), np.asarray(params["params"]["table"])
    for row, length in enumerate((3, 6)):
        before = [3, *others[row, : length - 1].tolist()]  # 3: nothing was answered yet
        np.testing.assert_array_equal(told[row, :length], table[np.asarray(batch.inputs)[row, :length], before])


@pytest.mark.parametrize(
    "task, reason",
    [
        (ParityCheck(), "its state is the answer to the last input; the task's answers come after the input"),
        (DYCK, "it has a table of input tokens and answer tokens; the task has other values"),
    ],
)
def test_an_automaton_of_answers_needs_tokens_that_are_answered_one_by_one(task, reason):
    assert supports(make("answer_automaton"), task.spec) == reason
