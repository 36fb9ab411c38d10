"""`lenmem.ops.tape` against float64 twins."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem import ops

quick = settings(max_examples=25, deadline=None, derandomize=True)
shares = hnp.arrays(np.float32, (5,), elements=st.floats(0, 1, width=32))


def neighbours_twin(weights, keys):
    """k_L and k_R of a full memory, slot by slot."""
    left, right = np.zeros(keys.shape[-1]), np.zeros(keys.shape[-1])
    for i, weight in enumerate(weights):
        if i > 0:
            left += weight * keys[i - 1]
        if i + 1 < len(keys):
            right += weight * keys[i + 1]
    return left, right


@pytest.mark.parametrize("count", [0, 1, 3, 5])
@quick
@given(shares, hnp.arrays(np.float32, (5, 2), elements=st.floats(-1e6, 1e6, width=32)))
def test_neighbours_of_the_filled_prefix(count, weights, keys):
    mask = np.arange(5) < count
    keys[:count] = np.arange(10).reshape(5, 2)[:count] / 3
    got = ops.shifted_keys(weights, keys, mask)
    for mine, twin in zip(got, neighbours_twin(weights[:count].astype(np.float64), keys[:count]), strict=True):
        np.testing.assert_allclose(mine, twin, atol=1e-5)
    if count == 5:
        for mine, masked in zip(ops.shifted_keys(weights, keys), got, strict=True):
            np.testing.assert_array_equal(mine, masked)


def test_moving_right_then_left_returns_inside_the_tape():
    keys = jnp.eye(4)
    weights = jnp.asarray([0.0, 0.3, 0.7, 0.0])
    _, right = ops.shifted_keys(weights, keys)
    left, _ = ops.shifted_keys(right, keys)
    np.testing.assert_allclose(left, weights)
    left, right = ops.shifted_keys(jnp.asarray([1.0, 0.0, 0.0, 0.0]), keys)
    np.testing.assert_array_equal(left, np.zeros(4))  # nothing is left of the first slot
    np.testing.assert_array_equal(right, keys[1])


@quick
@given(shares, st.floats(1, 20, width=32))
def test_sharpen_equals_its_twin(weights, sharpness):
    got = np.asarray(ops.sharpen(weights, jnp.float32(sharpness)))
    assert np.all(got[weights == 0] == 0)
    if weights.max() > 0:
        scaled = weights.astype(np.float64) / weights.max()
        powers = np.where(weights > 0, scaled**sharpness, 0)
        np.testing.assert_allclose(got, powers / powers.sum(), atol=1e-5)
    gradients = jax.grad(lambda w, g: jnp.sum(ops.sharpen(w, g)[:2]), argnums=(0, 1))(weights, jnp.float32(sharpness))
    assert np.all(np.isfinite(gradients[1]))
    assert np.all(np.asarray(gradients[0])[weights == 0] == 0)


def test_sharpness_one_only_normalises_and_leading_axes_are_rows():
    weights = jnp.asarray([[[0.1, 0.3, 0.0], [0.2, 0.2, 0.4]]])
    sharp = ops.sharpen(weights, jnp.asarray([[1.0, 2.0]]))
    np.testing.assert_allclose(sharp[0, 0], [0.25, 0.75, 0], atol=1e-6)
    np.testing.assert_allclose(sharp[0, 1], np.array([0.04, 0.04, 0.16]) / 0.24, atol=1e-6)
    keys = jnp.arange(12.0).reshape(1, 2, 3, 2)
    left, right = ops.shifted_keys(weights, keys)
    for row in range(2):
        for mine, twin in zip(
            (left[0, row], right[0, row]),
            neighbours_twin(np.asarray(weights[0, row]), np.asarray(keys[0, row])),
            strict=True,
        ):
            np.testing.assert_allclose(mine, twin, rtol=1e-6)
