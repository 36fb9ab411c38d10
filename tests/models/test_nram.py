"""NRAM against a float64 twin that enumerates all pairs of integers, and programs that run at any length."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.nram import MODULES, NRAM
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.types import Spec
from tests.learning import briefly
from tests.models.twin import Commands, random_parameters, sigmoid, softmax

TASK = Copy(vocabulary=4, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))
CALL = (BATCH.inputs, BATCH.input_mask, BATCH.target_mask)
small = {"hidden_size": 6, "registers": 3}


def call(model, params, inputs=BATCH, **options):
    arguments = (inputs.inputs, inputs.input_mask, inputs.target_mask)
    return briefly(lambda p: model.apply({"params": p}, *arguments, **options))(params)


class NRAMTwin:
    """One row, after section 3 of Kurach et al. (2016): a machine with exactly as many integers as the row has."""

    def __init__(self, model, params, tokens, integers):
        self.model, self.p, self.m = model, params["cell"], integers
        controller = self.p["controller"]
        self.c, self.h = controller["start_cell"], controller["start_hidden"]
        cells = [len(tokens) + 1, *(int(token) + 1 for token in tokens)]
        self.tape = np.eye(integers)[cells + [0] * (integers - len(cells))]
        self.registers = [np.eye(integers)[0] for _ in range(model.registers)]

    def module(self, function, *arguments):
        result = np.zeros(self.m)
        for values in np.ndindex(*[self.m] * len(arguments)):
            probability = np.prod([a[v] for a, v in zip(arguments, values, strict=True)])
            result[function(*values) % self.m] += probability
        return result

    def step(self):
        seen = np.concatenate([[r[0] for r in self.registers], self.h])
        controller = self.p["controller"]
        f, i, o, g = np.split(seen @ controller["kernel"] + controller["bias"], 4)
        self.c = sigmoid(f) * self.c + sigmoid(i) * np.tanh(g)
        self.h = sigmoid(o) * np.tanh(self.c)
        commands, wires, tape = Commands(self.p["interface"], self.h), list(self.registers), self.tape

        def argument():
            weights = softmax(commands.take(len(wires)))
            return sum(w * wire for w, wire in zip(weights, wires, strict=True))

        unary = {"inc": lambda a: a + 1, "dec": lambda a: a - 1}
        binary = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "less": lambda a, b: int(a < b),
            "less_or_equal": lambda a, b: int(a <= b),
            "equal": lambda a, b: int(a == b),
            "min": min,
            "max": max,
        }
        comparisons = ("less", "less_or_equal", "equal", "min", "max")
        order = ("read", "zero", "one", "two", "inc", "add", "sub", "dec", *comparisons, "write")
        for name in order:
            if name == "read":
                address = argument()
                output = sum(address[cell] * tape[cell] for cell in range(self.m))
            elif name in ("zero", "one", "two"):
                output = np.eye(self.m)[["zero", "one", "two"].index(name)]
            elif name in unary:
                output = self.module(unary[name], argument())
            elif name in binary:
                output = self.module(binary[name], argument(), argument())
            else:
                address, value = argument(), argument()
                self.tape = np.array([(1 - address[i]) * tape[i] + address[i] * value for i in range(self.m)])
                output = np.eye(self.m)[0]
            wires.append(output)
        self.registers = [argument() for _ in self.registers]


@pytest.mark.parametrize("integers", [None, 12], ids=["of_its_row", "fixed"])
def test_whole_rows_equal_the_twin(integers):
    """Vocabulary 4, 5 classes: a row of n inputs has max(6, n + 2) integers."""
    model = NRAM(**small, delay=2, integers=integers, spec=TASK.spec)
    params = random_parameters(model, BATCH, scale=1.5)
    outputs, mutated = call(model, params, mutable=["traces"])
    registers = np.asarray(mutated["traces"]["cell"]["registers"][0])
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, length in enumerate(LENGTHS):
        count = integers or max(6, length + 2)
        machine = NRAMTwin(model, params, np.asarray(BATCH.inputs[row][:length]), count)
        for time in range(2 + length + 1):
            machine.step()
            np.testing.assert_allclose(registers[time, row, :, :count], machine.registers, atol=1e-5)
            assert np.all(registers[time, row, :, count:] == 0)
            if time >= 2:  # class 4 is the end symbol, the integer 0
                answer = machine.registers[-1][[1, 2, 3, 4, 0]]
                np.testing.assert_allclose(np.exp(outputs[row][time - 2]) - 1e-6, answer, atol=1e-5)


def test_the_tape_is_an_array_with_the_address_behind_it():
    model = NRAM(spec=TASK.spec)
    tape, integers = model.load(BATCH.inputs, BATCH.input_mask, TASK.spec)
    cells = np.argmax(tape, axis=-1)
    assert integers.tolist() == [6, 6, 8]
    for row, length in enumerate(LENGTHS):
        tokens = np.asarray(BATCH.inputs[row][:length]) + 1
        assert cells[row].tolist() == [length + 1, *tokens.tolist(), *[0] * (7 - length)]


def wired(model, arguments, registers, batch=BATCH):
    """Parameters whose biases fix the circuit: module -> wires, and the sources of the registers."""
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), batch.inputs, batch.input_mask, batch.target_mask)["params"]
    )
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    names, bias = [*range(model.registers), *MODULES], []
    for place, (name, (count, _)) in enumerate(MODULES.items()):
        wires = names[: model.registers + place]
        bias += [50 * np.eye(len(wires))[wires.index(wire)] for wire in arguments.get(name, (0,) * count)]
    bias += [50 * np.eye(len(names))[names.index(wire)] for wire in registers]
    params["cell"]["interface"]["bias"] = np.concatenate(bias).astype(np.float32)
    return params


def test_a_copying_program_copies_any_length():
    """Register 0 counts, and the last register shows its target; the end of the array is the end symbol."""
    model = NRAM(**small, spec=TASK.spec)
    program = wired(model, {"read": (0,), "inc": (0,)}, ("inc", 1, "read"))
    for length in (1, 40):
        batch = draw(TASK, jax.random.key(0), jnp.full(3, length), length)
        outputs = call(model, program, batch)
        np.testing.assert_array_equal(np.argmax(outputs, -1), batch.targets)
        assert float(TASK.loss(outputs, batch)) < 1e-4


def test_registers_and_cells_stay_distributions():
    """Sixty times r <- add(r, r), which doubles an error of their sums each time."""
    model = NRAM(**small, spec=TASK.spec)
    program = wired(model, {"add": (1, 1), "write": (1, 1)}, (0, "add", 2))
    program["cell"]["interface"]["bias"] *= 0.3
    batch = draw(TASK, jax.random.key(0), jnp.full(2, 60), 60)
    outputs, sown = call(model, program, batch, mutable=["traces"])
    assert np.all(np.isfinite(outputs))
    np.testing.assert_allclose(np.sum(sown["traces"]["cell"]["registers"][0], -1), 1, atol=1e-5)


def test_no_parameter_depends_on_length_or_integers():
    def shapes(**fields):
        model = NRAM(**small, **fields, spec=TASK.spec)
        return jax.tree.map(jnp.shape, jax.eval_shape(lambda: model.init(jax.random.key(0), *CALL)["params"]))

    assert shapes() == shapes(integers=8) == shapes(integers=30)
    model = NRAM(**small, spec=TASK.spec)
    program = wired(model, {"read": (0,), "inc": (0,)}, ("inc", 1, "read"))
    for integers in (None, 8, 30):
        answers = np.argmax(call(model.clone(integers=integers), program), -1)
        np.testing.assert_array_equal(answers[BATCH.score_mask], BATCH.targets[BATCH.score_mask])


def test_what_it_cannot_take():
    tokens = TASK.spec
    assert NRAM().supports(tokens) is None
    assert NRAM().supports(dataclasses.replace(tokens, alignment="aligned")) is None
    refused = {
        "inputs are not plain tokens": dataclasses.replace(tokens, channels=1),
        "answers are multi_hot": dataclasses.replace(tokens, outputs="multi_hot"),
        "the task is causal": dataclasses.replace(tokens, alignment="aligned", causal=True),
    }
    for reason, spec in refused.items():
        assert reason in (NRAM().supports(spec) or "")
    with pytest.raises(ValueError, match="inputs are not plain tokens"):
        NRAM(spec=Spec(0, 2, channels=3)).init(jax.random.key(0), *CALL)
    with pytest.raises(ValueError, match="integers is 7; 6 inputs, 4 ids and 5 classes need at least 8"):
        NRAM(integers=7, spec=tokens).init(jax.random.key(0), *CALL)
    with pytest.raises(ValueError, match="controller is 'gru'"):
        NRAM(controller="gru", spec=tokens).init(jax.random.key(0), *CALL)  # pyright: ignore[reportArgumentType]
