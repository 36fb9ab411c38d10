"""Stack-RNN against a float64 twin with a list as stack, and what it learns in step with the input."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.stack_rnn import StackRNN
from lenmem.tasks.base import Task, draw
from lenmem.tasks.lantm import Copy
from lenmem.types import Example, Spec
from tests.learning import briefly
from tests.models import contract
from tests.models.contract import Case, Learning
from tests.models.twin import random_parameters, sigmoid, softmax

TASK = Copy(vocabulary=6, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))
CALL = (BATCH.inputs, BATCH.input_mask, BATCH.target_mask)


class StackRNNTwin:
    """One row, after section 3.1 of Suzgun et al. (2019)."""

    def __init__(self, model, params):
        self.p, self.no_op = params["cell"], model.no_op
        self.h, self.stack = np.zeros(model.hidden_size), [np.zeros(model.width)] * model.slots

    def linear(self, name, x):
        return x @ self.p[name]["kernel"] + self.p[name]["bias"]

    def step(self, x):
        seen = self.h + self.linear("look", self.stack[0])
        self.h = np.tanh(self.linear("input", x) + self.linear("hidden", seen))
        self.actions = softmax(self.linear("act", self.h))
        after = [
            [sigmoid(self.linear("new", self.h)), *self.stack[:-1]],
            [*self.stack[1:], np.zeros_like(self.stack[0])],
            self.stack,
        ]
        self.stack = [
            sum(a * stack[i] for a, stack in zip(self.actions, after, strict=False)) for i in range(len(self.stack))
        ]
        return self.h


@pytest.mark.parametrize(("aligned", "no_op"), [(False, False), (True, True)], ids=["free", "aligned_no_op"])
def test_whole_rows_equal_the_twin(aligned, no_op):
    """Three slots, so values fall off the bottom."""
    spec = dataclasses.replace(TASK.spec, alignment="aligned", causal=True) if aligned else TASK.spec
    model = StackRNN(hidden_size=5, width=3, slots=3, no_op=no_op, spec=spec)
    batch = BATCH._replace(target_mask=BATCH.input_mask) if aligned else BATCH
    params = random_parameters(model, batch, scale=1.5)
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    outputs, mutated = briefly(lambda p: model.apply({"params": p}, *call, mutable=["traces"]))(params)
    traces = {name: np.asarray(value[0]) for name, value in mutated["traces"]["cell"].items()}
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    (reader,) = (value for name, value in params.items() if name != "cell")
    symbols = TASK.spec.vocabulary
    for row, length in enumerate(LENGTHS):
        machine, first = StackRNNTwin(model, params), 0 if aligned else length
        tokens = [*np.asarray(batch.inputs[row][:length]), *([] if aligned else [symbols + 1] * (length + 1))]
        for time, token in enumerate(tokens):
            hidden = machine.step(np.eye(symbols + 3)[token])
            np.testing.assert_allclose(traces["actions"][time, row], machine.actions, atol=1e-5)
            np.testing.assert_allclose(traces["top"][time, row], machine.stack[0], atol=1e-5)
            if time >= first:
                logits = hidden @ reader["head"]["kernel"] + reader["head"]["bias"]
                np.testing.assert_allclose(outputs[row][time - first], logits, atol=1e-5)


def test_slots_need_no_parameters_and_only_the_deep_ones_are_missed():
    models = [StackRNN(hidden_size=5, width=3, slots=slots, spec=TASK.spec) for slots in (2, 13, 40)]
    params = random_parameters(models[0], BATCH, scale=1.5)
    mask = np.asarray(BATCH.target_mask)
    run = [np.asarray(briefly(lambda p, m=model: m.apply({"params": p}, *CALL))(params))[mask] for model in models]
    np.testing.assert_allclose(run[1], run[2], atol=1e-6)  # a row has 13 steps
    assert np.abs(run[0] - run[1]).max() > 1e-4
    with pytest.raises(ValueError, match="slots is 0; it must be an integer, at least 1"):
        models[0].clone(slots=0).apply({"params": params}, *CALL)


@dataclasses.dataclass(frozen=True)
class Closing(Task):
    """Brackets of two kinds, open 0, 1 and close 2, 3; answer t is the kind that may be closed next, or 2 if none.

    This is Dyck-2's multi-hot answer (which closing bracket is legal) as a class.
    """

    train_lengths: tuple[int, int] = (2, 12)  # pyright: ignore[reportIncompatibleMethodOverride]
    test_lengths: tuple[int, int] = (13, 24)  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def spec(self):
        return Spec(4, 3, alignment="aligned", causal=True, chance=0.4, shapes=self.shapes)

    def shapes(self, capacity):
        return capacity, capacity

    def sample(self, key, length, capacity):
        def step(carry, time):
            depth, stack = carry
            kind_key, open_key = jax.random.split(jax.random.fold_in(key, time))
            opens = (depth == 0) | jax.random.bernoulli(open_key)
            kind = jnp.where(opens, jax.random.randint(kind_key, (), 0, 2), stack[depth - 1])
            stack = jnp.where(opens, stack.at[depth].set(kind), stack)
            depth = jnp.where(opens, depth + 1, depth - 1)
            answer = jnp.where(depth > 0, stack[depth - 1], 2)
            return (depth, stack), (jnp.where(opens, kind, kind + 2), answer)

        start = jnp.zeros((), jnp.int32), jnp.zeros(capacity, jnp.int32)
        _, (inputs, answers) = jax.lax.scan(step, start, jnp.arange(capacity))
        mask = jnp.arange(capacity) < length
        return Example(inputs, mask, answers, mask, mask)


@pytest.mark.learning
@pytest.mark.thorough
def test_it_learns_brackets_in_step_with_the_input(learns):
    contract.check_learns(
        Case(
            "brackets",
            StackRNN(hidden_size=20, width=8, embedding_size=8, slots=24),
            Learning(0.97, 0.998, updates=800, starts=5),
            Closing(),
        ),
        learns,
    )
