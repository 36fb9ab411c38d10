"""The networks of the Chomsky-hierarchy study against float64 twins, and memories that are moved by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.chomsky import Elman, StackCell, TapeCell, TapeRNN, VectorStackRNN
from lenmem.nn.cells import Stacked
from lenmem.nn.interfaces import Transducer
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy, Reverse
from tests.learning import briefly
from tests.models import contract
from tests.models.contract import Case, Learning
from tests.models.test_stack_rnn import Closing
from tests.models.twin import random_parameters, sigmoid, softmax

TASK = Copy(vocabulary=5, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))


def linear(params, x):
    return x @ params["kernel"] + params["bias"]


def relu(x):
    return np.maximum(x, 0)


class ElmanTwin:
    """The controller, one row; `see` gives h."""

    def __init__(self, params, size):
        self.p, self.h = params, np.zeros(size)

    def see(self, x):
        self.h = relu(linear(self.p["input"], x) + linear(self.p["hidden"], self.h))
        return self.h


class LSTMTwin:
    """The other controller."""

    def __init__(self, params, size):
        self.p, self.c, self.h = params, np.zeros(size), np.zeros(size)

    def see(self, x):
        f, i, o, g = np.split(linear(self.p, np.concatenate([x, self.h])), 4)
        self.c = sigmoid(f + 1) * self.c + sigmoid(i) * np.tanh(g)
        self.h = sigmoid(o) * np.tanh(self.c)
        return self.h


class Controlled:
    """A controller alone, as a machine without memory."""

    def __init__(self, model, params, length):
        self.controller, self.seen = ElmanTwin(params["cell"], model.hidden_size), {}

    def step(self, x):
        return self.controller.see(x)


class StackTwin:
    """One row of a controller with stacks, each a list of values."""

    def __init__(self, model, params, length):
        self.p, self.slots, self.width = params["cell"], model.slots, model.width
        self.controller = {"elman": ElmanTwin, "lstm": LSTMTwin}[model.controller](self.p["core"], model.hidden_size)
        self.stacks = [[np.zeros(self.width)] * self.slots for _ in range(model.stacks)]

    def step(self, x):
        seen = [stack[0] for stack in self.stacks]
        h = self.controller.see(np.concatenate([x, *seen]))
        logits, values = linear(self.p["act"], h), linear(self.p["new"], h)
        actions = [softmax(logits[3 * i : 3 * i + 3]) for i in range(len(self.stacks))]
        for i, (push, pop, stay) in enumerate(actions):
            value = values[i * self.width : (i + 1) * self.width]
            below = [*self.stacks[i], np.zeros(self.width)]
            above = [value, *self.stacks[i]]
            self.stacks[i] = [
                push * above[t] + pop * below[t + 1] + stay * self.stacks[i][t] for t in range(self.slots)
            ]
        self.seen = {"actions": actions, "seen": seen}
        return h


class TapeTwin:
    """One row of a controller with tapes: each is a circle of cells with a head that moves."""

    def __init__(self, model, params, length):
        self.p, self.slots, self.width, self.length = params["cell"], model.slots, model.width, length
        self.controller = {"elman": ElmanTwin, "lstm": LSTMTwin}[model.controller](self.p["core"], model.hidden_size)
        self.tapes = [[np.zeros(self.width)] * self.slots for _ in range(model.tapes)]

    def step(self, x):
        seen = [tape[0] for tape in self.tapes]
        h = self.controller.see(np.concatenate([x, *seen]))
        logits = linear(self.p["act"], h)
        values = linear(self.p["new"], relu(linear(self.p["second"], relu(linear(self.p["first"], h)))))
        actions = [softmax(logits[5 * i : 5 * i + 5]) for i in range(len(self.tapes))]
        for i, probabilities in enumerate(actions):
            written = [values[i * self.width : (i + 1) * self.width], *self.tapes[i][1:]]
            distances = (
                0,
                1,
                -1,
                self.length,
                -self.length,
            )  # from the cell under the head to the one that comes there
            self.tapes[i] = [
                sum(p * written[(t + by) % self.slots] for p, by in zip(probabilities, distances, strict=True))
                for t in range(self.slots)
            ]
        self.seen = {"actions": actions, "seen": seen}
        return h


def check(machine, model, *, aligned=False, scale=0.6):
    """Compares all answers and traces of a ragged batch with the twin's, row by row and step by step."""
    spec = dataclasses.replace(TASK.spec, alignment="aligned") if aligned else TASK.spec
    model = model.clone(spec=spec)
    batch = BATCH._replace(target_mask=BATCH.input_mask) if aligned else BATCH
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    params = random_parameters(model, batch, scale)
    outputs, mutated = briefly(lambda p: model.apply({"params": p}, *call, mutable=["traces"]))(params)
    traces = {name: np.asarray(value[0]) for name, value in mutated["traces"].get("cell", {}).items() if name != "core"}
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    (reader,) = (value for name, value in params.items() if name != "cell")
    symbols, delimiter = spec.vocabulary, spec.vocabulary + 1
    for row, length in enumerate(LENGTHS):
        twin = machine(model, params, length)
        tokens = [*np.asarray(batch.inputs[row][:length]), *([] if aligned else [delimiter] * (length + 1))]
        for time, token in enumerate(tokens):
            output = twin.step(np.eye(symbols + 3)[token])
            assert twin.seen.keys() == traces.keys()
            for name, value in twin.seen.items():
                got = traces[name][time, row]
                np.testing.assert_allclose(got, value, rtol=1e-5, atol=2e-5, err_msg=f"{name} at step {time}")
            answer = time - (0 if aligned else length)
            if answer >= 0:
                logits = linear(reader["head"], relu(output))
                np.testing.assert_allclose(outputs[row][answer], logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("aligned", [False, True])
def test_elman_equals_its_twin(aligned):
    check(Controlled, Elman(hidden_size=6), aligned=aligned)


@pytest.mark.parametrize(
    ("controller", "stacks", "slots", "aligned"),
    [("elman", 1, 2, False), ("elman", 2, 30, True), ("lstm", 2, 3, False), ("lstm", 1, 1, True)],
)
def test_stacks_equal_their_twin(controller, stacks, slots, aligned):
    """A row has up to 13 steps, so values fall off the bottom of a few slots."""
    model = VectorStackRNN(controller, hidden_size=6, stacks=stacks, width=3, slots=slots)
    check(StackTwin, model, aligned=aligned)


def test_slots_need_no_parameters_and_only_the_deep_ones_are_missed():
    """Without a bound there are as many as steps."""
    bounds = (2, 13, 40, None)
    models = [VectorStackRNN(hidden_size=5, stacks=2, width=3, slots=slots, spec=TASK.spec) for slots in bounds]
    params = random_parameters(models[0], BATCH, scale=0.8)
    call, mask = (*BATCH[:2], BATCH.target_mask), np.asarray(BATCH.target_mask)
    run = [np.asarray(briefly(lambda p, m=model: m.apply({"params": p}, *call))(params))[mask] for model in models]
    np.testing.assert_allclose(run[1], run[2], atol=1e-5)
    np.testing.assert_allclose(run[3], run[2], atol=1e-5)
    assert np.abs(run[0] - run[1]).max() > 1e-4


def test_a_stack_without_a_bound_holds_every_value():
    """As many cells as steps, of reading and of answering; in step with the input, as many as inputs."""
    cell = StackCell(hidden_size=4, slots=None)
    assert cell.apply({}, (2,), 5, columns=9, method="start")[1].shape == (2, 1, 9, 8)
    assert cell.apply({}, (2,), 5, method="start")[1].shape == (2, 1, 5, 8)
    stacked = Stacked([StackCell(hidden_size=4, slots=None)] * 2)
    assert [carry[1].shape[-2] for carry in stacked.apply({}, (2,), 5, columns=9, method="start")] == [9, 9]


@pytest.mark.parametrize(
    ("controller", "tapes", "slots", "aligned"),
    [("elman", 1, 4, False), ("elman", 2, 30, True), ("lstm", 2, 3, False), ("lstm", 1, 1, True)],
)
def test_tapes_equal_their_twin(controller, tapes, slots, aligned):
    """The rows have lengths 4, 1 and 6: a jump goes around a tape of 3 or 4 cells."""
    check(TapeTwin, TapeRNN(controller, hidden_size=6, tapes=tapes, width=3, slots=slots, mlp_size=5), aligned=aligned)


@pytest.mark.parametrize("model", [VectorStackRNN, TapeRNN])
@pytest.mark.parametrize("field", ["slots", "width", "stacks", "tapes"])
def test_a_memory_without_cells_is_refused(model, field):
    if hasattr(model, field):
        with pytest.raises(ValueError, match=f"{field} is 0; it must be an integer, at least 1"):
            model(**{field: 0})


def test_a_tape_needs_the_whole_input():
    causal = dataclasses.replace(TASK.spec, alignment="aligned", causal=True)
    assert VectorStackRNN().supports(causal) is None
    assert "the task is causal" in (TapeRNN().supports(causal) or "")


# Networks by hand -----------------------------------------------------------------------------------------------------

SURE = 50.0
"""The logit of an action that is taken: the others have a probability of e^-50."""


def by_hand(model, weights, batch=BATCH):
    """Answers with parameters that are zero but for `weights`: a path in the cell, or the head's -> (row, column) ->
    value."""
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *call))["params"]
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    reader = next(tree for tree in (params, *params.values()) if "head" in tree)
    for path, entries in weights.items():
        head, *rest = path.split(".")
        place = reader if head == "head" else params["cell"]
        for key in (head, *rest):
            place = place[key]
        for at, value in entries.items():
            place[at] = value
    return np.asarray(jax.jit(lambda p: jnp.argmax(model.apply({"params": p}, *call), -1))(params))


def test_a_stack_reverses_a_string():
    """It pushes while it reads and pops while it answers; the controller passes on what it sees.

    Units 0 .. V-1 of h are the symbol read, unit V says that the input is over, the rest is the top of the stack. An
    empty stack shows nothing; then the end symbol is the answer.
    """
    task = Reverse(vocabulary=3, train_lengths=(1, 9))
    lengths, v = (9, 1, 4), 3
    batch = draw(task, jax.random.key(0), jnp.asarray(lengths), 9)
    model = VectorStackRNN(hidden_size=2 * v + 1, width=v, slots=9, spec=task.spec)
    tops = range(v + 1, 2 * v + 1)
    inputs = v + 3  # one-hot, with begin, delimiter and blank
    weights = {
        "core.input.kernel": {(i, i): 1 for i in range(v)}
        | {(v + 1, v): 1}
        | {(inputs + i, unit): 1 for i, unit in enumerate(tops)},
        "act.kernel": {(i, 0): SURE for i in range(v)} | {(v, 1): SURE},
        "new.kernel": {(i, i): 1 for i in range(v)},
        "head.kernel": {(unit, i): 1 for i, unit in enumerate(tops)},
        "head.bias": {v: 0.5},
    }
    answers = by_hand(model, weights, batch)
    np.testing.assert_array_equal(answers[batch.target_mask], batch.targets[batch.target_mask])
    shallow = by_hand(model.clone(slots=4), weights, batch)
    for row, length in enumerate(lengths):  # the last four symbols, then nothing is left
        expected = np.asarray(batch.targets[row][: length + 1]).copy()
        expected[4:] = v
        np.testing.assert_array_equal(shallow[row][: length + 1], expected)


def test_a_tape_copies_a_string():
    """It writes and steps forward, at the delimiter jumps back by the length of its row, then reads forward.

    Units 0 .. V-1 of h are the symbol read, unit V is the delimiter, unit V+1 a blank, the rest is the cell under the
    head. What is not a symbol is written as zeros, and zeros mean the end. A string that fills the tape has no cell
    left for the delimiter's zeros: its first symbol is lost.
    """
    task = Copy(vocabulary=3, train_lengths=(1, 9))
    lengths, v = (9, 1, 4), 3
    batch = draw(task, jax.random.key(0), jnp.asarray(lengths), 9)
    cell = TapeCell(hidden_size=2 * v + 2, width=v, slots=10, mlp_size=v, name="cell")
    model = Transducer(cell, task.spec, embedding_size=None, blank="own", delay=1)
    cells = range(v + 2, 2 * v + 2)
    inputs = v + 3  # one-hot, with begin, delimiter and blank
    through = {(i, i): 1 for i in range(v)}
    weights = {
        "core.input.kernel": through
        | {(v + 1, v): 1, (v + 2, v + 1): 1}
        | {(inputs + i, unit): 1 for i, unit in enumerate(cells)},
        "act.kernel": {(i, 1): SURE for i in range(v)} | {(v, 4): SURE, (v + 1, 1): SURE},
        **{f"{name}.kernel": through for name in ("first", "second", "new")},
        "head.kernel": {(unit, i): 1 for i, unit in enumerate(cells)},
        "head.bias": {v: 0.5},
    }
    answers = by_hand(model, weights, batch)
    np.testing.assert_array_equal(answers[batch.target_mask], batch.targets[batch.target_mask])
    full = by_hand(model.clone(cell=cell.clone(slots=9)), weights, batch)
    np.testing.assert_array_equal(full[1:][batch.target_mask[1:]], batch.targets[1:][batch.target_mask[1:]])
    np.testing.assert_array_equal(full[0][:9], [v, *batch.targets[0][1:9]])


# Learning -------------------------------------------------------------------------------------------------------------


class Brackets(Closing):
    """Brackets for a network that is told the length."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, causal=False)


@pytest.mark.learning
@pytest.mark.thorough
def test_a_tape_learns_brackets_in_step_with_the_input(learns):
    """Rows of 13 to 24 symbols after rows of up to 12; a constant answer gets 0.4."""
    model = TapeRNN(hidden_size=32, tapes=2, slots=24, mlp_size=32)
    contract.check_learns(Case("brackets", model, Learning(0.95, 0.971, updates=800), Brackets()), learns)


# Initialisation -------------------------------------------------------------------------------------------------------


def test_weights_start_as_in_the_published_code():
    """Cut normals of standard deviation 1 / sqrt(fan-in); 0.88 of it is left by the cut. No biases."""
    model = Elman(hidden_size=100, spec=TASK.spec)
    cell = briefly(lambda: model.init(jax.random.key(0), *BATCH[:2], BATCH.target_mask)["params"]["cell"])()
    assert jax.tree.map(jnp.shape, cell)["hidden"] == {"kernel": (100, 100), "bias": (100,)}
    np.testing.assert_allclose(np.std(cell["hidden"]["kernel"]), 0.088, rtol=0.03)
    assert np.abs(cell["hidden"]["kernel"]).max() <= 0.2
    assert not np.any(cell["input"]["bias"]) and not np.any(cell["hidden"]["bias"])
