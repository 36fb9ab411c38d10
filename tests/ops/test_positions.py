"""Sinusoidal positions against float64 NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops


def twin(positions, width):
    table = np.zeros((len(positions), width))
    for row, position in enumerate(positions):
        for column in range(width):
            angle = position / 10_000 ** (2 * (column // 2) / width)
            table[row, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_against_numpy(width):
    positions = np.array([0, 1, 2, 17, 511, 5000])
    got = np.asarray(ops.sinusoidal(jnp.asarray(positions), width))
    assert got.shape == (6, width)
    tolerance = 1e-6 + 2e-7 * positions[:, None]  # The error of a float32 angle grows with it.
    assert (np.abs(got - twin(positions, width)) <= tolerance).all()


def test_any_leading_axes_and_real_positions():
    positions = jnp.array([[0.5, 1.5], [2.0, 3.0]])
    got = ops.sinusoidal(positions, 6)
    assert got.shape == (2, 2, 6)
    np.testing.assert_allclose(got.reshape(4, 6), twin([0.5, 1.5, 2.0, 3.0], 6), atol=1e-6)


def test_width_is_checked():
    with pytest.raises(ValueError, match="width is 0"):
        ops.sinusoidal(jnp.arange(3), 0)
