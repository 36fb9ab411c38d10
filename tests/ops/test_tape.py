"""`lenmem.ops.tape` against float64 twins."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem import ops

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


# The tape that moves --------------------------------------------------------------------------------------------------


moved = jax.jit(ops.write_and_move)


def moved_twin(tape, new, moves, jump):
    """One row: the tape as a circle of cells, and where the head goes."""
    tape = [new, *tape[1:]]
    result = np.zeros_like(np.asarray(tape))
    for probability, distance in zip(moves, (0, 1, -1, jump, -jump), strict=True):
        for i in range(len(tape)):
            result[i] = result[i] + probability * tape[(i + distance) % len(tape)]
    return result


@pytest.mark.parametrize("slots", [1, 2, 5])
@given(seed=st.integers(0, 10**6), jumps=st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_a_moved_tape_equals_its_twin(slots, seed, jumps):
    """Jumps of another length in each row, also past the end of the tape, and leading axes."""
    generator = np.random.default_rng(seed)
    tape, new = generator.normal(size=(3, 2, slots, 2)), generator.normal(size=(3, 2, 2))
    moves = generator.dirichlet(np.ones(5), size=(3, 2))
    got = moved(*(x.astype(np.float32) for x in (tape, new, moves)), np.array(jumps)[:, None])
    for row in range(3):
        for head in range(2):
            twin = moved_twin(tape[row, head], new[row, head], moves[row, head], jumps[row])
            np.testing.assert_allclose(got[row, head], twin, atol=1e-5)


def test_gradients_are_those_of_the_equation():
    generator = np.random.default_rng(0)
    tape, new, moves = (jnp.asarray(generator.normal(size=size), jnp.float32) for size in ((4, 2), (2,), (5,)))
    direction = generator.normal(size=(4, 2))

    def objective(*arguments):
        return jnp.sum(moved(*arguments, 3) * direction)

    # The objective is linear in each argument: a difference of any size is exact, up to rounding in float64 here.
    arguments = [np.asarray(x, np.float64) for x in (tape, new, moves)]
    for which, gradient in enumerate(jax.grad(objective, argnums=(0, 1, 2))(tape, new, moves)):
        for at in np.ndindex(gradient.shape):
            other = [x.copy() for x in arguments]
            other[which][at] += 1
            after, before = (np.sum(moved_twin(x[0], x[1], x[2], 3) * direction) for x in (other, arguments))
            np.testing.assert_allclose(gradient[at], after - before, atol=1e-5)


@pytest.mark.parametrize(("length", "slots"), [(1, 1), (3, 9), (4, 5), (5, 5), (7, 5)])
def test_a_tape_copies_a_string(length, slots):
    """Write and step forward, jump back by the length, then read and step forward. What is read is written again.

    A string that is longer than the tape overwrites its own start.
    """
    _, forward, _, _, back = jnp.eye(5)
    string = list(range(1, length + 1))
    tape, read = jnp.zeros((slots, 1)), []
    for symbol in string:
        tape = moved(tape, jnp.array([float(symbol)]), forward, length)
    tape = moved(tape, tape[0], back, length)
    for _ in string:
        read.append(int(tape[0, 0]))
        tape = moved(tape, tape[0], forward, length)
    kept = {i % slots: symbol for i, symbol in enumerate(string)}
    assert read == [kept[i % slots] for i in range(length)]
