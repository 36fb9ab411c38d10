"""Traces by example, whatever axis their module left the batch on."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem.evaluation.traces import collect, observed, pca, token_names
from lenmem.models import make
from lenmem.tasks.base import draw
from lenmem.types import Batch, Spec
from tests.evaluation.oracle import Copy


class Sower(nn.Module):
    """Sows the inputs in several layouts."""

    layouts: tuple[str, ...] = ("time_major", "batch_major", "layered")

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        x = inputs.astype(jnp.float32) + self.param("shift", nn.initializers.zeros, ())
        if "time_major" in self.layouts:
            self.sow("traces", "time_major", x.T)
        if "batch_major" in self.layouts:
            self.sow("traces", "batch_major", x)
        if "layered" in self.layouts:
            self.sow("traces", "layered", jnp.stack([x.T, 2 * x.T, 3 * x.T]))
        if "twice" in self.layouts:
            self.sow("traces", "twice", x)
            self.sow("traces", "twice", 2 * x)
        if "clash" in self.layouts:
            Sower(layouts=("batch_major",), name="inner")(inputs, input_mask, target_mask)
        return x


def run(*layouts: str, rows: int = 4):
    # As many rows as positions: shapes alone do not tell the batch from the time.
    batch = draw(Copy(), jax.random.key(0), jnp.arange(1, rows + 1), 4)
    model = Sower(layouts=layouts)
    params = {"shift": jnp.float32(0), "inner": {"shift": jnp.float32(10)}}
    return np.asarray(batch.inputs, dtype=np.float32), collect(model, params, batch)


def test_batch_axis_comes_first():
    inputs, traces = run("time_major", "batch_major", "layered")
    assert set(traces) == {"time_major", "batch_major", "layered"}
    np.testing.assert_array_equal(traces["time_major"], inputs)
    np.testing.assert_array_equal(traces["batch_major"], inputs)
    np.testing.assert_array_equal(traces["layered"], inputs[:, None] * np.array([1, 2, 3])[:, None])


def test_names():
    inputs, traces = run("batch_major", "twice", "clash")
    assert set(traces) == {"batch_major", "inner/batch_major", "twice_0", "twice_1"}
    np.testing.assert_array_equal(traces["inner/batch_major"], inputs + 10)
    np.testing.assert_array_equal(traces["twice_1"], 2 * inputs)


def test_a_model_without_traces():
    with pytest.raises(ValueError, match="Sower sows no traces"):
        run()


def test_token_names():
    assert [token_names(8)(i) for i in (0, 7, 8, 9, 10)] == ["0", "7", "begin", "delimiter", ""]


@settings(deadline=None)
@given(n=st.integers(1, 9), d=st.integers(1, 4), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_pca_against_eigenvectors(n, d, k, seed):
    points = np.random.default_rng(seed).normal(size=(n, d))
    projected = pca(points, k)
    assert projected.shape == (n, k)
    np.testing.assert_allclose(projected.mean(axis=0), 0, atol=1e-12)
    variances = np.sort(np.linalg.eigvalsh(np.cov(points.T, bias=True).reshape(d, d)))[::-1] if n > 1 else np.zeros(d)
    expected = np.pad(variances, (0, max(0, k - d)))[:k]
    np.testing.assert_allclose(np.var(projected, axis=0), expected, atol=1e-12)
    # Signs are deterministic: the projection only moves with the points.
    np.testing.assert_allclose(pca(points + 5, k), projected, atol=1e-9)


def test_pca_of_a_line():
    line = np.outer(np.arange(5.0), [-3, 4])
    np.testing.assert_allclose(pca(line, 2), np.stack([5 * (np.arange(5) - 2), np.zeros(5)], axis=1), atol=1e-12)


def test_pca_refuses():
    with pytest.raises(ValueError, match=r"got \(0, 2\)"):
        pca(np.zeros((0, 2)), 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        pca(np.zeros((2, 2)), 0)


def test_one_network_on_two_tasks_is_observed_by_two_programs():
    """Specs are equal whatever their `shapes`, but one of these asks for a single answer, which is read otherwise."""
    inputs, mask = jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1), bool)
    single = Spec(vocabulary=4, output_size=3, shapes=lambda n: (n, 1))
    each = Spec(vocabulary=4, output_size=3, shapes=lambda n: (n, n))
    assert single == each
    for spec in (single, each):
        model = make("transformer", spec, hidden_size=8, layers=1, heads=2, feedforward_size=8)
        params = jax.jit(model.init)(jax.random.key(0), inputs, mask, mask)["params"]
        ((outputs, _),) = observed(model, params, [Batch(inputs, mask, inputs, mask, mask)])
        expected = jax.jit(model.apply)({"params": params}, inputs, mask, mask)
        np.testing.assert_allclose(outputs, expected, atol=1e-6)
