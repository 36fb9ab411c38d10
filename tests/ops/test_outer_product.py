"""`lenmem.ops.outer_product` against float64 loops written from the equations, and the paper's two theorems."""

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

probabilities = st.floats(0, 1, width=32)

S, K, V = 11, 5, 3
attend = functools.partial(jax.jit, static_argnames=("causal", "chunk_size", "return_carry"))(
    ops.normalized_outer_product_attention
)
linear = functools.partial(jax.jit, static_argnames=("causal", "chunk_size", "return_carry"))(ops.linear_attention)
scan = functools.partial(jax.jit, static_argnames="chunk_size")(ops.nam_scan)
step = jax.jit(ops.normalized_outer_product_step)


def arrays(*shape):
    """Moderate coordinates."""
    return hnp.arrays(np.float32, shape, elements=st.floats(-4, 4, width=32, allow_subnormal=False))


def unit_vectors(*shape):
    """Unit vectors, made from vectors that are not near zero."""
    raw = arrays(*shape).filter(lambda x: bool(np.all(np.linalg.norm(x, axis=-1) > 0.1)))
    return raw.map(lambda x: (x / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)).astype(np.float32))


def example(seed=0, length=S, batch=(2,)):
    """Queries, keys, values and the write and read probabilities of a sequence."""
    rng = np.random.default_rng(seed)
    shapes = [(*batch, length, width) for width in (K, K, V)]
    vectors = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return *vectors, *(rng.uniform(size=(*batch, length)).astype(np.float32) for _ in range(2))


# Twins, in float64 ----------------------------------------------------------------------------------------------------


def rows(function):
    """Applies a twin for one row to arrays of many rows; arguments that are None stay None."""

    def over_rows(*arguments, **options):
        if not any(x is not None and x.ndim == 3 for x in arguments):
            return function(*arguments, **options)
        per_row = [[None if x is None else np.asarray(x, np.float64)[b] for x in arguments] for b in range(2)]
        results = [function(*row, **options) for row in per_row]
        if isinstance(results[0], tuple):
            return tuple(np.stack(column) for column in zip(*results, strict=True))
        return np.stack(results)

    return over_rows


def mu(x):
    return x / np.sqrt(x @ x + 1e-10)


@rows
def attention_twin(query, key, value, write=None, read=None, mask=None, initial=None, causal=False):
    """(the reads, the last memory), by one matrix per position."""
    length = len(key)
    memories = [np.zeros((value.shape[-1], key.shape[-1])) if initial is None else initial]
    for s in range(length):
        gate = (1.0 if write is None else write[s]) * (1.0 if mask is None else mask[s])
        memories.append(memories[-1] + gate * np.outer(value[s], mu(key[s])))
    seen = memories[1:] if causal else [memories[-1]] * len(query)
    reads = [(1.0 if read is None else read[i]) * (seen[i] @ mu(query[i])) for i in range(len(query))]
    return np.stack(reads), memories[-1]


@rows
def scan_twin(keys, values, write, erase, queries, initial=None):
    """(the last memory, the reads), write by write."""
    memory = np.zeros((values.shape[-1], keys.shape[-1])) if initial is None else initial
    reads = []
    for k, v, p_w, p_e, q in zip(keys, values, write, erase, queries, strict=True):
        memory = memory + p_w * np.outer(v, k) - p_e * memory @ np.outer(k, k)
        reads.append(memory @ q)
    return memory, np.stack(reads)


@rows
def linear_twin(query, key, value, mask=None, causal=False):
    """Weights phi(q) . phi(k) over the visible keys, normalised."""

    def phi(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    weights = phi(query) @ phi(key).T
    weights = weights * (1.0 if mask is None else mask[None])
    weights = np.tril(weights) if causal else weights
    return weights @ value / (weights.sum(axis=-1, keepdims=True) + 1e-6)


def check_gradient(function, twin, arguments, seed=0):
    """The gradient of `function` along random directions equals the twin's central difference, for each argument."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=x.shape) for x in twin(*(np.asarray(x, np.float64) for x in arguments))]

    def objective(*arguments):
        return sum(jnp.sum(x * jnp.asarray(w, x.dtype)) for x, w in zip(function(*arguments), weights, strict=True))

    def twin_objective(*arguments):
        return sum(np.sum(x * w) for x, w in zip(twin(*arguments), weights, strict=True))

    exact = [np.asarray(x, np.float64) for x in arguments]
    gradients = jax.jit(jax.grad(objective, tuple(range(len(arguments)))))(*arguments)
    for i, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        moved = [[x + sign * 1e-5 * direction if i == j else x for j, x in enumerate(exact)] for sign in (1, -1)]
        expected = (twin_objective(*moved[0]) - twin_objective(*moved[1])) / 2e-5
        got = np.sum(np.asarray(gradient, np.float64) * direction)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(got - expected) < 1e-5 * scale + 1e-6, f"argument {i}"


# Primitives -----------------------------------------------------------------------------------------------------------


@given(arrays(V, K), unit_vectors(K), arrays(V))
def test_what_was_written_is_read(memory, key, value):
    """Theorem 1: RD(WR(M, k, v, 1, 1), k, 1) = v for a unit key."""
    read = ops.nam_read(ops.nam_write(memory, key, value), key)
    np.testing.assert_allclose(read, value, atol=2e-5)


@given(arrays(V, K), arrays(K), arrays(V), arrays(K), probabilities, probabilities, probabilities)
def test_primitives_are_the_equations(memory, key, value, query, write, erase, read):
    """RD and WR in float64, with any key."""
    m, k, v = (x.astype(np.float64) for x in (memory, key, value))
    expected = m + write * np.outer(v, k) - erase * m @ np.outer(k, k)
    np.testing.assert_allclose(ops.nam_write(memory, key, value, write, erase), expected, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(ops.nam_read(memory, query, read), read * m @ query.astype(np.float64), atol=1e-4)


def test_primitives_keep_the_types_apart():
    """A float32 memory stays one under bfloat16 keys, and a zero key leaves it alone."""
    memory = jnp.ones((2, V, K))
    zero = jnp.zeros((2, K), jnp.bfloat16)
    after = ops.nam_write(memory, zero, jnp.ones((2, V), jnp.bfloat16), jnp.ones(2, jnp.bfloat16), 0.5)
    np.testing.assert_array_equal(after, memory)
    assert after.dtype == jnp.float32
    assert ops.nam_read(memory, zero).dtype == jnp.bfloat16


# Normalized outer-product attention -----------------------------------------------------------------------------------


@given(arrays(K, K), arrays(4, V), hnp.arrays(np.float32, 4, elements=probabilities), st.booleans())
def test_orthonormal_keys_are_read_back(directions, value, write, causal):
    """Theorem 2: with orthonormal keys, reading with the i-th returns p_w^(i) v_i; the lengths of keys do not
    matter."""
    basis = np.linalg.qr(directions.astype(np.float64) + 10 * np.eye(K))[0][:4]
    key = (3 * basis).astype(np.float32)
    read = attend(basis.astype(np.float32), key, value, write_probability=write, causal=causal)
    np.testing.assert_allclose(read, write[:, None] * value, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_attention_is_the_sum_of_outer_products(causal, chunk_size):
    """Values and last memory, with gates, mask and an initial carry."""
    query, key, value, write, read = example()
    mask = np.arange(S) < np.array([[S], [7]])
    initial = np.random.default_rng(1).normal(size=(2, V, K)).astype(np.float32)
    got = attend(
        query,
        key,
        value,
        causal=causal,
        key_mask=mask,
        write_probability=write,
        read_probability=read,
        chunk_size=chunk_size,
        carry=initial,
        return_carry=True,
    )
    expected = attention_twin(query, key, value, write, read, mask, initial, causal=causal)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_attention(causal):
    """To everything that may be differentiated."""
    initial = np.random.default_rng(1).normal(size=(2, V, K)).astype(np.float32)

    def function(query, key, value, write, read, carry):
        return ops.normalized_outer_product_attention(
            query,
            key,
            value,
            write_probability=write,
            read_probability=read,
            carry=carry,
            causal=causal,
            chunk_size=4,
            return_carry=True,
        )

    def twin(query, key, value, write, read, carry):
        return attention_twin(query, key, value, write, read, None, carry, causal=causal)

    check_gradient(function, twin, (*example(), initial))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", [attend, linear])
def test_masked_keys_write_nothing(attention, causal):
    """Results and gradients equal those of the sequence without the masked keys, even if these are NaN."""
    query, key, value, *_ = example()
    mask = np.arange(S) < np.array([[7], [7]])
    dirty = [np.where(mask[..., None], x, np.float32(np.nan)) for x in (key, value)]

    def real(query, key, value):
        read = attention(query, key, value, key_mask=mask, causal=causal)
        return jnp.sum(jnp.where(mask[..., None], read, 0) ** 2), read

    (_, read), gradients = jax.value_and_grad(real, (0, 1, 2), has_aux=True)(query, *dirty)
    assert np.all(np.isfinite(read))
    short = attention(*(x[:, :7] for x in (query, key, value)), causal=causal)
    np.testing.assert_allclose(read[:, :7], short, rtol=1e-5, atol=1e-5)
    for gradient in gradients:
        assert np.all(np.isfinite(gradient))
        assert not np.any(gradient[:, 7:])


@pytest.mark.parametrize("causal", [False, True])
def test_zero_rows_read_and_write_nothing(causal):
    """Also their gradients are finite."""
    zeros = np.zeros((2, S, K), np.float32)
    value = example()[2]
    read, memory = attend(zeros, zeros, value, causal=causal, return_carry=True)
    assert not np.any(read) and not np.any(memory)
    gradients = jax.grad(lambda *x: jnp.sum(attend(*x, causal=causal)), (0, 1, 2))(zeros, zeros, value)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


@pytest.mark.parametrize("split", [0, 1, 5, 8, S])
def test_a_causal_sequence_may_be_split_anywhere(split):
    """The second piece needs only the carry of the first; pieces may be empty."""
    query, key, value, write, _ = example()
    whole, last = attend(query, key, value, write_probability=write, causal=True, return_carry=True)
    carry, reads = None, []
    for piece in (slice(None, split), slice(split, None)):
        read, carry = attend(
            query[:, piece],
            key[:, piece],
            value[:, piece],
            write_probability=write[:, piece],
            causal=True,
            chunk_size=4,
            carry=carry,
            return_carry=True,
        )
        reads.append(read)
    np.testing.assert_allclose(np.concatenate(reads, axis=1), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(carry, last, rtol=1e-5, atol=1e-5)


def test_steps_make_the_causal_sequence():
    """One token at a time; the carry does not grow."""
    query, key, value, write, read = example()
    whole, last = attend(
        query, key, value, write_probability=write, read_probability=read, causal=True, return_carry=True
    )
    carry = None
    for t in range(S):
        at = [x[:, t] for x in (query, key, value)]
        out, carry = step(*at, carry, write_probability=write[:, t], read_probability=read[:, t])
        np.testing.assert_allclose(out, whole[:, t], rtol=1e-5, atol=1e-5)
        assert carry.shape == (2, V, K)
    np.testing.assert_allclose(carry, last, rtol=1e-5, atol=1e-5)


def test_queries_of_another_length_read_the_same_memory():
    """Bidirectional attention is one memory with any number of reads; its two halves are separate operations."""
    query, key, value, write, read = example()
    memory = ops.outer_product_memory(key, value, write_probability=write)
    halves = ops.outer_product_read(memory, query[:, :2], read_probability=read[:, :2])
    got = attend(query[:, :2], key, value, write_probability=write, read_probability=read[:, :2])
    np.testing.assert_allclose(got, halves, rtol=1e-6)
    np.testing.assert_allclose(got, attention_twin(query, key, value, write, read)[0][:, :2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_summed_in_float32(causal):
    """2048 equal writes add up, although a bfloat16 sum stops at 256; the dtype is kept, the memory is float32."""
    length = 2048
    key = jnp.full((length, 4), 0.5, jnp.bfloat16)
    value = jnp.ones((length, 2), jnp.bfloat16)
    read, memory = attend(key, key, value, causal=causal, return_carry=True)
    assert (read.dtype, memory.dtype) == (jnp.bfloat16, jnp.float32)
    expected = np.arange(1, length + 1) if causal else np.full(length, length)
    np.testing.assert_allclose(read.astype(np.float32), np.stack([expected] * 2, axis=1), rtol=0.01)
    np.testing.assert_allclose(memory, np.full((2, 4), length / 2))


def test_memory_of_the_gradient_is_linear_in_the_length():
    """Twice the length takes twice the temporary memory, far less than S x S scores."""

    def temporary(length):
        shape = jax.ShapeDtypeStruct((length, 16), jnp.float32)
        gradient = jax.grad(lambda *x: jnp.sum(ops.normalized_outer_product_attention(*x, causal=True)), (0, 1, 2))
        return jax.jit(gradient).lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    short, long = temporary(4096), temporary(8192)
    assert long < 2.2 * short
    assert long < 4 * 8192**2 / 30


def test_wrong_shapes_are_refused():
    """Errors say what does not fit."""
    query, key, value, *_ = example()
    with pytest.raises(ValueError, match="width 4 cannot read keys of width 5"):
        ops.normalized_outer_product_attention(query[..., :4], key, value)
    with pytest.raises(ValueError, match="11 keys but 10 values"):
        ops.normalized_outer_product_attention(query, key, value[:, :10])
    with pytest.raises(ValueError, match="as many queries as keys, not 10 and 11"):
        ops.linear_attention(query[:, :10], key, value, causal=True)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ops.normalized_outer_product_attention(query, key, value, causal=True, chunk_size=0)
    with pytest.raises(ValueError, match="at least 1, not -3"):
        ops.nam_scan(key, value, key[..., 0], key[..., 0], chunk_size=-3)
    with pytest.raises(ValueError, match="lengths differ: 11 keys, 10 values"):
        ops.nam_scan(key, value[:, :10], key[..., 0], key[..., 0])


# Linear attention -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_normalised(causal):
    """Values and gradients of the twin that forms the S x S weights."""
    query, key, value, *_ = example()
    mask = np.arange(S) < np.array([[S], [7]])
    got = linear(query, key, value, causal=causal, key_mask=mask, chunk_size=4)
    expected = linear_twin(query, key, value, mask.astype(np.float64), causal=causal)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    check_gradient(
        lambda *x: (ops.linear_attention(*x, causal=causal, chunk_size=4),),
        lambda *x: (linear_twin(*x, causal=causal),),
        (query, key, value),
    )


@pytest.mark.parametrize("split", [0, 4, S])
def test_linear_attention_in_pieces(split):
    """Two causal pieces with a carry are the whole; a bidirectional piece sees the keys of the carry too."""
    query, key, value, *_ = example()
    whole = linear(query, key, value, causal=True)
    first, second = ([x[:, part] for x in (query, key, value)] for part in (slice(split), slice(split, None)))
    reads, carry = linear(*first, causal=True, return_carry=True)
    more, last = linear(*second, causal=True, carry=carry, chunk_size=4, return_carry=True)
    np.testing.assert_allclose(np.concatenate([reads, more], axis=1), whole, rtol=1e-5, atol=1e-5)
    both, end = linear(*second, carry=carry, return_carry=True)
    np.testing.assert_allclose(both, linear(second[0], key, value), rtol=1e-5, atol=1e-5)
    for got, same in zip(last, end, strict=True):
        np.testing.assert_allclose(got, same, rtol=1e-5, atol=1e-5)


def test_linear_attention_without_keys_is_zero():
    """And so is its gradient."""
    query, key, value, *_ = example()
    nothing = np.zeros((2, S), bool)
    assert not np.any(linear(query, key, value, key_mask=nothing))
    assert not np.any(jax.grad(lambda q: jnp.sum(linear(q, key, value, key_mask=nothing)))(query))


# The erasing write over a sequence ------------------------------------------------------------------------------------


def scan_example(seed=0):
    query, key, value, write, erase = example(seed)
    initial = np.random.default_rng(seed + 1).normal(size=(2, V, K)).astype(np.float32)
    return np.asarray(ops.unit(key)), value, write, erase, np.asarray(ops.unit(query)), initial


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_scan_is_one_write_after_the_other(chunk_size):
    """Last memory and reads, from a memory that is not empty."""
    keys, values, write, erase, queries, initial = scan_example()
    memory, reads = scan(keys, values, write, erase, queries=queries, initial=initial, chunk_size=chunk_size)
    expected = scan_twin(keys, values, write, erase, queries, initial)
    np.testing.assert_allclose(memory, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reads, expected[1], rtol=1e-5, atol=1e-5)
    alone, nothing = scan(keys, values, write, erase, initial=initial, chunk_size=chunk_size)
    np.testing.assert_allclose(alone, memory, rtol=1e-6, atol=1e-6)
    assert nothing is None


def test_gradient_of_the_scan():
    """To everything, the initial memory included."""

    def function(keys, values, write, erase, queries, initial):
        return ops.nam_scan(keys, values, write, erase, queries=queries, initial=initial, chunk_size=4)

    check_gradient(function, scan_twin, scan_example())


def test_scan_passes_over_padding():
    """Steps with zero probabilities change nothing, whatever finite values they have."""
    keys, values, write, erase, queries, initial = scan_example()
    real = np.arange(S) < 7
    memory, reads = scan(keys, values, write * real, erase * real, queries=queries, initial=initial, chunk_size=4)
    expected = scan_twin(*(x[:, :7] for x in (keys, values, write, erase, queries)), initial)
    np.testing.assert_allclose(memory, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reads[:, :7], expected[1], rtol=1e-5, atol=1e-5)


def test_scan_of_repeated_keys_keeps_the_last_value():
    """The hardest system for a series: 64 writes under one key, each erasing the last one (Theorem 1)."""
    key = np.tile(np.asarray(ops.unit(jnp.ones(K))), (64, 1))
    values = np.random.default_rng(0).normal(size=(64, V)).astype(np.float32)
    ones = np.ones(64, np.float32)
    _, reads = scan(key, values, ones, ones, queries=key)
    np.testing.assert_allclose(reads, values, atol=1e-5)


def test_scan_without_erasing_is_causal_attention():
    """p_e = 0 leaves the sum of outer products."""
    query, key, value, write, _ = example()
    _, reads = scan(ops.unit(key), value, write, 0 * write, queries=ops.unit(query), chunk_size=4)
    expected = attend(query, key, value, write_probability=write, causal=True)
    np.testing.assert_allclose(reads, expected, rtol=1e-5, atol=1e-5)


def test_scan_of_bfloat16_and_of_nothing():
    """Types: reads as the values, memory in float32. No steps: the initial memory."""
    keys, values, write, erase, queries, initial = (jnp.asarray(x, jnp.bfloat16) for x in scan_example())
    memory, reads = scan(keys, values, write, erase, queries=queries, chunk_size=4)
    assert (memory.dtype, reads.dtype) == (jnp.float32, jnp.bfloat16)
    memory, reads = scan(
        keys[:, :0], values[:, :0], write[:, :0], erase[:, :0], queries=queries[:, :0], initial=initial, chunk_size=4
    )
    np.testing.assert_array_equal(memory, initial.astype(np.float32))
    assert reads.shape == (2, 0, V)
