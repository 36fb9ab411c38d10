"""The looped Transformer: its loops written out, and rows that stop after their own number of them."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from lenmem.models.looped import LoopedEncoder
from lenmem.nn.attention import MultiHeadAttention
from lenmem.nn.transformer import PreNormLayer
from tests.drawing import drawn
from tests.learning import briefly

WIDTH, COLUMNS = 8, 7
STATES = np.random.default_rng(0).normal(size=(2, COLUMNS, WIDTH)).astype(np.float32)
MASK = np.arange(COLUMNS) < np.array([[COLUMNS], [3]])


def encoder_and_params(**fields):
    encoder = LoopedEncoder(heads=2, feedforward_size=6, **fields)
    return encoder, drawn(encoder.init, STATES, MASK)


def looped(params, row, loops):
    """h = Block(h + x), so many times, for one row without padding; then the norm."""
    attention = MultiHeadAttention(features=WIDTH, heads=2, causal=True, parent=None)
    block = PreNormLayer(attention=attention, feedforward_size=6)
    run = briefly(functools.partial(block.apply, {"params": params["loop"]["block"]}))
    inputs = np.asarray(row)[None]
    states = np.zeros_like(inputs)
    for _ in range(loops):
        states = np.asarray(run(states + inputs, np.ones((1, len(row)), bool)))
    states = np.asarray(states[0], np.float64)
    centred = states - states.mean(-1, keepdims=True)
    normed = centred / np.sqrt(states.var(-1, keepdims=True) + 1e-6)
    return normed * np.asarray(params["norm"]["scale"]) + np.asarray(params["norm"]["bias"])


@pytest.mark.parametrize("loops", [None, 1, 20])
def test_a_row_has_its_own_loops(loops):
    encoder, params = encoder_and_params(loops=loops)
    got = np.asarray(briefly(lambda params, *given: encoder.apply({"params": params}, *given))(params, STATES, MASK))
    for row, length in enumerate((COLUMNS, 3)):
        expected = looped(params, STATES[row, :length], loops or length)
        np.testing.assert_allclose(got[row, :length], expected, atol=1e-4)
    assert not np.any(got[1, 3:])


def test_no_parameter_depends_on_the_number_of_loops():
    _, few = encoder_and_params(loops=1)
    _, many = encoder_and_params()
    assert jax.tree.map(np.shape, few) == jax.tree.map(np.shape, many)
