"""`lenmem.ops.addressing` against float64 twins written from the equations, and properties for any input."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem import ops

N, R, W = 6, 3, 4


def shares(*shape):
    """Numbers in [0, 1], including the ends and repetitions."""
    some = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32, allow_subnormal=False))
    return hnp.arrays(np.float32, shape, elements=some)


def weights(*shape):
    """Non-negative, with a sum of at most 1 over the last axis."""
    return shares(*shape).map(lambda x: (x / np.maximum(1, x.sum(-1, keepdims=True))).astype(np.float32))


def numbers(*shape):
    return hnp.arrays(np.float32, shape, elements=st.floats(-3, 3, width=32, allow_subnormal=False))


def generated(seed, *shapes):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


jitted = functools.cache(jax.jit)
"""One program for a function of this module or of `ops`; a function made inside a test would be compiled again."""
plain_content_weights = functools.partial(ops.content_weights, plain_lengths=True)


def pulled_through_allocation(usage, cotangent):
    return jax.vjp(ops.allocation_weights, usage)[1](cotangent)[0]


gradient_of_sharpened = jax.grad(lambda d, s: ops.sharpen_directional(d, s)[:, 0].sum())


# Content --------------------------------------------------------------------------------------------------------------


def content_twin(memory, keys, strengths, mask=None, below_root=1e-6):
    result = np.zeros((len(keys), len(memory)))
    for r, key in enumerate(np.asarray(keys, np.float64)):
        m = np.ones(len(key)) if mask is None else np.asarray(mask[r], np.float64)
        for i, row in enumerate(np.asarray(memory, np.float64)):
            lengths = [np.sqrt(np.sum((x * m) ** 2) + below_root) for x in (key, row)]
            result[r, i] = strengths[r] * np.dot(key * m, row * m) / (lengths[0] * lengths[1] + 1e-6)
    return softmax(result)


@given(numbers(N, W), numbers(R, W), hnp.arrays(np.float32, R, elements=st.floats(1, 10, width=32)), shares(R, W))
def test_content_equals_its_twin(memory, keys, strengths, mask):
    memory[1] = 0
    got = jitted(ops.content_weights)(memory, keys, strengths)
    np.testing.assert_allclose(got, content_twin(memory, keys, strengths), atol=1e-5)
    got = jitted(ops.content_weights)(memory, keys, strengths, mask=mask)
    np.testing.assert_allclose(got, content_twin(memory, keys, strengths, mask), atol=1e-5)
    got = jitted(plain_content_weights)(memory, keys, strengths, mask=mask)
    np.testing.assert_allclose(got, content_twin(memory, keys, strengths, mask, below_root=0), atol=1e-5)


def test_a_mask_of_ones_is_none_and_masked_columns_do_not_count():
    memory, keys = generated(0, (N, W), (R, W))
    strengths, mask = np.full(R, 3.0, np.float32), np.ones((R, W), np.float32)
    content_weights = jitted(ops.content_weights)
    plain = np.asarray(content_weights(memory, keys, strengths))
    np.testing.assert_allclose(content_weights(memory, keys, strengths, mask=mask), plain, atol=1e-6)
    mask[:, 2] = 0
    masked = np.asarray(content_weights(memory, keys, strengths, mask=mask))
    other = memory.copy()
    other[:, 2] = 100
    np.testing.assert_allclose(content_weights(other, keys, strengths, mask=mask), masked, atol=1e-6)
    assert np.abs(masked - plain).max() > 0.01


def test_lengths_differ_where_rows_are_short():
    """A row of length 1e-3 along the key has the cosine 1e-3 / (1e-3 + 1e-6) as published, else about 0.7."""
    memory, key, strength = np.array([[1e-3, 0], [0, 1]], np.float32), np.array([[1.0, 0]], np.float32), np.ones(1)
    forms = plain_content_weights, ops.content_weights
    plain, ours = (np.asarray(jitted(form)(memory, key, strength))[0] for form in forms)
    np.testing.assert_allclose(np.log(plain[0] / plain[1]), 1e-3 / (1e-3 + 1e-6), rtol=1e-5)
    np.testing.assert_allclose(np.log(ours[0] / ours[1]), 0.5**0.5, rtol=1e-3)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_empty_memory_and_keys_have_finite_gradients(masked, plain):
    mask = np.zeros((R, W), np.float32) if masked else None

    def first(memory, keys, strengths):
        return ops.content_weights(memory, keys, strengths, mask=mask, plain_lengths=plain)[:, 0].sum()

    arguments = np.zeros((N, W), np.float32), np.zeros((R, W), np.float32), np.ones(R, np.float32)
    value, gradients = jax.jit(jax.value_and_grad(first, argnums=(0, 1, 2)))(*arguments)
    np.testing.assert_allclose(value, R / N, atol=1e-6)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


# Usage and allocation -------------------------------------------------------------------------------------------------


@given(shares(N), shares(N), shares(R, N), shares(R))
def test_usage_equals_its_twin_and_stays_in_range(usage, written, read, free):
    got = np.asarray(jitted(ops.update_usage)(usage, written, read, free))
    u, w, r, f = (x.astype(np.float64) for x in (usage, written, read, free))
    psi = np.array([np.prod([1 - f[k] * r[k, i] for k in range(R)]) for i in range(N)])
    np.testing.assert_allclose(got, (u + w - u * w) * psi, atol=1e-6)
    np.testing.assert_allclose(jitted(ops.retention)(read, free), psi, atol=1e-6)
    assert got.min() >= 0 and got.max() <= 1


def test_usage_stops_the_gradient_of_the_write_weights_unless_told_not_to():
    usage, written = np.full(N, 0.5, np.float32), np.full(N, 0.1, np.float32)
    read, free = np.full((R, N), 0.1, np.float32), np.full(R, 0.5, np.float32)

    def gradient(**options):
        return jax.jit(jax.grad(lambda w: ops.update_usage(usage, w, read, free, **options).sum()))(written)

    np.testing.assert_array_equal(gradient(), 0)
    np.testing.assert_allclose(gradient(stop_gradient=False), 0.5 * 0.95**R, atol=1e-6)


def raised(usage):
    return 1e-6 + (1 - 1e-6) * usage.astype(np.float64)


def allocation_twin(usage, order=None):
    """The free list, walked in the order of float32 usage as in the operation."""
    u = raised(usage)
    if order is None:
        seen = np.float32(1e-6) + np.float32(1 - 1e-6) * usage.astype(np.float32)
        order = sorted(range(len(u)), key=lambda i: (seen[i], i))
    result, product = np.zeros(len(u)), 1.0
    for i in order:
        result[i] = (1 - u[i]) * product
        product *= u[i]
    return result


@given(shares(N))
def test_allocation_equals_its_twin(usage):
    got = np.asarray(jitted(ops.allocation_weights)(usage), np.float64)
    np.testing.assert_allclose(got, allocation_twin(usage), atol=1e-6)
    np.testing.assert_allclose(got.sum(), 1 - np.prod(raised(usage)), atol=1e-6)
    assert got.min() >= 0


def test_allocation_of_empty_equal_and_full_memories():
    allocation_weights = jitted(ops.allocation_weights)
    np.testing.assert_allclose(allocation_weights(np.zeros(4, np.float32)), [1 - 1e-6, 1e-6, 0, 0], atol=1e-7)
    halves = allocation_weights(np.array([1.0, 0.5, 0.5, 1.0], np.float32))
    np.testing.assert_allclose(halves, [0, 0.5, 0.25, 0], atol=1e-6)
    np.testing.assert_array_equal(allocation_weights(np.ones(4, np.float32)), 0)
    np.testing.assert_array_equal(allocation_weights(np.ones(1, np.float32)), 0)


@given(shares(2, N), numbers(2, N))
def test_gradient_of_allocation_is_that_of_the_walk_in_a_fixed_order(usage, direction):
    usage[0, 0] = usage[0, 1]
    got = np.asarray(jitted(pulled_through_allocation)(usage, direction))
    for row in range(2):
        seen = np.float32(1e-6) + np.float32(1 - 1e-6) * usage[row]
        order = sorted(range(N), key=lambda i, seen=seen: (seen[i], i))
        for i in range(N):
            moved = [usage[row].astype(np.float64) + sign * 1e-6 * np.eye(N)[i] for sign in (1, -1)]
            ends = [np.dot(direction[row], allocation_twin(u, order)) for u in moved]
            np.testing.assert_allclose(got[row, i], (ends[0] - ends[1]) / 2e-6, atol=1e-4)


def test_allocation_is_the_same_where_all_pairs_are_compared_at_once(monkeypatch):
    usage, direction = generated(1, (5, 7, N), (5, 7, N))
    usage = np.round(np.clip(np.abs(usage), 0, 1), 1)  # with ties

    def both(usage):
        value, pull = jax.vjp(ops.allocation_weights, usage)
        return value, pull(direction)[0]

    in_a_loop = jax.jit(lambda usage: both(usage))(usage)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *, cpu, default: default())
    at_once = jax.jit(lambda usage: both(usage))(usage)  # A new function: the trace of the old one is cached.
    for got, expected in zip(at_once, in_a_loop, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)


# Writing --------------------------------------------------------------------------------------------------------------


@given(numbers(N, W), weights(R, N), shares(R, W), numbers(R, W))
def test_erase_and_write_equals_its_twin(memory, where, erase, vector):
    got = jitted(ops.erase_and_write)(memory, where, erase, vector)
    expected = memory.astype(np.float64)
    for i in range(N):
        for r in range(R):
            expected[i] = expected[i] * (1 - np.float64(where[r, i]) * erase[r])
    for i in range(N):
        for r in range(R):
            expected[i] = expected[i] + np.float64(where[r, i]) * vector[r]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_array_equal(jitted(ops.erase_and_write)(memory, 0 * where, erase, vector), memory)


def test_a_whole_write_replaces_a_row():
    (memory,) = generated(0, (N, W))
    written = np.eye(N, dtype=np.float32)[2:3], np.ones((1, W)), np.full((1, W), 7.0)
    got = np.asarray(jitted(ops.erase_and_write)(memory, *written))
    np.testing.assert_allclose(got[2], 7)
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(memory, 2, 0))


# The order of writing -------------------------------------------------------------------------------------------------


def link_twin(link, precedence, w):
    new = np.zeros_like(link)
    for i in range(N):
        for j in range(N):
            if i != j:
                new[i, j] = (1 - w[i] - w[j]) * link[i, j] + w[i] * precedence[j]
    return new, (1 - w.sum()) * precedence + w


@given(weights(5, N), weights(R, N))
def test_links_equal_their_twin_and_stay_in_range(writes, read):
    link, precedence = np.zeros((N, N), np.float32), np.zeros(N, np.float32)
    exact = link.astype(np.float64), precedence.astype(np.float64)
    for w in writes:
        link, precedence = jitted(ops.update_temporal_link)(link, precedence, w)
        exact = link_twin(*exact, w.astype(np.float64))
    np.testing.assert_allclose(link, exact[0], atol=1e-6)
    np.testing.assert_allclose(precedence, exact[1], atol=1e-6)
    link = np.asarray(link)
    np.testing.assert_array_equal(np.diag(link), 0)
    assert link.min() >= -1e-6 and max(link.sum(0).max(), link.sum(1).max(), np.sum(precedence)) <= 1 + 1e-5
    forward, backward = jitted(ops.directional_weights)(link, read)
    np.testing.assert_allclose(forward, [exact[0] @ r for r in read], atol=1e-6)
    np.testing.assert_allclose(backward, [exact[0].T @ r for r in read], atol=1e-6)


def test_links_lead_from_each_written_slot_to_the_next():
    link, precedence, slots = np.zeros((N, N), np.float32), np.zeros(N, np.float32), np.eye(N, dtype=np.float32)
    for slot in (2, 0, 5):
        link, precedence = jitted(ops.update_temporal_link)(link, precedence, slots[slot])
    forward, backward = jitted(ops.directional_weights)(link, slots[[2, 0, 5]])
    np.testing.assert_array_equal(forward, [np.eye(N)[0], np.eye(N)[5], np.zeros(N)])
    np.testing.assert_array_equal(backward, [np.zeros(N), np.eye(N)[2], np.eye(N)[0]])
    np.testing.assert_array_equal(precedence, np.eye(N)[5])


def test_gradient_of_directional_weights_is_that_of_the_products():
    link, read, f, b = generated(2, (2, N, N), (2, R, N), (2, R, N), (2, R, N))

    def by_products(link, read):
        return read @ jnp.swapaxes(link, -1, -2), read @ link

    @jax.jit
    def gradients(link, read):
        return [jax.vjp(function, link, read)[1]((f, b)) for function in (ops.directional_weights, by_products)]

    got, expected = gradients(link, read)
    for mine, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


@given(weights(R, N), hnp.arrays(np.float32, R, elements=st.floats(1, 20, width=32)))
def test_sharpened_links_equal_their_twin(direction, sharpness):
    got = jitted(ops.sharpen_directional)(direction, sharpness)
    raised = direction.astype(np.float64) + 1e-6
    powers = (raised / raised.max(-1, keepdims=True)) ** sharpness[:, None]
    np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), atol=1e-4)
    gradient = jitted(gradient_of_sharpened)(0 * direction, sharpness)
    assert np.all(np.isfinite(gradient))


def test_what_has_a_gradient_of_its_own_can_be_differentiated_forward():
    """Allocation and directional weights: directional derivatives equal finite differences in both modes; the Hessian
    is symmetric and equals the slope of the gradient."""
    usage, link, read, *towards = (np.abs(x) / 4 for x in generated(3, (N,), (N, N), (R, N), (N,), (N, N), (R, N)))
    arguments, towards = (usage, link, read), tuple(towards)

    def loss(usage, link, read):
        forward, backward = ops.directional_weights(link, read)
        return jnp.sum(jnp.sin(ops.allocation_weights(usage) + 2 * forward[0])) + jnp.sum(forward * backward)

    @jax.jit
    def derivatives(*arguments):
        gradients, along = jax.jvp(jax.grad(loss, (0, 1, 2)), arguments, towards)
        return jax.jvp(loss, arguments, towards)[1], gradients, along, jax.hessian(loss)(*arguments)

    slope, gradients, along, second = derivatives(*arguments)
    np.testing.assert_allclose(slope, sum(np.sum(g * t) for g, t in zip(gradients, towards, strict=True)), rtol=1e-5)
    (_, up, *_), (_, down, *_) = (
        derivatives(*(x + step * t for x, t in zip(arguments, towards, strict=True))) for step in (1e-3, -1e-3)
    )
    for mine, first, last in zip(along, up, down, strict=True):
        np.testing.assert_allclose(mine, (first - last) / 2e-3, atol=5e-3)
    np.testing.assert_allclose(second, second.T, atol=1e-4)


# Moving by location ---------------------------------------------------------------------------------------------------


@given(shares(R), weights(R, N), weights(R, N))
def test_interpolation(gates, content, previous):
    got = jitted(ops.interpolate)(gates, content, previous)
    expected = [g * c + (1 - g) * p for g, c, p in zip(gates.astype(np.float64), content, previous, strict=True)]
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("shifts", [1, 2, 3, 5])
@given(weights(R, N), st.data())
def test_shift_equals_the_circular_convolution(shifts, where, data):
    distribution = data.draw(weights(R, shifts))
    expected = np.zeros((R, N))
    for r in range(R):
        for i in range(N):
            for j in range(N):
                for number in range(shifts):
                    if (i - j - (number - shifts // 2)) % N == 0:
                        expected[r, i] += np.float64(where[r, j]) * distribution[r, number]
    np.testing.assert_allclose(jitted(ops.shift)(where, distribution), expected, atol=1e-6)


def test_a_shift_goes_round_and_back():
    where = np.eye(N, dtype=np.float32)[[0, N - 1]]
    to_the_right, to_the_left = np.array([[[0, 0, 1]] * 2, [[1, 0, 0]] * 2], np.float32)
    right = jitted(ops.shift)(where, to_the_right)
    np.testing.assert_array_equal(right, np.eye(N)[[1, 0]])
    np.testing.assert_array_equal(jitted(ops.shift)(right, to_the_left), where)


# All ------------------------------------------------------------------------------------------------------------------


def test_leading_axes_are_rows():
    lead = (2, 3)
    raw = generated(
        4, (*lead, N, W), (*lead, R, W), (*lead, R), (*lead, N), (*lead, R, N), (*lead, R, W), (*lead, N, N)
    )
    memory, keys, strengths, usage, read, mask, link = raw
    usage, read, mask, link = (np.clip(np.abs(x), 0, 0.9) / 3 for x in (usage, read, mask, link))
    calls = [
        (functools.partial(ops.content_weights), (memory, keys, strengths)),
        (lambda m, k, s, mask: ops.content_weights(m, k, s, mask=mask), (memory, keys, strengths, mask)),
        (ops.update_usage, (usage, usage, read, np.abs(strengths) / 9)),
        (ops.allocation_weights, (usage,)),
        (ops.erase_and_write, (memory, read, mask, keys)),
        (ops.update_temporal_link, (link, usage, usage)),
        (ops.directional_weights, (link, read)),
        (ops.sharpen_directional, (read, np.abs(strengths) + 1)),
        (ops.interpolate, (np.abs(strengths) / 9, read, read)),
        (ops.shift, (read, mask)),
    ]

    @jax.jit
    def all_of_them(arguments):
        return [function(*given) for (function, _), given in zip(calls, arguments, strict=True)]

    whole = all_of_them([arguments for _, arguments in calls])
    one = all_of_them([tuple(argument[1, 2] for argument in arguments) for _, arguments in calls])
    for got, expected in zip(jax.tree.leaves(whole), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(np.asarray(got)[1, 2], expected, atol=1e-6)
