"""Recurrent decoders that attend by content, by location or by both, and one that points: against float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.nn.attention import LocationAttention
from lenmem.nn.attention_decoder import AttentionDecoder, PointingDecoder
from lenmem.nn.cells import GRUCell
from lenmem.types import Step
from tests.drawing import drawn as drawn_by

SIZE, SYMBOLS = 5, 3
LENGTHS = (4, 2)
MASK = jnp.arange(4) < jnp.array(LENGTHS)[:, None]
STATES = jax.random.normal(jax.random.key(0), (2, 4, 6))
DIRTY = jnp.where(MASK[..., None], STATES, jnp.nan)
READS = jax.random.normal(jax.random.key(1), (3, 2, 2))


def run(module, states, mask, reads):
    """Three slots one after the other."""
    carry, memory = module.start(states, mask)
    outputs = []
    for read in reads:
        ones = jnp.ones(mask.shape[:1], bool)
        carry, output = module(carry, Step(read, ones, ones), memory)
        outputs.append(output)
    return jnp.stack(outputs, 1)


def drawn(module, *arguments, method=None):
    """Parameters U(-0.9, 0.9), and their float64 twins."""
    params = drawn_by(module.init, *arguments, scale=0.9, seed=1, method=method)
    return params, jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(p, x, h):
    """Cho et al. (2014), with the reset gate after the linear map."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(linear(p["input"], x), 3), np.split(linear(p["hidden"], h), 3)
    z = sigmoid(z_x + z_h)
    return (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h


def first(p, memory):
    """tanh of a linear map of the first and the last state."""
    return np.tanh(linear(p["bridge"]["Linear_0"], np.concatenate([memory[0], memory[-1]])))


def by_content(p, s, memory):
    p = p["scorer"]
    return softmax(
        np.array([linear(p["score"], np.tanh(linear(p["of_query"], s) + linear(p["of_memory"], m)))[0] for m in memory])
    )


def by_location(p, s, memory):
    return softmax(linear(p["locator"]["score"], s)[: len(memory)])


@pytest.mark.parametrize(
    ("kind", "ways"),
    [("content", [by_content]), ("location", [by_location]), ("hybrid", [by_content, by_location])],
)
def test_decoders_against_numpy(kind, ways):
    module = AttentionDecoder(GRUCell(SIZE, parent=None), 7, kind, max_positions=9)
    params, p = drawn(module, STATES, MASK, READS, method=run)
    apply = jax.jit(lambda p, x: module.apply({"params": p}, x, MASK, READS, method=run, mutable=["traces"]))
    outputs, mutated = apply(params, DIRTY)
    traced = mutated["traces"]["attention"]
    assert len(traced) == 3 * len(ways)
    for row, n in enumerate(LENGTHS):
        memory = np.asarray(STATES[row, :n], np.float64)
        s, weights = first(p, memory), []
        for slot in range(3):
            weights += [way(p, s, memory) for way in ways]
            contexts = np.concatenate([w @ memory for w in weights[-len(ways) :]])
            s = gru(p["cell"], np.concatenate([READS[slot, row], contexts]), s)
            np.testing.assert_allclose(outputs[row, slot], np.concatenate([s, contexts]), atol=1e-5)
        for got, expected in zip(traced, weights, strict=True):
            np.testing.assert_allclose(got[row], np.pad(expected, (0, 4 - n)), atol=1e-6)


def test_pointing_against_numpy():
    module = PointingDecoder(GRUCell(SIZE, parent=None), 7, SYMBOLS)
    symbols = jax.nn.one_hot(jnp.array([[0, 2, -1, 2], [1, 1, 0, 0]]), SYMBOLS)  # -1: cannot be pointed at
    states = jnp.concatenate([STATES, symbols], -1)
    params, p = drawn(module, states, MASK, READS, method=run)
    outputs = jax.jit(lambda p, x: module.apply({"params": p}, x, MASK, READS, method=run))(
        params, jnp.where(MASK[..., None], states, jnp.nan)
    )
    for row, n in enumerate(LENGTHS):
        memory, held = (np.asarray(x[row, :n], np.float64) for x in (STATES, symbols))
        pointable = held.any(-1)
        d, c = first(p, memory), np.zeros(memory.shape[-1])
        for slot in range(3):
            d = gru(p["cell"], np.concatenate([READS[slot, row], c]), d)
            weights = np.zeros(n)
            weights[pointable] = by_content(p, d, memory[pointable])
            c = weights @ memory
            np.testing.assert_allclose(outputs[row, slot], weights @ held, atol=1e-6)
    np.testing.assert_allclose(outputs[1, :, 1], 1, atol=1e-6)  # All that the row has is symbol 1.


def test_location_has_a_limit_that_counts_padding():
    query, mask = jnp.ones((2, 3)), jnp.ones((2, 4), bool)

    def weigh(module, query, memory, mask):
        return module(query, module.keys(memory), mask)

    fits = LocationAttention(4).init_with_output(jax.random.key(0), query, STATES, mask, method=weigh)[0]
    np.testing.assert_allclose(fits.sum(-1), 1, atol=1e-6)
    with pytest.raises(ValueError, match=r"4 positions \(padding included\) is longer than max_positions, 3"):
        LocationAttention(3).init(jax.random.key(0), query, STATES, mask, method=weigh)


def test_location_does_not_look_at_contents():
    module = LocationAttention(9)
    params, _ = drawn(module, jnp.ones((2, 3)), None, MASK)
    weights = module.apply({"params": params}, jnp.ones((2, 3)), None, MASK)
    np.testing.assert_array_equal(weights[~np.asarray(MASK)], 0)
    longer = module.apply({"params": params}, jnp.ones((2, 3)), None, jnp.ones((2, 6), bool))
    np.testing.assert_allclose(longer[0, :4] / longer[0, :4].sum(), weights[0], atol=1e-6)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="attention is 'local'; allowed are content, location, hybrid"):
        AttentionDecoder(GRUCell(SIZE, parent=None), 7, "local")  # pyright: ignore
