"""`lenmem.ops.heads` against float64 twins written from the equations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.ops.heads import nearest_match, next_equal, next_match, sorted_next, walk

N = 7
LAST = np.array([6, 3, 1, 0])


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(heads, logits), [4, N] each; heads lie within 0 .. LAST."""
    rng = np.random.default_rng(seed)
    heads = rng.random((4, N)) * (np.arange(N) <= LAST[:, None])
    return heads / heads.sum(-1, keepdims=True), 3 * rng.standard_normal((4, N))


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_a_walk_stops_at_the_ends(reach):
    heads, _ = drawn()
    weights = np.random.default_rng(1).dirichlet(np.ones(2 * reach + 1), 4)
    expected = np.zeros_like(heads)
    for row, last in enumerate(LAST):
        for slot in range(last + 1):
            for weight, offset in zip(weights[row], range(-reach, reach + 1), strict=True):
                expected[row, min(max(slot + offset, 0), last)] += weight * heads[row, slot]
    walked = walk(jnp.asarray(heads, jnp.float32), jnp.asarray(weights, jnp.float32), jnp.asarray(LAST))
    np.testing.assert_allclose(walked, expected, atol=1e-6)


def twin(logits: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray]:
    """The products of the equation, for the rows up to `last`."""
    g = 1 / (1 + np.exp(-logits))
    left, right = np.zeros((2, N, N))
    for m in range(last + 1):
        for n in range(m + 1, last + 1):
            right[m, n] = (1 if n == last else g[n]) * np.prod([1 - g[k] for k in range(m + 1, n)])
        for n in range(m):
            left[m, n] = (1 if n == 0 else g[n]) * np.prod([1 - g[k] for k in range(n + 1, m)])
    right[last, last] = left[0, 0] = 1
    return left, right


def test_jumps_equal_the_twin_and_lead_somewhere():
    _, logits = drawn()
    found = nearest_match(jnp.asarray(logits, jnp.float32), jnp.asarray(LAST))
    for row, last in enumerate(LAST):
        for got, expected in zip(found, twin(logits[row], last), strict=True):
            np.testing.assert_allclose(got[row, : last + 1], expected[: last + 1], atol=1e-5)
            np.testing.assert_allclose(np.asarray(got[row, : last + 1]).sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("scale", [30.0, 2000.0])
def test_jumps_of_large_logits_lead_somewhere(scale):
    """Differences of sums over all slots would be off by 0.04 at 2,000."""
    logits = scale * np.random.default_rng(0).normal(size=(1, 512)).astype(np.float32)
    for jumps in nearest_match(jnp.asarray(logits), jnp.asarray([511])):
        np.testing.assert_allclose(np.asarray(jumps[0]).sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_rounded_jumps_are_those_of_a_sure_pattern(seed):
    _, logits = drawn(seed)
    sure = jnp.asarray(np.where(logits > 0, 50.0, -50.0), jnp.float32)
    rounded = next_match(jnp.asarray(logits), jnp.asarray(LAST))
    for got, table in zip(rounded, nearest_match(sure, jnp.asarray(LAST)), strict=True):
        for row, last in enumerate(LAST):
            np.testing.assert_array_equal(got[row, : last + 1], np.argmax(table[row, : last + 1], axis=-1))


def test_gradients_of_jumps_are_finite_for_sure_patterns():
    def total(logits):
        left, right = nearest_match(logits, jnp.asarray(LAST))
        return jnp.sum(jnp.sin(left)) + jnp.sum(jnp.cos(right))

    for scale in (0.0, 1.0, 1e4):
        assert np.isfinite(jax.grad(total)(jnp.asarray(scale * drawn()[1], jnp.float32))).all()


def index_twin(values: np.ndarray, last: int) -> tuple[list[int], list[int]]:
    """By Python's sort: the next slot in the order (value, slot), and the next one with the same value, in turn."""
    after, equal = list(range(N)), list(range(N))
    inner = sorted(range(1, last), key=lambda slot: (values[slot], slot))
    for here, there in zip([0, *inner], [*inner, last], strict=True):
        if here != last:
            after[here] = there
    for slot in inner:
        same = [other for other in inner if values[other] == values[slot]]
        equal[slot] = same[(same.index(slot) + 1) % len(same)]
    return after, equal


@pytest.mark.parametrize("seed", range(5))
def test_an_index_leads_to_the_next_value_and_to_the_next_equal_one(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.integers(-1, 2, (4, N)), rng.standard_normal((4, N))]).astype(np.float32)
    last = np.concatenate([LAST, LAST])
    after, equal = (np.asarray(move(jnp.asarray(values), jnp.asarray(last))) for move in (sorted_next, next_equal))
    for row, end in enumerate(last):
        expected = index_twin(values[row], end)
        assert (after[row].tolist(), equal[row].tolist()) == expected


def test_walks_along_an_index_visit_every_slot_once():
    values = jnp.asarray(np.random.default_rng(1).standard_normal((1, N)), jnp.float32)
    after = np.asarray(sorted_next(values, jnp.array([N - 1])))[0]
    places = [0]
    for _ in range(N - 1):
        places.append(after[places[-1]])
    assert sorted(places) == list(range(N)) and places[-1] == N - 1 == after[N - 1]
    visited = np.asarray(values)[0, places[1:-1]]
    assert (np.diff(visited) > 0).all()
