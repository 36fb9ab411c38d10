"""ESBN against a float64 twin, the information its controller sees, and naming of unseen symbols."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.esbn import ESBN, ContextNorm, ESBNCell
from lenmem.nn.recurrence import scan_cell
from lenmem.tasks.base import Task, draw, masked_mean, slot_hits
from lenmem.tasks.lantm import Copy
from lenmem.types import Example, Spec, Step
from tests.drawing import drawn
from tests.learning import briefly, fit, trained
from tests.models.twin import lstm_step, random_parameters, sigmoid, softmax

TASK = Copy(vocabulary=6, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))
small = {"hidden_size": 7, "key_size": 4, "embedding_size": 5}


@dataclasses.dataclass(frozen=True)
class Naming(Task):
    """Numbers the tokens by the order of their first appearance: b d b a -> 0 1 0 2. Aligned; three tokens per row.

    The tokens are `first` .. `first` + 7 of 16; their identity does not matter.
    """

    first: int = 0
    train_lengths: tuple[int, int] = (1, 10)  # pyright: ignore[reportIncompatibleMethodOverride]
    test_lengths: tuple[int, int] = (11, 20)  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def spec(self):
        return Spec(16, 3, alignment="aligned", chance=0.5, shapes=self.shapes)

    def shapes(self, capacity):
        return capacity, capacity

    def sample(self, key, length, capacity):
        which_key, row_key = jax.random.split(key)
        tokens = self.first + jax.random.permutation(which_key, 8)[:3]

        def step(names, time):
            """names int[3]: the name of each of the three tokens; 3 if it has none."""
            which = jax.random.randint(jax.random.fold_in(row_key, time), (), 0, 3)
            name = jnp.minimum(names[which], jnp.sum(names < 3))
            return names.at[which].set(name), (tokens[which], name)

        _, (inputs, answers) = jax.lax.scan(step, jnp.full(3, 3), jnp.arange(capacity))
        mask = jnp.arange(capacity) < length
        return Example(inputs, mask, answers, mask, mask)


class ESBNTwin:
    """One row, after algorithm 1 of Webb et al. (2020)."""

    def __init__(self, model, params):
        self.p = params["cell"]
        self.c = self.h = np.zeros(model.hidden_size)
        self.key, self.memory = np.zeros(model.key_size + 1), []

    def linear(self, name, x):
        return x @ self.p[name]["kernel"] + self.p[name]["bias"]

    def step(self, z, binds):
        self.c, self.h = lstm_step(self.p["controller"], self.key, self.c, self.h)
        gate = sigmoid(self.linear("retrieve", self.h))
        self.weights, self.key = np.zeros(0), np.zeros_like(self.key)
        if self.memory:
            likeness = np.array([z @ value for _, value in self.memory])
            self.weights = softmax(likeness)
            confidences = sigmoid(self.p["gain"] * likeness + self.p["bias"])
            pairs = [np.append(key, c) for (key, _), c in zip(self.memory, confidences, strict=True)]
            self.key = gate * sum(w * pair for w, pair in zip(self.weights, pairs, strict=True))
        if binds:
            self.memory.append((np.maximum(0, self.linear("write_key", self.h)), z))
        return self.h


def normalised(z, params):
    return (z - z.mean(0)) / np.sqrt(z.var(0) + 1e-8) * params["scale"] + params["shift"]


@pytest.mark.parametrize(
    ("context_norm", "aligned"), [(True, False), (False, True)], ids=["normalised", "aligned_plain"]
)
def test_whole_rows_equal_the_twin(context_norm, aligned):
    spec = dataclasses.replace(TASK.spec, alignment="aligned") if aligned else TASK.spec
    model = ESBN(**small, context_norm=context_norm, spec=spec)
    batch = BATCH._replace(target_mask=BATCH.input_mask) if aligned else BATCH
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    params = random_parameters(model, batch, scale=1.0)
    outputs, mutated = briefly(lambda p: model.apply({"params": p}, *call, mutable=["traces"]))(params)
    retrieved = np.asarray(mutated["traces"]["cell"]["retrieval_weights"][0])
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    (table,) = jax.tree.leaves(p["embedding"])
    for row, length in enumerate(LENGTHS):
        tokens = np.asarray(batch.inputs[row][:length])
        z = np.maximum(0, np.maximum(0, table[tokens]) @ p["encoder"]["kernel"] + p["encoder"]["bias"])
        z = normalised(z, p["normalise"]) if context_norm else z
        machine, answers, first = ESBNTwin(model, p), int(batch.target_mask[row].sum()), 1 if aligned else length
        for time in range(first + answers):
            reading = time < length
            hidden = machine.step(z[time] if reading else np.zeros(5), reading)
            got = retrieved[time, row]
            np.testing.assert_allclose(got[: len(machine.weights)], machine.weights, atol=1e-4)
            assert np.all(got[len(machine.weights) :] == 0)
            if time >= first:
                logits = hidden @ p["head"]["kernel"] + p["head"]["bias"]
                np.testing.assert_allclose(outputs[row][time - first], logits, atol=1e-4)


def test_context_norm_sees_the_real_positions_only():
    states = 3 + 2 * np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    mask = np.arange(6) < np.asarray(LENGTHS)[:, None]
    module = ContextNorm()
    params = {"scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    run = jax.jit(lambda x: module.apply({"params": params}, x, mask))
    got = np.asarray(run(np.where(mask[..., None], states, np.float32(np.nan))))
    for row, length in enumerate(LENGTHS):
        if length > 1:
            np.testing.assert_allclose(got[row, :length].mean(0), 0, atol=1e-5)
            np.testing.assert_allclose(got[row, :length].std(0), 1, atol=1e-4)
        assert np.all(got[row, length:] == 0)
    np.testing.assert_array_equal(got[1], 0)  # nothing to compare a single position with
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(run(x)[..., 0] ** 3)))(0 * states)
    assert np.all(np.isfinite(gradient))


def test_the_controller_sees_embeddings_only_through_their_likeness():
    """A rotation of all embeddings changes nothing: the controller sees only their inner products."""
    cell = ESBNCell(6, 4, 5)
    z = np.random.default_rng(1).normal(size=(8, 3, 5)).astype(np.float32)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0].astype(np.float32)
    steps = Step(z, np.zeros((8, 3), bool), np.ones((8, 3), bool))

    def run(cell, inputs):
        return scan_cell(cell, cell.start((3,), 8), steps._replace(inputs=inputs))[1]

    params = drawn(cell.init, z, method=run)
    run_with = briefly(lambda z: cell.apply({"params": params}, z, method=run))
    plain, rotated, other = (np.asarray(run_with(x)) for x in (z, z @ rotation, z[::-1]))
    np.testing.assert_allclose(plain, rotated, atol=1e-4)
    assert np.abs(plain - other).max() > 1e-3


def test_it_refuses_what_it_cannot_take():
    assert ESBN().supports(TASK.spec) is None
    causal = dataclasses.replace(TASK.spec, alignment="aligned", causal=True)
    assert "the task is causal" in (ESBN().supports(causal) or "")


@pytest.mark.learning
@pytest.mark.thorough
def test_it_learns_to_name_symbols_and_names_those_it_has_never_met(learns):
    task, model = Naming(), ESBN(hidden_size=32, key_size=16, embedding_size=64, spec=Naming().spec)

    def answer(params, batch):
        return model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)

    @trained
    def named(key):
        """The lower of the accuracies on known tokens and on new ones."""
        start, data, test, steps = jax.random.split(key, 4)
        batches = jax.vmap(lambda key: draw(task, key, jnp.arange(32) % 10 + 1, 10))(jax.random.split(data, 600))
        known, new = (draw(Naming(first), test, jnp.full(256, 10), 10) for first in (0, 8))
        params = model.init(start, known.inputs, known.input_mask, known.target_mask)["params"]
        params = fit(params, lambda p, batch, _: task.loss(answer(p, batch), batch), batches, steps)
        hits = [masked_mean(slot_hits(answer(params, rows), rows), rows.score_mask) for rows in (known, new)]
        return jnp.minimum(*hits)

    learns(named, bar=0.95, worst=0.966)
