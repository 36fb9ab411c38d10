"""`lenmem.ops.states` against all pairs, listed and sorted."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.ops import states as module


def twin(states, length, pairs):
    """The cosine of every pair of times, the largest of them averaged."""
    states = np.asarray(states[:length], np.float64)
    cosines = [np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in itertools.combinations(states, 2)]
    return np.mean(sorted(cosines, reverse=True)[:pairs]) if cosines else 0.0


def walks(seed, *shape):
    """Sequences of states that drift, so that near times have near states."""
    return np.cumsum(np.random.default_rng(seed).normal(size=shape), axis=-2).astype(np.float32)


LENGTHS = [13, 13, 7, 2, 1]


@pytest.mark.parametrize("chunk", [1, 4, 5, 64])
@pytest.mark.parametrize("pairs", [1, 6, 30, 1000])
def test_equals_all_pairs_sorted(monkeypatch, chunk, pairs):
    monkeypatch.setattr(module, "CHUNK", chunk)
    states = walks(0, len(LENGTHS), 13, 5)
    valid = np.arange(13) < np.array(LENGTHS)[:, None]
    expected = [twin(row, length, pairs) for row, length in zip(states, LENGTHS, strict=True)]
    soiled = np.where(valid[..., None], states, np.nan)
    similarity = jax.jit(lambda states, valid: ops.nearest_states_similarity(states, valid, pairs))
    np.testing.assert_allclose(similarity(soiled, valid), expected, atol=1e-5)
    np.testing.assert_allclose(similarity(states[0], valid[0]), expected[0], atol=1e-5)


def test_gradient_is_that_of_the_sorted_cosines():
    states, pairs = walks(1, 2, 9, 4), 7
    valid = np.ones((2, 9), bool)

    def by_sorting(states):
        directions = states / jnp.linalg.norm(states, axis=-1, keepdims=True)
        cosines = jnp.einsum("bih,bjh->bij", directions, directions)[:, *np.triu_indices(9, 1)]
        return jnp.mean(jnp.sort(cosines, axis=-1)[:, -pairs:], axis=-1).sum()

    got = jax.jit(jax.grad(lambda s: ops.nearest_states_similarity(s, valid, pairs).sum()))(states)
    np.testing.assert_allclose(got, jax.jit(jax.grad(by_sorting))(states), atol=1e-5)


def test_repeated_zero_and_absent_states():
    valid = np.ones(4, bool)
    similarity = jax.jit(jax.value_and_grad(lambda s, valid: ops.nearest_states_similarity(s, valid, 6)))
    np.testing.assert_allclose(similarity(np.ones((4, 3), np.float32), valid)[0], 1, atol=1e-6)
    value, gradient = similarity(np.zeros((4, 3), np.float32), valid)
    assert value == 0 and np.all(np.isfinite(gradient))
    assert similarity(np.ones((1, 3), np.float32), valid[:1])[0] == 0
    assert similarity(np.ones((4, 3), np.float32), ~valid)[0] == 0
