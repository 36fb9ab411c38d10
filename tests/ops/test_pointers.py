"""`lenmem.ops.pointers` against float64 loops written from the equations."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.ops.pointers import address_bank, dereference, phase_bank, pointer_weights, sample_base

KINDS = ("cosine", "cosine_temperature", "dot")
N, D = 5, 4
bank = jax.jit(address_bank, static_argnums=(1, 2))
weigh = functools.partial(jax.jit, static_argnames="kind")(pointer_weights)
vectors = functools.partial(hnp.arrays, np.float32, elements=st.floats(-4, 4, width=32, allow_subnormal=False))


def options(kind):
    return {"kind": kind, "temperature": jnp.float32(7.0) if kind == "cosine_temperature" else None}


def bank_twin(base, length, bits):
    return [[int(bit) for bit in format((base + j) % 2**bits, f"0{bits}b")] for j in range(length)]


def weights_twin(query, keys, mask, kind):
    """One row."""
    query, keys = np.asarray(query, np.float64), np.asarray(keys, np.float64)
    logits = np.full(len(keys), -np.inf)
    for n, key in enumerate(keys):
        if mask[n] and kind == "dot":
            logits[n] = query @ key / np.sqrt(len(query))
        elif mask[n]:
            lengths = np.sqrt((query @ query + 1e-10) * (key @ key + 1e-10))
            logits[n] = (7 if kind == "cosine_temperature" else 1) * (query @ key) / lengths
    if not np.any(mask):
        return np.zeros(len(keys))
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


@given(base=st.integers(0, 100), length=st.integers(0, 16), bits=st.sampled_from([4, 6]))
def test_address_bank_counts_in_binary(base, length, bits):
    got = np.asarray(bank(jnp.asarray([base, base + 1]), length, bits))
    expected = [bank_twin(base, length, bits), bank_twin(base + 1, length, bits)]
    np.testing.assert_array_equal(got, np.reshape(expected, (2, length, bits)))
    np.testing.assert_array_equal(got, bank(jnp.asarray([base, base + 1]) + 2**bits, length, bits))


def test_the_papers_example():
    np.testing.assert_array_equal(address_bank(2, 3, 4), [[0, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]])
    np.testing.assert_array_equal(address_bank(3, 2, 2), [[1, 1], [0, 0]])


def test_phases_are_waves_with_the_periods_of_the_bits():
    got = np.asarray(phase_bank(jnp.array([5, 900]), 300, 10))
    for row, base in enumerate((5, 900)):
        angles = [[2 * np.pi * ((base + j) % 1024) / 2**k for k in range(10, 0, -1)] for j in range(300)]
        np.testing.assert_allclose(got[row], np.concatenate([np.cos(angles), np.sin(angles)], -1), atol=2e-6)


def test_to_add_one_is_a_rotation_of_phases():
    """One rotation for all addresses, including the step past the last one."""
    phases = np.asarray(jnp.concatenate([phase_bank(0, 16, 4), phase_bank(16, 1, 4)]), np.float64)
    cosine, sine = phases[:, :4], phases[:, 4:]
    turn = 2 * np.pi / 2.0 ** np.arange(4, 0, -1)
    np.testing.assert_allclose(cosine[1:], cosine[:-1] * np.cos(turn) - sine[:-1] * np.sin(turn), atol=1e-6)
    np.testing.assert_allclose(sine[1:], sine[:-1] * np.cos(turn) + cosine[:-1] * np.sin(turn), atol=1e-6)


@pytest.mark.parametrize("make", [address_bank, phase_bank])
def test_all_addresses_differ(make):
    whole = np.asarray(make(5, 16, 4)).round(4)
    assert len(np.unique(whole, axis=0)) == 16
    with pytest.raises(ValueError, match="4 bits give 16 addresses; got 17 slots"):
        make(0, 17, 4)
    with pytest.raises(ValueError, match="an address has 1 to 24 bits; got 0"):
        make(0, 1, 0)


def test_bases_are_drawn_for_each_row_over_the_whole_space():
    draws = np.asarray(sample_base(jax.random.key(0), 3, (400,)))
    assert draws.dtype == np.int32
    assert set(draws) == set(range(8))
    assert sample_base(jax.random.key(1), 10).shape == ()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_the_twin(kind):
    rng = np.random.default_rng(0)
    query, keys = rng.normal(size=(3, D)).astype(np.float32), rng.normal(size=(3, N, D)).astype(np.float32)
    keys[0, 1] = 0
    mask = np.array([[True] * N, [True, True, False, False, False], [False] * N])
    got = np.asarray(weigh(query, keys, mask=mask, **options(kind)))
    for row in range(3):
        np.testing.assert_allclose(got[row], weights_twin(query[row], keys[row], mask[row], kind), atol=1e-6)
    assert np.all(got[~mask] == 0)
    shared = np.asarray(weigh(query, keys[1], **options(kind)))
    for row in range(3):
        np.testing.assert_allclose(shared[row], weights_twin(query[row], keys[1], [True] * N, kind), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences_of_the_twin(kind):
    rng = np.random.default_rng(1)
    query, keys, towards = rng.normal(size=D), rng.normal(size=(N, D)), rng.normal(size=N)
    mask = np.arange(N) < 4

    def loss(query, keys):
        return jnp.sum(pointer_weights(query, keys, mask=jnp.asarray(mask), **options(kind)) * towards)

    gradients = jax.jit(jax.grad(loss, (0, 1)))(jnp.float32(query), jnp.float32(keys))
    flat = np.concatenate([query, keys.ravel()])
    expected = np.zeros_like(flat)
    for i in range(len(flat)):
        sides = []
        for change in (1e-6, -1e-6):
            moved = flat.copy()
            moved[i] += change
            sides.append(weights_twin(moved[:D], moved[D:].reshape(N, D), mask, kind) @ towards)
        expected[i] = (sides[0] - sides[1]) / 2e-6
    np.testing.assert_allclose(np.concatenate([g.ravel() for g in gradients]), expected, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_vectors_and_address_zero_are_safe(kind):
    def loss(query, keys):
        return jnp.sum(pointer_weights(query, keys, **options(kind)) * jnp.arange(3.0))

    addresses, both = address_bank(0, 3, 4), jax.jit(jax.value_and_grad(loss, (0, 1)))
    for query in (jnp.zeros(4), jnp.ones(4)):
        value, gradients = both(query, addresses)
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(g)) for g in gradients)
    np.testing.assert_allclose(pointer_weights(jnp.zeros(4), addresses, **options(kind)), np.full(3, 1 / 3), atol=1e-6)


@given(query=vectors(D), keys=vectors((N, D)), count=st.integers(1, N), kind=st.sampled_from(KINDS))
def test_weights_are_a_distribution_over_the_slots(query, keys, count, kind):
    mask = np.arange(N) < count
    weights = np.asarray(weigh(query, keys, mask=mask, **options(kind)))
    assert np.all(weights[count:] == 0)
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(), 1, atol=1e-5)
    order = np.array([3, 1, 4, 0, 2])
    moved = weigh(query, keys[order], mask=mask[order], **options(kind))
    np.testing.assert_allclose(moved, weights[order], atol=1e-5)
    if kind == "cosine":  # no two weights are further apart than e^1 and e^-1
        assert weights[:count].max() <= weights[:count].min() * np.exp(2) * (1 + 1e-4)


def test_a_high_temperature_points_at_one_slot():
    addresses = address_bank(jnp.int32(6), 4, 4)
    weights = pointer_weights(addresses[2], addresses, kind="cosine_temperature", temperature=jnp.float32(200.0))
    np.testing.assert_allclose(weights, [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(dereference(addresses, weights), addresses[2], atol=1e-5)


def test_dereference_is_a_weighted_sum():
    rng = np.random.default_rng(2)
    memory, weights = rng.normal(size=(2, 3, N, D)), rng.uniform(size=(2, 3, N))
    expected = sum(weights[..., n, None] * memory[..., n, :] for n in range(N))
    np.testing.assert_allclose(dereference(jnp.float32(memory), jnp.float32(weights)), expected, atol=1e-5)
    assert dereference(jnp.zeros((N, D), jnp.bfloat16), jnp.zeros(N)).dtype == jnp.bfloat16


def test_wrong_kinds_and_temperatures_are_named():
    with pytest.raises(ValueError, match="kind is 'euclid'; allowed are cosine, cosine_temperature, dot"):
        pointer_weights(jnp.ones(2), jnp.ones((3, 2)), kind="euclid")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a temperature belongs to kind 'cosine_temperature'"):
        pointer_weights(jnp.ones(2), jnp.ones((3, 2)), kind="cosine_temperature")
    with pytest.raises(ValueError, match="a temperature belongs to kind 'cosine_temperature'"):
        pointer_weights(jnp.ones(2), jnp.ones((3, 2)), kind="dot", temperature=jnp.float32(2.0))
