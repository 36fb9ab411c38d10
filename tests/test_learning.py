"""The tools of learning tests: the optimiser, one value per key, and the bar for the worst key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learning import INSTRUCTION_SETS, check_instruction_set, fit, values


def a_sum(key):
    return jnp.sum(jax.random.normal(key, (3,)))


def test_the_recipe_finds_a_minimum_in_a_few_updates():
    """Batches of noisy points on a plane; the rate falls to zero, which averages out the noise of single batches."""
    keys = jax.random.split(jax.random.key(0), 3)
    points = jax.random.normal(keys[0], (200, 16, 2))
    heights = points @ jnp.array([1.0, -2.0]) + 0.5 + 0.1 * jax.random.normal(keys[1], (200, 16))

    def loss(params, batch, key):
        points, heights = batch
        return jnp.mean((points @ params["slope"] + params["height"] - heights) ** 2)

    found = fit({"slope": jnp.zeros(2), "height": jnp.zeros(())}, loss, (points, heights), keys[2], 0.1)
    np.testing.assert_allclose(found["slope"], [1, -2], atol=0.05)
    np.testing.assert_allclose(found["height"], 0.5, atol=0.05)


@pytest.mark.parametrize("bar", [0.0, 0.5])
def test_a_bar_is_for_the_worst_key(bar, learns, request, monkeypatch):
    monkeypatch.setattr(request.config.option, "keys", 3)
    before = list(request.node.user_properties)
    worst = float(values(a_sum, 3).min())
    assert worst < 0 < values(a_sum, 3).max()
    learns(a_sum, bar=worst, worst=worst)
    with pytest.raises(AssertionError, match=f"wanted {bar}"):
        learns(a_sum, bar=bar, worst=1.0)
    with pytest.raises(AssertionError, match="below the bar"):
        learns(a_sum, bar=bar, worst=bar - 0.1)
    request.node.user_properties[:] = before


def test_an_unknown_instruction_set_is_refused():
    for name in ("", *(f"--xla_foo=1 --xla_cpu_max_isa={name}" for name in (*INSTRUCTION_SETS, "avx2"))):
        check_instruction_set(name)
    with pytest.raises(ValueError, match="--xla_cpu_max_isa is 'SSE4.2'; XLA knows SSE4_2, AVX, AVX2"):
        check_instruction_set("--xla_cpu_max_isa=SSE4.2 --xla_foo=1")
