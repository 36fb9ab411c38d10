"""`Transformer(positions="given")`: where the positions of a task end up, and what they do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import make
from lenmem.nn.interfaces import Completion
from lenmem.nn.transformer import GivenPositionsEncoder
from lenmem.tasks import make as make_task
from lenmem.tasks.addition import Addition
from lenmem.tasks.base import draw
from tests.drawing import drawn

SMALL = {"hidden_size": 8, "layers": 1, "heads": 2, "feedforward_size": 8, "dropout": 0.0, "max_positions": 32}
COUPLED = Addition(positions="coupled", format="reversed_answer", train_lengths=(1, 4), test_lengths=(5, 9))


def given(**fields):
    return make("transformer", **{**SMALL, "positions": "given", **fields}).clone(spec=COUPLED.spec)


def a_batch(capacity=4, seed=0):
    return jax.jit(draw, static_argnums=(0, 3))(COUPLED, jax.random.key(seed), jnp.array([4, 2, 1]), capacity)


def call(model, params, batch, **options):
    return np.asarray(jax.jit(lambda p: model.apply({"params": p}, *batch[:2], batch.target_mask, **options))(params))


def started(model, batch):
    return drawn(model.init, *batch[:2], batch.target_mask)


def test_positions_of_the_columns():
    """Those of a row's inputs, those of its slots right behind, then 0."""
    batch, rule = a_batch(), COUPLED.spec.position_rule
    assert rule is not None
    encoder = GivenPositionsEncoder(1, 2, 8, max_positions=32, parent=None)
    batch = jax.tree.map(np.asarray, batch)
    (columns,) = jax.jit(Completion(encoder, spec=COUPLED.spec).given)(*batch[:2], batch.target_mask)
    read, asked = map(np.asarray, jax.jit(rule.ids)(*batch[:2], batch.target_mask))
    for row in range(3):
        wanted = [*read[row][batch.input_mask[row]].tolist(), *asked[row][batch.target_mask[row]].tolist()]
        assert columns[row].tolist() == wanted + [0] * (columns.shape[1] - len(wanted))


def test_digits_of_a_weight_are_told_apart_by_nothing_else():
    """The numbers may change places: the network sees a set of digits with their weights."""
    length, count = 3, 4
    digits = np.random.default_rng(0).integers(1, 9, (count, 2, length))
    plus, equals = np.full((count, 1), 10), np.full((count, 1), 11)
    one, other = (
        np.concatenate([a, plus, b, equals], 1) for a, b in ((digits[:, 0], digits[:, 1]), (digits[:, 1], digits[:, 0]))
    )
    mask, asked = np.ones(one.shape, bool), np.ones((count, length + 2), bool)
    model = given()
    params = drawn(model.init, one, mask, asked, scale=1.0)
    apply = jax.jit(model.apply)
    turned = np.concatenate([one[:, :length][:, ::-1], one[:, length:]], 1)
    answers, same, others = (np.asarray(apply({"params": params}, x, mask, asked)) for x in (one, other, turned))
    np.testing.assert_allclose(answers, same, atol=1e-4)
    assert np.abs(others - answers).max() > 1e-2


def test_padding_does_not_matter():
    model = given()
    small, large = a_batch(4), a_batch(7)
    params = started(model, small)
    poisoned = large._replace(inputs=np.where(large.input_mask, large.inputs, 3))
    run = jax.jit(model.apply)
    before, *others = (np.asarray(run({"params": params}, *x[:2], x.target_mask)) for x in (small, large, poisoned))
    for after in others:
        for row in range(3):
            slots = int(small.target_mask[row].sum())
            np.testing.assert_allclose(after[row, :slots], before[row, :slots], atol=1e-5)


def test_positions_are_shifted_in_training_only():
    """By one number in each row, within the table, and 0 stays."""
    encoder = GivenPositionsEncoder(max_positions=12)
    positions = np.tile(np.array([0, 1, 2, 5, 0]), (500, 1))
    options = {"method": "shifted", "rngs": {"address": jax.random.key(0)}}
    shift = jax.jit(lambda positions: [encoder.apply({}, positions, deterministic=x, **options) for x in (True, False)])
    still, found = map(np.asarray, shift(positions))
    np.testing.assert_array_equal(still, positions)
    offsets = found[:, 1] - 1
    assert set(offsets) == set(range(7)) and not found[:, [0, 4]].any()
    np.testing.assert_array_equal(found[:, 1:4] - offsets[:, None], positions[:, 1:4])
    model, batch = given(), a_batch()
    params = started(model, batch)
    train = {"train": True, "rngs": {"address": jax.random.key(1), "dropout": jax.random.key(2)}}
    assert np.abs(call(model, params, batch, **train) - call(model, params, batch)).max() > 1e-4


def test_refusals():
    """One line for what does not go together."""
    model = given()
    assert model.supports(COUPLED.spec) is None
    for name in ("copy", "parity_check", "word_problem"):
        assert "needs a task that gives positions" in model.supports(make_task(name).spec)
    assert make("transformer").supports(COUPLED.spec) is None  # it ignores them
    batch = a_batch()
    with pytest.raises(ValueError, match="max_positions is 7; the positions of these rows reach 7"):
        started(given(max_positions=7), batch)
    started(given(max_positions=8), batch)
    with pytest.raises(ValueError, match="the positions of the columns are missing"):
        GivenPositionsEncoder().init(jax.random.key(0), jnp.zeros((1, 2, 8)), jnp.ones((1, 2), bool))
