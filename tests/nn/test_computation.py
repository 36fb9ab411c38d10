"""Computation tokens: a model with them equals one without them that reads rows in which they are written out."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import make
from lenmem.nn.interfaces import FlatModel, Transducer, computing, with_computation
from lenmem.nn.module import Part
from lenmem.types import Spec
from tests.drawing import drawn

V, CLASSES = 4, 5
STRING = Spec(vocabulary=V, output_size=CLASSES, shapes=lambda n: (n, n + 1))
SYMBOL = Spec(vocabulary=V, output_size=CLASSES, shapes=lambda n: (n, 1))
FLOATS = Spec(vocabulary=V, channels=2, output_size=CLASSES, outputs="multi_hot", delimited=True)
ALIGNED = Spec(vocabulary=V, output_size=CLASSES, alignment="aligned")
SMALL: dict[str, dict[str, Any]] = {
    "lstm": {"hidden_size": 8},
    "transformer": {"hidden_size": 8, "layers": 1, "heads": 2, "feedforward_size": 8},
    "dnc": {"hidden_size": 8},
    "panm": {"hidden_size": 8, "embedding_size": 4, "mlp_size": 8},
}
LENGTHS = (3, 1)


def small(name: str, spec: Spec, **fields: Any):
    return make(name, **SMALL[name], **fields).clone(spec=spec)


def a_batch(spec: Spec, capacity: int, poison: int = 0):
    """Inputs of 3 and 1 tokens and their masks; `poison` is written to the padding."""
    rng = np.random.default_rng(0)
    shape = (2, 3) if spec.takes_tokens else (2, 3, spec.input_width)
    drawn = rng.integers(0, V, shape) if spec.takes_tokens else rng.normal(size=shape).astype(np.float32)
    inputs = np.full((2, capacity, *shape[2:]), poison, drawn.dtype)
    for row, n in enumerate(LENGTHS):
        inputs[row, :n] = drawn[row, :n]
    answers = 1 if spec is SYMBOL else capacity
    columns = np.arange(capacity) < np.array(LENGTHS)[:, None]
    return inputs, columns, columns[:, :answers]


def written_out(spec: Spec, inputs, steps: int):
    """The same rows, with the tokens, in plain Python; and their mask."""
    rows = []
    for row, n in zip(np.asarray(inputs), LENGTHS, strict=True):
        real = row[:n].tolist()
        if spec.takes_tokens:
            rows.append(real + [V] * steps * n)
        else:
            rows.append([[*x, 0.0] for x in real] + [[0.0] * spec.input_width + [1.0]] * steps * n)
    longest = max(map(len, rows))
    padding = 0 if spec.takes_tokens else [0.0] * (spec.input_width + 1)
    mask = [[place < len(row) for place in range(longest)] for row in rows]
    return np.asarray([row + [padding] * (longest - len(row)) for row in rows], inputs.dtype), np.asarray(mask)


CASES = [
    *((name, spec) for name in SMALL for spec in (STRING, SYMBOL)),
    ("lstm", FLOATS),
    ("transformer", FLOATS),
]


@functools.cache
def reading(name: str, spec: Spec, one_answer: bool):
    """A model with two tokens for each input, its parameters, and its compiled call. Specs that differ in their
    `shapes` alone are equal."""
    model = small(name, spec, computation_steps=2)
    return model, drawn(model.init, *a_batch(spec, 3)), jax.jit(model.apply)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_a_model_reads_them_as_if_they_were_written_out(name, spec):
    """The parameters are those of a model for a task with one more token."""
    inputs, mask, asked = a_batch(spec, 3)
    (model, params, run), plain = reading(name, spec, spec is SYMBOL), small(name, with_computation(spec, 2))
    by_hand, mask_by_hand = written_out(spec, inputs, 2)

    def starts(key, *given):
        return plain.init(key, *given[:3]), model.init(key, *given[3:])

    given = jax.random.key(0), by_hand, mask_by_hand, asked, inputs, mask, asked
    shapes, same = jax.eval_shape(starts, *given)
    assert shapes == same
    if name == "lstm":  # The names are those of all models, and a name and a key give the numbers.
        jax.tree.map(np.testing.assert_array_equal, *jax.jit(starts)(*given))
    expected = np.asarray(jax.jit(plain.apply)({"params": params}, by_hand, mask_by_hand, asked))
    found = np.asarray(run({"params": params}, inputs, mask, asked))
    for row in range(2):
        np.testing.assert_allclose(found[row][asked[row]], expected[row][asked[row]], atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_padding_does_not_matter(name, spec):
    """Neither its contents nor its amount."""
    _, params, run = reading(name, spec, spec is SYMBOL)
    before = np.asarray(run({"params": params}, *a_batch(spec, 3)))
    for capacity, poison in ((3, 99), (5, -7)):
        padded = a_batch(spec, capacity, poison)
        after = np.asarray(run({"params": params}, *padded))
        for row, n in enumerate(LENGTHS):
            count = 1 if spec is SYMBOL else n
            np.testing.assert_allclose(after[row, :count], before[row, :count], atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_none_change_nothing(name):
    """0 is the default, and without tokens there is no parameter for them."""
    batch = a_batch(STRING, 3)
    model, off = small(name, STRING), small(name, STRING, computation_steps=0)
    assert model == off
    widths = jax.tree.map(jnp.shape, jax.eval_shape(model.init, jax.random.key(0), *batch)["params"])
    wider = small(name, STRING, computation_steps=1)
    more = jax.tree.map(jnp.shape, jax.eval_shape(wider.init, jax.random.key(0), *batch)["params"])
    assert jax.tree.structure(widths, is_leaf=lambda x: isinstance(x, tuple)) == jax.tree.structure(
        more, is_leaf=lambda x: isinstance(x, tuple)
    )
    assert widths != more


def test_rows_of_different_lengths():
    inputs, mask, _ = a_batch(STRING, 4, poison=9)
    rows, read = computing(inputs, mask, STRING, 2)
    assert rows.shape == read.shape == (2, 12)
    for row, n in enumerate(LENGTHS):
        assert read[row].tolist() == [True] * 3 * n + [False] * (12 - 3 * n)
        assert rows[row, : 3 * n].tolist() == [*inputs[row, :n].tolist(), *[V] * 2 * n]
    longer = with_computation(STRING, 2).shapes
    assert longer is not None and longer(4) == (12, 5) and with_computation(FLOATS, 2).shapes is None


class Told(Part):
    """A cell whose outputs are the number of inputs that it is told."""

    def start(self, batch_shape, steps=0, *, lengths):
        return lengths

    def __call__(self, carry, step):
        return carry, jnp.broadcast_to(carry[:, None].astype(jnp.float32), (*carry.shape, CLASSES))


class Same(Part):
    def __call__(self, x):
        return x


class Teller(FlatModel):
    """Answers with what its cell is told."""

    @nn.nowrap
    def reader(self, *, answers, train):
        return Transducer(Told(parent=None), spec=self.spec, head=Same(parent=None))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_they_are_no_inputs_to_a_cell(steps):
    """A Tape-RNN jumps by the number of inputs (Delétang et al. 2023: without computation tokens)."""
    model = Teller(spec=STRING, computation_steps=steps)
    answers = model.apply({}, *a_batch(STRING, 3), mutable=["params"], rngs={"params": jax.random.key(0)})[0]
    assert answers[:, 0, 0].tolist() == list(LENGTHS)


def test_tasks_and_models_without_them():
    """One line that says why."""
    assert "come after the input" in small("lstm", STRING, computation_steps=1).supports(ALIGNED)
    assert small("lstm", STRING).supports(ALIGNED) is None
    model = small("lstm", ALIGNED, computation_steps=1)
    batch = a_batch(ALIGNED, 3)
    with pytest.raises(ValueError, match="come after the input"):
        model.init(jax.random.key(0), *batch)
    with pytest.raises(ValueError, match="NRAM has its own way to read inputs; computation_steps must be 0"):
        make("nram", computation_steps=1)
    with pytest.raises(ValueError, match="computation_steps is -1; it must be an integer, at least 0"):
        make("lstm", computation_steps=-1)
