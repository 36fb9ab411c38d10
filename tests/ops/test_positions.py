"""Encodings of positions against loops in NumPy."""

from __future__ import annotations

import jax
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


# --- encodings of pairs -----------------------------------------------------------------------------------------------

QUERIES, KEYS = np.array([0, 3, 7, 40, 300]), np.array([0, 1, 7, 8, 41, 299, 1000])


def test_rotary_products_against_complex_numbers():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(5, 8)), rng.normal(size=(7, 8))
    turned = ops.rotary(jnp.asarray(query, jnp.float32), jnp.asarray(QUERIES))
    other = ops.rotary(jnp.asarray(key, jnp.float32), jnp.asarray(KEYS))
    wanted = np.zeros((5, 7))
    for i, p in enumerate(QUERIES):
        for j, s in enumerate(KEYS):
            for pair in range(4):
                a = complex(*query[i, 2 * pair : 2 * pair + 2])
                b = complex(*key[j, 2 * pair : 2 * pair + 2])
                angle = (p - s) * 10_000 ** (-2 * pair / 8)
                wanted[i, j] += (a * b.conjugate() * complex(np.cos(angle), np.sin(angle))).real
    np.testing.assert_allclose(turned @ other.T, wanted, atol=5e-4)  # Angles of 1000 in float32.
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(query, axis=-1), rtol=1e-5)
    with pytest.raises(ValueError, match="width is 5, which is odd"):
        ops.rotary(jnp.ones((2, 5)), jnp.arange(2))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2.0**-h for h in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_falls_with_the_distance(heads, slopes):
    got = ops.alibi(jnp.asarray(QUERIES), jnp.asarray(KEYS), heads)
    distance = np.abs(QUERIES[:, None] - KEYS[None, :])
    np.testing.assert_allclose(got, -np.array(slopes)[:, None, None] * distance, rtol=1e-6)


def bucket(behind, buckets, furthest, causal):
    """One pair, in plain Python."""
    first = 0
    if causal:
        behind = max(behind, 0)
    else:
        buckets //= 2
        if behind < 0:
            first, behind = buckets, -behind
    near = buckets // 2
    if behind < near:
        return first + behind
    share = np.log(np.float32(behind) / np.float32(near)) / np.log(np.float32(furthest / near))
    return first + min(near + int(share * (buckets - near)), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20)])
def test_t5_buckets_against_a_loop(buckets, furthest, causal):
    queries, keys = np.arange(0, 300, 7), np.arange(0, 300, 11)
    got = ops.t5_buckets(jnp.asarray(queries), jnp.asarray(keys), buckets=buckets, furthest=furthest, causal=causal)
    wanted = [[bucket(int(i - j), buckets, furthest, causal) for j in keys] for i in queries]
    # A ratio of logarithms that is an integer may fall to either side of it in float32.
    assert np.abs(np.asarray(got) - wanted).max() <= 1
    assert (np.asarray(got) != wanted).mean() < 0.01
    assert (np.min(got), np.max(got)) == (0, buckets - 1)


def test_t5_buckets_refuse_too_few():
    with pytest.raises(ValueError, match="buckets is 2 and furthest 128: there must be at least 4"):
        ops.t5_buckets(jnp.arange(2), jnp.arange(2), buckets=2)
    with pytest.raises(ValueError, match="more than 8, the number of distances that have a bucket"):
        ops.t5_buckets(jnp.arange(2), jnp.arange(2), furthest=8)


def test_fire_distances_against_a_loop():
    scale, threshold = 0.3, 5.0
    got = ops.fire_distances(jnp.asarray(QUERIES), jnp.asarray(KEYS), jnp.float32(scale), jnp.float32(threshold))
    for i, p in enumerate(QUERIES):
        for j, s in enumerate(KEYS):
            wanted = np.log(scale * abs(p - s) + 1) / np.log(scale * max(p, s, threshold) + 1) * np.sign(p - s)
            np.testing.assert_allclose(got[i, j], wanted, rtol=2e-6)
    assert (np.abs(got) <= 1).all()


def test_fire_has_finite_gradients_at_position_zero():
    def total(scale, threshold):
        return ops.fire_distances(jnp.zeros(1, int), jnp.arange(3), scale, threshold).sum()

    assert np.isfinite(jax.grad(total, argnums=(0, 1))(jnp.float32(0.1), jnp.float32(2.0))).all()


def test_relative_logits_against_a_loop():
    rng = np.random.default_rng(1)
    vectors, table = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 21, 4))
    got = ops.relative_logits(*map(jnp.asarray, (vectors, table, QUERIES, KEYS)))
    assert got.shape == (2, 5, 7)
    for head in range(2):
        for i, p in enumerate(QUERIES):
            for j, s in enumerate(KEYS):
                offset = min(max(p - s, -10), 10)
                np.testing.assert_allclose(got[head, i, j], vectors[head, i] @ table[head, offset + 10], rtol=1e-4)
    with pytest.raises(ValueError, match="20 rows"):
        ops.relative_logits(jnp.ones((5, 4)), jnp.ones((20, 4)), jnp.arange(5), jnp.arange(5))


def test_sinusoidal_logits_are_those_of_a_table_of_offsets():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(2, 5, 6))
    got = ops.sinusoidal_logits(*map(jnp.asarray, (vectors.astype(np.float32), QUERIES, KEYS)))
    for i, p in enumerate(QUERIES):
        wanted = vectors[:, i] @ twin(KEYS - p, 6).T
        np.testing.assert_allclose(got[:, i], wanted, atol=5e-4)  # Angles of 1000 in float32.


def test_shifted():
    for n in (1, 2, 5):
        x = np.random.default_rng(n).normal(size=(3, n, 2 * n - 1)).astype(np.float32)
        wanted = [[[x[b, i, j - i + n - 1] for j in range(n)] for i in range(n)] for b in range(3)]
        np.testing.assert_array_equal(ops.shifted(jnp.asarray(x)), wanted)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (40,)])
def test_offset_logits_against_a_loop(batch: tuple[int, ...]):
    """Few sequences take all offsets of each query, many take a window of the table for each query."""
    rng = np.random.default_rng(3)
    for n in (1, 6):
        vectors, table = rng.normal(size=(*batch, n, 2, 5)), rng.normal(size=(2 * n - 1, 2, 5))
        given = jnp.asarray(vectors, jnp.float32), jnp.asarray(table, jnp.float32)
        weights = rng.normal(size=(*batch, 2, n, n))
        wanted, of_vectors, of_table = np.zeros(weights.shape), np.zeros_like(vectors), np.zeros_like(table)
        for i, j in np.ndindex(n, n):
            row = j - i + n - 1
            wanted[..., i, j] = (vectors[..., i, :, :] * table[row]).sum(-1)
            pull = weights[..., i, j][..., None]
            of_vectors[..., i, :, :] += pull * table[row]
            of_table[row] += (pull * vectors[..., i, :, :]).reshape(-1, 2, 5).sum(0)
        got, pullback = jax.vjp(jax.jit(ops.offset_logits), *given)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        gradients = pullback(jnp.asarray(weights, jnp.float32))
        for mine, true in zip(gradients, (of_vectors, of_table), strict=True):
            np.testing.assert_allclose(mine, true, atol=2e-5)
    with pytest.raises(ValueError, match="10 rows; 6 positions need 11"):
        ops.offset_logits(given[0], jnp.ones((10, 2, 5)))


SHIFTED = {
    "rotary": lambda q, k: ops.rotary(jnp.ones((len(q), 4)), q) @ ops.rotary(jnp.ones((len(k), 4)), k).T,
    "alibi": lambda q, k: ops.alibi(q, k, 2),
    "t5": lambda q, k: ops.t5_buckets(q, k),
    "t5_causal": lambda q, k: ops.t5_buckets(q, k, causal=True),
    "relative": lambda q, k: ops.relative_logits(
        jnp.ones((len(q), 3)), jnp.arange(60.0).reshape(-1, 3)[:19] ** 0.5, q, k
    ),
    "relative_sinusoids": lambda q, k: ops.sinusoidal_logits(jnp.ones((len(q), 4)), q, k),
}
SEGMENTS = SHIFTED | {
    "fire": lambda q, k: ops.fire_distances(q, k, jnp.float32(0.1), jnp.float32(4.0)),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_only_distances_matter(name):
    queries, keys = jnp.arange(9), jnp.arange(3, 15)
    logits = jax.jit(SHIFTED[name])
    here, there = logits(queries, keys), logits(queries + 100, keys + 100)
    np.testing.assert_allclose(there, here, atol=1e-4)


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_is_a_part_of_the_whole(name):
    logits = jax.jit(SEGMENTS[name])
    whole, part = logits(np.arange(12), np.arange(12)), logits(np.arange(4, 9), np.arange(2, 7))
    np.testing.assert_allclose(part, whole[..., 4:9, 2:7], rtol=1e-5, atol=1e-6)


# --- random positions -------------------------------------------------------------------------------------------------


def test_random_positions_ascend_and_every_subset_is_equally_likely():
    lengths = jnp.full((6000,), 2)
    drawn = np.asarray(ops.random_positions(jax.random.key(0), lengths, 3, 4))[:, :2]
    assert (np.diff(drawn, axis=1) > 0).all()
    subsets, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(subsets) == 6
    assert (np.abs(counts - 1000) < 5 * 30).all()  # Binomial(6000, 1/6) has a deviation of 29.


def test_random_positions_do_not_depend_on_the_capacity():
    lengths = jnp.array([1, 3, 5])
    small = ops.random_positions(jax.random.key(1), lengths, 5, 9)
    large = ops.random_positions(jax.random.key(1), lengths, 30, 9)
    assert large.shape == (3, 30)
    for row, length in enumerate([1, 3, 5]):
        np.testing.assert_array_equal(large[row, :length], small[row, :length])
        assert len(set(small[row, :length].tolist())) == length
    full = ops.random_positions(jax.random.key(1), jnp.array([9]), 9, 9)
    np.testing.assert_array_equal(full[0], np.arange(9))
    with pytest.raises(ValueError, match="maximum must be at least 1"):
        ops.random_positions(jax.random.key(1), lengths, 5, 0)


def test_constant_gates_forget_as_alibi_does():
    """A gate of e^-m at every position is a slope of m; pairs to the right have no bias here."""
    slope = 2.0**-4
    bias = ops.forgetting(jnp.full((1, 9), -slope))[0]
    distance = np.arange(9)[:, None] - np.arange(9)
    np.testing.assert_allclose(bias, np.where(distance >= 0, -slope * distance, 0), atol=1e-6)


def test_gates_in_half_precision_and_closed_ones():
    gates = (-jnp.abs(jax.random.normal(jax.random.key(0), (1000,)))).astype(jnp.bfloat16)
    np.testing.assert_allclose(jnp.diagonal(ops.forgetting(gates), -1), gates[1:], atol=1e-3)
    bias = ops.forgetting(jnp.array([0.0, -1, -jnp.inf, -1]))
    np.testing.assert_allclose(bias[3], [bias[3, 0], bias[3, 1], -1, 0], atol=1e-4)
    assert np.all(np.isfinite(bias)) and bias[3, 1] < -100


def test_forgetting_sums_the_gates_since():
    gates = -np.random.default_rng(0).exponential(size=(2, 7))
    expected = [[[gates[b, j + 1 : i + 1].sum() for j in range(7)] for i in range(7)] for b in range(2)]
    np.testing.assert_allclose(ops.forgetting(jnp.asarray(gates, jnp.float32)), expected, atol=1e-5)
