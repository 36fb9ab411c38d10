"""`lenmem.ops.lie` against float64 twins written from the equations, and the properties of a memory."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from lenmem import ops

coordinates = st.floats(-4, 4, width=32, allow_subnormal=False)


def points(*shape):
    """Arrays of moderate coordinates."""
    return hnp.arrays(np.float32, shape, elements=coordinates)


def axes(*shape):
    """Unit axes [*shape, 3], away from the zero vector that has no direction."""
    raw = hnp.arrays(np.float32, (*shape, 3), elements=st.floats(-1, 1, width=32))
    raw = raw.filter(lambda x: bool(np.all(np.linalg.norm(x, axis=-1) > 0.1)))
    return raw.map(lambda x: (x / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)).astype(np.float32))


angles = st.floats(-7, 7, width=32).map(np.float32)


# Twins, one row at a time, in float64 ---------------------------------------------------------------------------------


def rodrigues_twin(position, axis, angle):
    """exp(angle [axis]_x) position, by the matrix exponential."""
    x, y, z = np.asarray(axis, np.float64)
    generator = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return scipy.linalg.expm(float(angle) * generator) @ np.asarray(position, np.float64)


def with_strengths(closeness, strengths):
    total = sum(closeness)
    weighted = [s * u / total + 1e-9 for s, u in zip(strengths, closeness, strict=True)]
    return np.array([w / (sum(weighted) + 1e-10) for w in weighted])


def inverse_square_twin(position, keys, strengths):
    """s_i / (d_i^2 + 1e-10), normalised, with the published code's 1e-9 added after the strengths."""
    squares = [sum((a - b) ** 2 for a, b in zip(position, key, strict=True)) for key in np.asarray(keys, np.float64)]
    return with_strengths([1 / (square + 1e-10) for square in squares], np.asarray(strengths, np.float64))


def softmax_twin(position, keys, strengths, temperature):
    """s_i exp(-d_i^2 / T), likewise. The largest exponent is subtracted so that not all of them underflow."""
    squares = [sum((a - b) ** 2 for a, b in zip(position, key, strict=True)) for key in np.asarray(keys, np.float64)]
    exponents = [-square / temperature for square in squares]
    return with_strengths([np.exp(e - max(exponents)) for e in exponents], np.asarray(strengths, np.float64))


def dot_product_twin(position, keys, strengths, sharpness=1.0):
    """s_i exp(gamma <q, k_i>), likewise."""
    exponents = [sharpness * float(np.dot(np.asarray(position, np.float64), key)) for key in np.asarray(keys)]
    return with_strengths([np.exp(e - max(exponents)) for e in exponents], np.asarray(strengths, np.float64))


def softmax_weights(position, keys, strengths, mask=None):
    """The softmax weighting at a fixed temperature, so that all three weightings have one signature."""
    return ops.softmax_distance_weights(position, keys, strengths, jnp.full(position.shape[:-1], 0.7), mask)


def dot_weights(position, keys, strengths, mask=None):
    """The random-access weighting at a fixed sharpness."""
    return ops.dot_product_weights(position, keys, strengths, jnp.full(position.shape[:-1], 1.3), mask)


WEIGHTINGS = {
    "inverse_square": (ops.inverse_square_weights, inverse_square_twin),
    "softmax": (softmax_weights, functools.partial(softmax_twin, temperature=0.7)),
    "dot_product": (dot_weights, functools.partial(dot_product_twin, sharpness=1.3)),
}
each_weighting = pytest.mark.parametrize("weights, twin", WEIGHTINGS.values(), ids=WEIGHTINGS)
by_distance = pytest.mark.parametrize("name", ["inverse_square", "softmax"])
JITTED = {id(function): jax.jit(function) for function, _ in WEIGHTINGS.values()}


def jitted(function):
    """One compilation per function and shape for the whole file."""
    return JITTED[id(function)]


# Groups ---------------------------------------------------------------------------------------------------------------


@given(points(5, 2), points(5, 2), points(5, 2))
def test_shifts_are_a_group(q, a, b):
    np.testing.assert_array_equal(ops.translate(q, jnp.zeros_like(a)), q)
    np.testing.assert_allclose(ops.translate(ops.translate(q, a), -a), q, atol=2e-6)
    np.testing.assert_allclose(ops.translate(ops.translate(q, a), b), ops.translate(q, a + b), atol=3e-6)


@given(points(3), axes(), angles)
def test_rotation_is_the_matrix_exponential(q, axis, angle):
    np.testing.assert_allclose(ops.rotate(q, axis, angle), rodrigues_twin(q, axis, angle), atol=2e-5)


@given(points(3), axes(), axes(), angles, angles)
def test_rotations_are_a_group(q, first, second, alpha, beta):
    np.testing.assert_array_equal(ops.rotate(q, first, jnp.zeros(())), q)
    np.testing.assert_allclose(ops.rotate(ops.rotate(q, first, alpha), first, -alpha), q, atol=2e-5)
    # About one axis, angles add up; about two, the product in the group acts like the two actions in turn.
    twice = ops.rotate(ops.rotate(q, first, alpha), first, beta)
    np.testing.assert_allclose(twice, ops.rotate(q, first, alpha + beta), atol=4e-5)
    product = Rotation.from_rotvec(beta * second.astype(float)) * Rotation.from_rotvec(alpha * first.astype(float))
    turns = ops.rotate(ops.rotate(q, first, alpha), second, beta)
    np.testing.assert_allclose(turns, product.apply(q), atol=4e-5)
    vector = product.as_rotvec()
    angle = np.linalg.norm(vector)
    if angle > 1e-3:
        of_product = ops.rotate(q, jnp.asarray(vector / angle, jnp.float32), jnp.float32(angle))
        np.testing.assert_allclose(of_product, turns, atol=4e-5)


@given(points(3), points(3), axes(), angles)
def test_every_action_keeps_distances(p, q, axis, angle):
    distance = np.linalg.norm(p - q)
    moved = ops.rotate(p, axis, angle), ops.rotate(q, axis, angle)
    np.testing.assert_allclose(np.linalg.norm(moved[0] - moved[1]), distance, atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(moved[0]), np.linalg.norm(p), atol=2e-5)
    shift = np.float32(angle) * axis
    moved = ops.translate(p, shift), ops.translate(q, shift)
    np.testing.assert_allclose(np.linalg.norm(moved[0] - moved[1]), distance, atol=2e-5)


@given(points(6, 3), st.floats(-3, 3, width=32))
def test_bounded_keeps_the_direction_and_has_a_norm_below_one(action, log_scale):
    action = action * np.float32(10.0) ** np.float32(log_scale)
    bounded = np.asarray(ops.bounded(action), np.float64)
    norms = np.linalg.norm(action.astype(np.float64), axis=-1)
    np.testing.assert_allclose(bounded, action / np.sqrt(1 + norms**2)[:, None], atol=1e-6)
    assert np.all(np.linalg.norm(bounded, axis=-1) <= 1 + 1e-6)  # strictly below 1 but for rounding


@given(points(6, 3))
def test_unit_projects_to_the_sphere(vector):
    vector[0] = 0
    norms = np.linalg.norm(vector.astype(np.float64), axis=-1)
    twin = vector / np.sqrt(norms**2 + 1e-10)[:, None]
    np.testing.assert_allclose(ops.unit(vector), twin, atol=1e-6)
    assert np.all(np.isfinite(jax.grad(lambda x: jnp.sum(ops.unit(x)))(vector)))


# Reading --------------------------------------------------------------------------------------------------------------


@each_weighting
@pytest.mark.parametrize("slots", [1, 4])
@given(st.data())
def test_weights_equal_their_twin(weights, twin, slots, data):
    q, keys = data.draw(points(3)), data.draw(points(slots, 3))
    strengths = data.draw(hnp.arrays(np.float32, (slots,), elements=st.floats(0, 1, width=32)))
    got = jitted(weights)(q, keys, strengths)
    np.testing.assert_allclose(got, twin(q, keys, strengths), atol=2e-5)
    assert np.all(np.asarray(got) >= 0)


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 30.0])
def test_softmax_temperature(temperature):
    q, keys, strengths = random_memory(0, slots=4)
    twin = softmax_twin(q, keys, strengths, temperature)
    got = ops.softmax_distance_weights(q, keys, strengths, jnp.float32(temperature))
    np.testing.assert_allclose(got, twin, atol=2e-5)


def test_dot_product_sharpness_is_one_where_it_is_not_given():
    q, keys, strengths = random_memory(0, slots=4)
    np.testing.assert_allclose(
        ops.dot_product_weights(q, keys, strengths), dot_product_twin(q, keys, strengths), atol=1e-6
    )


@each_weighting
def test_weights_are_uniform_where_all_strengths_are_zero(weights, twin):
    q, keys, _ = random_memory(1, slots=5)
    np.testing.assert_allclose(weights(q, keys, jnp.zeros(5)), 0.2, atol=0.01)  # the total is 5e-9, beside 1e-10


@each_weighting
def test_leading_axes_are_independent_rows(weights, twin):
    generator = np.random.default_rng(2)
    q, keys = generator.normal(size=(2, 3, 2)), generator.normal(size=(2, 3, 4, 2))
    strengths, mask = generator.uniform(size=(2, 3, 4)), generator.uniform(size=(2, 3, 4)) < 0.7
    mask[..., 0] = True
    got = weights(*(jnp.asarray(x, jnp.float32) for x in (q, keys, strengths)), jnp.asarray(mask))
    for row in np.ndindex(2, 3):
        on = mask[row]
        np.testing.assert_allclose(got[row][on], twin(q[row], keys[row][on], strengths[row][on]), atol=2e-5)
    moved = ops.rotate(jnp.asarray(keys[..., [0, 1, 1]]), jnp.asarray([0.0, 0.6, 0.8]), jnp.asarray(strengths))
    for row in np.ndindex(2, 3, 4):
        expected = rodrigues_twin(keys[row][[0, 1, 1]], [0, 0.6, 0.8], strengths[row])
        np.testing.assert_allclose(moved[row], expected, atol=1e-5)


def random_memory(seed, slots, size=2):
    generator = np.random.default_rng(seed)
    q, keys = generator.normal(size=size), generator.normal(size=(slots, size))
    return tuple(jnp.asarray(x, jnp.float32) for x in (q, keys, generator.uniform(0.1, 1, slots)))


# Coincident points ----------------------------------------------------------------------------------------------------


def test_all_weight_goes_to_the_slot_the_head_stands_on():
    _, keys, strengths = random_memory(3, slots=4)
    got = ops.inverse_square_weights(keys[2], keys, strengths)
    np.testing.assert_allclose(got, np.eye(4)[2], atol=1e-6)
    cold = ops.softmax_distance_weights(keys[2], keys, strengths, jnp.float32(1e-4))
    np.testing.assert_allclose(cold, np.eye(4)[2], atol=1e-6)


def test_slots_with_the_same_key_share_by_strength():
    _, keys, strengths = random_memory(4, slots=4)
    keys = keys.at[3].set(keys[1])
    got = ops.inverse_square_weights(keys[1], keys, strengths)
    shares = strengths * jnp.asarray([0.0, 1.0, 0.0, 1.0])
    np.testing.assert_allclose(got, shares / shares.sum(), atol=1e-6)


@by_distance
@pytest.mark.parametrize("offset", [0.0, 1e-12, 1e-7, 1e-5, 1e-3])
def test_values_and_gradients_are_finite_near_coincidence(name, offset):
    weights, twin = WEIGHTINGS[name]
    _, keys, strengths = random_memory(5, slots=4)
    keys = keys.at[3].set(keys[1])
    q = keys[1] + offset
    np.testing.assert_allclose(weights(q, keys, strengths), twin(np.float64(q), keys, strengths), atol=2e-5)
    backward = jax.jit(jax.grad(lambda *x: jnp.sum(weights(*x) * jnp.arange(4.0)), argnums=(0, 1, 2)))
    gradients = backward(q, keys, strengths)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in gradients)
    everywhere = jnp.broadcast_to(q, keys.shape)  # every slot at the head
    np.testing.assert_allclose(weights(q, everywhere, jnp.ones(4)), 0.25, atol=1e-6)
    gradients = backward(q, everywhere, strengths)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in gradients)


@by_distance
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_weights_are_finite_at_any_scale(name, scale):
    weights, twin = WEIGHTINGS[name]
    q, keys, strengths = random_memory(6, slots=4)
    q, keys = q * scale, keys * scale
    got = weights(q, keys, strengths)
    np.testing.assert_allclose(got, twin(np.float64(q), keys, strengths), atol=1e-4)
    assert bool(jnp.all(jnp.isfinite(jax.jacobian(weights)(q, keys, strengths))))


# Masks ----------------------------------------------------------------------------------------------------------------


@each_weighting
@given(st.data())
def test_masked_slots_are_zero_and_their_contents_do_not_matter(weights, twin, data):
    q, keys, strengths = random_memory(data.draw(st.integers(0, 99)), slots=4)
    mask = data.draw(hnp.arrays(np.bool_, (4,)))
    garbage = st.floats(-1e6, 1e6, width=32)
    other = data.draw(hnp.arrays(np.float32, (4, 2), elements=garbage))
    strength = data.draw(hnp.arrays(np.float32, (4,), elements=garbage))
    got = jitted(weights)(q, keys, strengths, mask)
    dirty = jitted(weights)(q, np.where(mask[:, None], keys, other), np.where(mask, strengths, strength), mask)
    np.testing.assert_array_equal(got, dirty)
    assert np.all(np.asarray(got)[~mask] == 0)
    if mask.any():
        expected = twin(q, np.asarray(keys)[mask], np.asarray(strengths)[mask])
        np.testing.assert_allclose(np.asarray(got)[mask], expected, atol=2e-5)


@each_weighting
@pytest.mark.parametrize("mask", [[True, False, True], [False] * 3], ids=["some", "all_masked"])
def test_masked_slots_have_no_gradient(weights, twin, mask):
    q, keys, strengths = random_memory(7, slots=3)
    mask = np.asarray(mask)
    keys = jnp.where(mask[:, None], keys, 1e6)

    def read(*arguments):
        return jnp.sum(weights(*arguments, jnp.asarray(mask)) * jnp.arange(1.0, 4.0))

    gradients = jax.jit(jax.grad(read, argnums=(0, 1, 2)))(q, keys, strengths)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in gradients)
    for of_slots in gradients[1:]:
        assert np.all(np.asarray(of_slots)[~mask] == 0)
    if not mask.any():
        np.testing.assert_array_equal(weights(q, keys, strengths, jnp.asarray(mask)), np.zeros(3))
        np.testing.assert_array_equal(gradients[0], np.zeros(2))


@given(hnp.arrays(np.float32, (5,), elements=st.floats(-200, 200, width=32)), hnp.arrays(np.bool_, (5,)))
def test_masked_softmax(logits, mask):
    got = np.asarray(ops.masked_softmax(logits, jnp.asarray(mask)))
    assert np.all(got[~mask] == 0)
    if mask.any():
        exponentials = np.exp(logits[mask].astype(np.float64) - logits[mask].max())
        np.testing.assert_allclose(got[mask], exponentials / exponentials.sum(), atol=1e-6)
    if mask.all():
        np.testing.assert_allclose(got, ops.masked_softmax(logits, None), atol=1e-6)
    unknown = jnp.where(mask, logits, jnp.nan)
    jacobian = jax.jacrev(ops.masked_softmax)(unknown, jnp.asarray(mask))
    np.testing.assert_allclose(jacobian, np.diag(got) - np.outer(got, got), atol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(ops.masked_softmax)(unknown, jnp.asarray(mask)), jacobian, atol=1e-6)


# Gradients and types --------------------------------------------------------------------------------------------------


@each_weighting
@pytest.mark.parametrize("slots", [1, 4])
def test_gradients_equal_central_differences_of_the_twin(weights, twin, slots):
    q, keys, strengths = random_memory(8, slots, size=3)
    direction = np.random.default_rng(9).normal(size=slots)
    backward = jax.jit(jax.grad(lambda *x: jnp.sum(weights(*x) * direction.astype(np.float32)), argnums=(0, 1, 2)))
    gradients = backward(q, keys, strengths)
    arguments = [np.asarray(x, np.float64) for x in (q, keys, strengths)]
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in arguments]
                moved[which][index] += step
                ends.append(np.dot(direction, twin(*moved)))
            np.testing.assert_allclose(gradient[index], (ends[0] - ends[1]) / 2e-5, atol=2e-4)


def test_gradient_of_a_rotation_equals_central_differences():
    position, axis, angle = np.array([0.3, -0.8, 0.5]), np.array([0.0, 0.6, 0.8]), 0.7
    direction = np.array([1.0, -2.0, 0.5])
    gradient = jax.grad(lambda angle: jnp.dot(ops.rotate(position, axis, angle), direction))(angle)
    ends = [rodrigues_twin(position, axis, angle + step) @ direction for step in (1e-5, -1e-5)]
    np.testing.assert_allclose(gradient, (ends[0] - ends[1]) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dtype_is_kept(dtype):
    q, keys, strengths = (x.astype(dtype) for x in random_memory(10, slots=4, size=3))
    for result in (
        ops.inverse_square_weights(q, keys, strengths),
        ops.softmax_distance_weights(q, keys, strengths, jnp.ones((), dtype)),
        ops.dot_product_weights(q, keys, strengths),
        ops.translate(q, q),
        ops.rotate(q, ops.unit(q), jnp.ones((), dtype)),
        ops.bounded(q),
    ):
        assert result.dtype == dtype
        assert bool(jnp.all(jnp.isfinite(result)))


@each_weighting
def test_float64_agrees_to_float64_precision(weights, twin):
    with jax.enable_x64(True):
        q, keys, strengths = (jnp.asarray(np.asarray(x), jnp.float64) for x in random_memory(11, slots=4))
        got = np.asarray(weights(q, keys, strengths))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, twin(np.asarray(q), np.asarray(keys), np.asarray(strengths)), atol=1e-9)


@pytest.mark.parametrize("weights", [ops.inverse_square_weights, ops.softmax_distance_weights, ops.dot_product_weights])
def test_masked_keys_have_no_effect_even_if_they_are_not_finite(weights):
    temperature = {"temperature": jnp.float32(1)} if weights is ops.softmax_distance_weights else {}
    mask, strengths = jnp.array([True, False, True]), jnp.ones(3)

    def read(position, other):
        keys = jnp.array([[1.0, 2.0], [other, 0.0], [3.0, 4.0]])
        return jnp.sum(jnp.sin(weights(position, keys, strengths, mask=mask, **temperature)))

    for got, expected in zip(*(jax.value_and_grad(read)(jnp.ones(2), x) for x in (jnp.inf, 0.0)), strict=True):
        np.testing.assert_array_equal(got, expected)
