"""Decays to nothing do not blur what comes after them: sums of logarithms are not differences of larger sums."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from tests.ops.test_linear_recurrence import twin

LENGTH, WIDTH = 256, 8
PATTERNS = {
    "every other": np.where(np.arange(LENGTH) % 2 == 0, -np.inf, -0.01),
    "most": np.where(np.arange(LENGTH) % 32 < 24, -np.inf, -0.001),
    "none": np.full(LENGTH, -0.7),
}


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("erasing", [False, True])
def test_a_recurrence_with_many_resets(implementation, pattern, erasing):
    rng, decay = np.random.default_rng(0), PATTERNS[pattern]
    queries, keys, values = rng.normal(size=(3, LENGTH, WIDTH))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    write, erase = rng.uniform(size=LENGTH), erasing * rng.uniform(0, 1.9, size=LENGTH)
    arrays = [jnp.asarray(x, jnp.float32) for x in (queries, keys, values, write)]
    run = jax.jit(functools.partial(ops.linear_recurrence, implementation=implementation))
    _, reads = run(*arrays, jnp.float32(erase) if erasing else None, jnp.float32(decay))
    _, expected = twin(keys, values, write, erase, decay, queries, np.zeros((WIDTH, WIDTH)))
    np.testing.assert_allclose(reads, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gate", [-0.7, -30.0])
def test_forgetting_far_from_the_beginning(gate):
    gates = np.where(np.arange(4096) % 2, gate, -0.001).astype(np.float32)
    total = np.cumsum(gates.astype(np.float64))
    expected = (total[:, None] - total)[-300:, -300:]
    got = np.asarray(jax.jit(ops.forgetting)(gates))[-300:, -300:]
    near = np.tril(np.abs(expected) < 20)
    np.testing.assert_allclose(got[near], expected[near], atol=1e-5)
    assert np.all(got[np.triu(np.ones_like(near), 1)] == 0)
