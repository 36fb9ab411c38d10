"""The neural stack against a float64 twin with a list as stack, its gradients, and what it learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.models.neural_stack import NeuralStack, NeuralStackCell
from lenmem.nn.recurrence import scan_cell
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.types import Step
from tests.drawing import drawn
from tests.learning import briefly
from tests.models import contract
from tests.models.twin import Commands, lstm_step, random_parameters, sigmoid
from tests.ops.test_stacks import read_twin, update_twin

TASK = Copy(vocabulary=6, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))
CALL = (BATCH.inputs, BATCH.input_mask, BATCH.target_mask)
small = {"hidden_size": 7, "width": 4, "embedding_size": 5}


class StackTwin:
    """One row, after sections 3.1 and 3.4 of Grefenstette et al. (2015)."""

    def __init__(self, model, params):
        self.model, self.p = model, params["cell"]
        self.c, self.h = self.p["controller"]["start_memory"], self.p["controller"]["start_hidden"]
        self.r, self.values, self.strengths = np.zeros(model.width), [], []

    def step(self, x):
        self.c, self.h = lstm_step(self.p["controller"], np.concatenate([x, self.r]), self.c, self.h)
        commands = Commands(self.p["commands"], self.h)
        self.pop, self.push = sigmoid(commands.take_one()), sigmoid(commands.take_one())
        self.values.append(np.tanh(commands.take(self.model.width)))
        self.strengths = update_twin(self.strengths, self.push, self.pop)
        self.weights = read_twin(self.strengths)
        self.r = sum(w * v for w, v in zip(self.weights, self.values, strict=True))
        output = self.p["output"]
        return np.tanh(self.h @ output["kernel"] + output["bias"])


def test_whole_rows_equal_the_twin():
    model = NeuralStack(**small, spec=TASK.spec)
    params = random_parameters(model, BATCH, scale=0.9)
    outputs, mutated = briefly(lambda p: model.apply({"params": p}, *CALL, mutable=["traces"]))(params)
    traces = {name: np.asarray(value[0]) for name, value in mutated["traces"]["cell"].items()}
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    (reader,) = (value for name, value in params.items() if name.startswith("Transducer"))
    (table,) = jax.tree.leaves(reader["embedding"])
    head, symbols = reader["head"], TASK.spec.vocabulary
    assert traces["strengths"].shape[-1] == len(traces["strengths"])  # a slot for each step, while answering too
    for row, length in enumerate(LENGTHS):
        machine = StackTwin(model, params)
        tokens = [symbols, *np.asarray(BATCH.inputs[row][:length]), *[symbols + 1] * (length + 1)]
        for time, token in enumerate(tokens):
            output = machine.step(table[token])
            expected = {"pop": machine.pop, "push": machine.push}
            expected |= {"strengths": machine.strengths, "read_weights": machine.weights}
            for name, value in expected.items():
                got = traces[name][time, row]
                if np.ndim(value):
                    assert np.all(got[time + 1 :] == 0)
                    got = got[: time + 1]
                np.testing.assert_allclose(got, value, atol=1e-5, err_msg=f"{name} at step {time}")
            if time > length:
                logits = output @ head["kernel"] + head["bias"]
                np.testing.assert_allclose(outputs[row][time - length - 1], logits, atol=1e-5)


def test_gradients_through_the_stored_memory_equal_those_of_plain_differentiation():
    """The scan stores the values once, at the end of a row; a loop over steps stores all of them."""
    cell = NeuralStackCell(5, 3, answers=4)
    # One row reads 3 inputs and answers 3 times, the other reads 2, answers twice and has ended.
    generator, count = np.random.default_rng(0), 6
    inputs = 2 * generator.normal(size=(count, 2, 4)).astype(np.float32)
    time = np.arange(count)[:, None]
    valid = time < np.asarray([count, 4])
    steps = Step(inputs, time >= np.asarray([3, 2]), valid)

    def call(cell):
        return scan_cell(cell, cell.start((2,), 5), steps)[1]

    params = drawn(cell.init, method=call, scale=1.0)
    direction = generator.normal(size=(count, 2, 5)).astype(np.float32) * valid[..., None]

    def by_scan(params, inputs):
        running = cell.bind({"params": params})
        outputs = scan_cell(running, running.start((2,), 5), steps._replace(inputs=inputs))[1]
        return jnp.sum(outputs * direction)

    def by_loop(params, inputs):
        running = cell.bind({"params": params})
        carry, total = running.start((2,), 5), jnp.zeros(())
        for time in range(count):
            step = jax.tree.map(lambda x, time=time: x[time], steps._replace(inputs=inputs))
            carry, output = running(carry, step)
            total = total + jnp.sum(output * direction[time])
        return total

    (got, got_gradients), (value, gradients) = (
        briefly(jax.value_and_grad(objective, argnums=(0, 1)))(params, inputs) for objective in (by_scan, by_loop)
    )
    np.testing.assert_allclose(got, value, atol=1e-5)
    contract.same(got_gradients, gradients, 1e-5, "gradients of the scan and of the loop differ")
    assert np.abs(gradients[0]["commands"]["kernel"]).max() > 1e-3
