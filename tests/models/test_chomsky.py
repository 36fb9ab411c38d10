"""The networks of the Chomsky-hierarchy study against float64 twins, and memories that are moved by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.chomsky import Elman
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from tests.models.contract import briefly
from tests.models.twin import random_parameters

TASK = Copy(vocabulary=5, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = draw(TASK, jax.random.key(3), jnp.asarray(LENGTHS), max(LENGTHS))


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


class Controlled:
    """A controller alone, as a machine without memory."""

    def __init__(self, model, params, length):
        self.controller, self.seen = ElmanTwin(params["cell"], model.hidden_size), {}

    def step(self, x):
        return self.controller.see(x)


def check(machine, model, *, aligned=False, scale=0.8):
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
                np.testing.assert_allclose(traces[name][time, row], value, atol=2e-5, err_msg=f"{name} at {time}")
            answer = time - (0 if aligned else length)
            if answer >= 0:
                logits = linear(reader["head"], relu(output))
                np.testing.assert_allclose(outputs[row][answer], logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("aligned", [False, True])
def test_elman_equals_its_twin(aligned):
    check(Controlled, Elman(hidden_size=6), aligned=aligned)


def test_weights_start_as_in_the_published_code():
    """Cut normals of standard deviation 1 / sqrt(fan-in); 0.88 of it is left by the cut. No biases."""
    model = Elman(hidden_size=100, spec=TASK.spec)
    cell = briefly(lambda: model.init(jax.random.key(0), *BATCH[:2], BATCH.target_mask)["params"]["cell"])()
    assert jax.tree.map(jnp.shape, cell)["hidden"] == {"kernel": (100, 100), "bias": (100,)}
    np.testing.assert_allclose(np.std(cell["hidden"]["kernel"]), 0.088, rtol=0.03)
    assert np.abs(cell["hidden"]["kernel"]).max() <= 0.2
    assert not np.any(cell["input"]["bias"]) and not np.any(cell["hidden"]["bias"])
