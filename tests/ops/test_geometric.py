"""`lenmem.ops.geometric` against float64 loops written from equations 7 and 8, and properties of the formula."""

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
from tests.marks import thorough

N, D, V = 9, 5, 3
rows_of_logits = hnp.arrays(np.float32, (N, N), elements=st.floats(-30, 30, width=32, allow_subnormal=False))
lengths = st.integers(1, N)

weights = functools.partial(jax.jit, static_argnames="normalize")(ops.geometric_attention_weights)
attend = functools.partial(jax.jit, static_argnames=("block_size", "implementation"))(ops.geometric_attention)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Twins ----------------------------------------------------------------------------------------------------------------


def closer(i, j, k):
    """k in S_ij (equation 8)."""
    return k != i and k != j and (abs(i - k) < abs(i - j) if i < j else abs(i - k) <= abs(i - j))


@functools.cache
def closer_than(n):
    """closer(i, j, k) for all [i, j, k]."""
    return np.array([[[closer(i, j, k) for k in range(n)] for j in range(n)] for i in range(n)])


def weights_twin(logits, mask=None, normalize=False):
    """Equation 7 term by term, float64 [N, N]; keys that are not real have P = 0."""
    logits = np.asarray(logits, np.float64)
    n = len(logits)
    mask = np.ones(n, bool) if mask is None else mask
    match, miss = (np.where(mask, 1 / (1 + np.exp(sign * logits)), other) for sign, other in ((-1, 0), (1, 1)))
    result = np.zeros((n, n))
    for i in range(n):
        for j in set(range(n)) - {i}:
            result[i, j] = match[i, j] * np.prod(miss[i], where=closer_than(n)[i, j])
    return result / np.maximum(result.sum(1, keepdims=True), 1e-12) if normalize else result


def differentiable_twin(logits, mask, normalize=False):
    """The same in jax.numpy by an [N, N, N] sum, for its derivative."""
    n = logits.shape[-1]
    visible = mask[..., None, :] & ~np.eye(n, dtype=bool)
    misses = jnp.where(visible, jax.nn.softplus(logits), 0)
    result = jnp.exp(-jax.nn.softplus(-logits) - jnp.einsum("...ik,ijk->...ij", misses, closer_than(n).astype(float)))
    result = jnp.where(visible, result, 0)
    return result / jnp.maximum(result.sum(-1, keepdims=True), 1e-12) if normalize else result


def attention_twin(query, key, value, direction, scale, offset, mask):
    """Equation 10, with numpy or jax.numpy arrays: [..., N, d_v]."""
    n = query.shape[-2]
    right = np.arange(n) > np.arange(n)[:, None]
    logits = scale * query @ jnp.swapaxes(key, -1, -2) + offset
    logits = logits + jnp.where(right, direction[..., 1:], direction[..., :1])
    return differentiable_twin(logits, mask) @ value


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 12, 64])
def test_weights_are_equation_7(n):
    """Short rows, and rows of several runs; logits in +-30; with and without keys that are not real."""
    rng = np.random.default_rng(n)
    logits = rng.uniform(-30, 30, size=(n, n)).astype(np.float32)
    logits[::3] -= 20  # Rows that look far.
    mask = rng.uniform(size=n) < 0.7
    both = weights(np.stack([logits, logits]), np.stack([np.ones(n, bool), mask]))
    np.testing.assert_allclose(both[0], weights_twin(logits), atol=1e-5)
    np.testing.assert_allclose(both[1], weights_twin(logits, mask), atol=1e-5)
    assert np.all(np.diagonal(both, axis1=1, axis2=2) == 0)
    assert np.all(both[1][:, ~mask] == 0)


def test_order_of_closeness():
    """Equal probabilities 1/2 show the order: target 1 of 5 looks at 2, 0, 3, 4; target 3 at 4, 2, 1, 0."""
    halves = np.asarray(weights(np.zeros((5, 5), np.float32)))
    np.testing.assert_allclose(halves[1], [1 / 4, 0, 1 / 2, 1 / 8, 1 / 16])
    np.testing.assert_allclose(halves[3], [1 / 16, 1 / 8, 1 / 4, 0, 1 / 2])


@pytest.mark.parametrize("case", ["random", -17.0, -7.0])
def test_long_rows_are_exact(case):
    """N = 2048: log-weights to 1e-5, with many keys that almost never match, and with one-sided rounding."""
    n = 2048
    logits = normal(0, n, n) * 2 - 8 if case == "random" else np.full((n, n), case, np.float32)
    got = np.asarray(weights(logits), np.float64)
    for i in (0, 700, n - 1):
        order = sorted((j for j in range(n) if j != i), key=lambda j: (abs(j - i), j < i))
        row = logits[i, order].astype(np.float64)
        misses = np.logaddexp(0, row)
        expected = row - misses - (np.cumsum(misses) - misses)
        error = np.abs(np.log(got[i, order]) - expected)
        assert np.max(error / np.maximum(1, np.abs(expected))) < 1e-5


@given(rows_of_logits, lengths)
def test_rows_sum_to_the_probability_of_a_match(logits, length):
    """1 - prod (1 - P), which is at most 1; normalised it is 1 (unless the sum is almost 0)."""
    mask = np.arange(N) < length
    misses = np.where(mask & ~np.eye(N, dtype=bool), 1 / (1 + np.exp(logits.astype(np.float64))), 1)
    matched = 1 - np.prod(misses, axis=1)
    got = np.asarray(weights(logits, mask))
    assert np.all(got >= 0)
    np.testing.assert_allclose(got.sum(axis=1), matched, atol=1e-5)
    normalized = np.asarray(weights(logits, mask, normalize=True))
    np.testing.assert_allclose(normalized.sum(axis=1)[matched > 1e-6], 1, atol=1e-5)
    np.testing.assert_allclose(normalized, weights_twin(logits, mask, normalize=True), atol=1e-5)


@given(rows_of_logits, lengths)
def test_padding_is_transparent(logits, length):
    """Real rows equal those of the sequence without its padding, whatever the padding contains."""
    mask = np.arange(N) < length
    padded = np.where(mask, logits, np.float32(np.nan))
    got = np.asarray(weights(padded, mask))
    assert np.all(got[:, length:] == 0)
    np.testing.assert_allclose(got[:length, :length], weights_twin(logits[:length, :length]), atol=1e-5)


@given(rows_of_logits, st.integers(0, N - 1), st.integers(0, N - 1), st.floats(-30, 30, width=32))
def test_nothing_depends_on_what_is_farther(logits, i, k, other):
    """A_ij does not change with the logit of any k farther than j, nor does any other row."""
    changed = logits.copy()
    changed[i, k] = other
    before, after = (np.asarray(weights(x)) for x in (logits, changed))
    same = ~closer_than(N)[i, :, k] & (np.arange(N) != k)
    np.testing.assert_allclose(after[i, same], before[i, same], atol=1e-7)
    np.testing.assert_array_equal(np.delete(after, i, 0), np.delete(before, i, 0))


@pytest.mark.parametrize("normalize", [False, True])
def test_gradient_of_the_weights(normalize):
    """The twin's gradient, and its slopes by finite differences in float64."""
    logits, cotangent, slope = 4 * normal(0, 2, N, N), normal(1, 2, N, N), normal(2, 2, N, N)
    mask = np.arange(N) < np.array([[N], [6]])

    def loss(function, logits):
        return jnp.sum(cotangent * function(logits, mask, normalize=normalize))

    got = jax.jit(jax.grad(functools.partial(loss, ops.geometric_attention_weights)))(logits)
    expected = jax.jit(jax.grad(functools.partial(loss, differentiable_twin)))(logits)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    for row in range(2):
        ahead, behind = (
            np.sum(cotangent[row] * weights_twin(logits[row] + step * slope[row].astype(float), mask[row], normalize))
            for step in (1e-4, -1e-4)
        )
        np.testing.assert_allclose(np.sum(got[row] * slope[row]), (ahead - behind) / 2e-4, rtol=1e-4, atol=1e-5)


def test_gradients_where_nothing_can_be_seen():
    """Zero for one position and for padding only; finite for certain matches and certain misses."""

    @functools.partial(jax.jit, static_argnums=2)
    def gradient(logits, mask, normalize):
        cotangent = normal(0, *logits.shape)
        return jax.grad(lambda x: jnp.sum(cotangent * ops.geometric_attention_weights(x, mask, normalize=normalize)))(
            logits
        )

    everything, nothing = np.ones(N, bool), np.zeros(N, bool)
    certain = 1e4 * np.sign(normal(2, N, N))
    for normalize in (False, True):
        assert not np.any(gradient(normal(1, N, N), nothing, normalize))
        assert np.all(np.isfinite(gradient(certain, everything, normalize)))
    np.testing.assert_array_equal(weights(np.ones((1, 1), np.float32)), 0)
    assert not np.any(gradient(np.ones((1, 1), np.float32), np.ones(1, bool), True))


def test_bfloat16_is_computed_in_float32():
    """The dtype is kept; a running sum in bfloat16 would have stopped growing."""
    logits = np.full((300, 300), -5, jnp.bfloat16)
    got = weights(logits)
    assert got.dtype == jnp.bfloat16
    in_float32 = weights(logits.astype(np.float32))
    got = np.asarray(got).astype(np.float32)
    np.testing.assert_allclose(got, in_float32, rtol=2**-7)  # One unit in the last place.
    assert jax.eval_shape(ops.geometric_attention_logits, logits, logits).dtype == jnp.float32


# Attention ------------------------------------------------------------------------------------------------------------


def example(n=N, batch=(2, 2), seed=0):
    """Query, key, value, direction, scale, offset."""
    shapes = [(*batch, n, width) for width in (D, D, V, 2)]
    arrays = [normal(seed + i, *shape) for i, shape in enumerate(shapes)]
    return *arrays, np.float32(0.9), np.float32(-1.5)


def with_gradients_to_everything(function):
    """Jitted: results, and gradients for a given cotangent."""

    def pulled(arguments, mask, cotangent):
        result, pull = jax.vjp(lambda *x: function(*x, mask), *arguments)
        return result, pull(cotangent)

    return jax.jit(pulled)


jitted_twin = jax.jit(attention_twin)
attention_twin_with_gradients = with_gradients_to_everything(attention_twin)


KERNEL = {"implementation": "pallas"}


@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 4}, {"tolerance": 0.0, "block_size": 4}, KERNEL, KERNEL | {"tolerance": 0.0}],
    ids=str,
)
def test_attention_is_equation_10(options):
    """Values, and gradients of all arguments, for each way of computing them.

    One direction for both rows, one mask for both heads; padding is not finite.
    """
    query, key, value, direction, *scalars = example()
    direction = direction[:1]
    mask = np.arange(N) < np.array([[[N]], [[6]]])
    cotangent = normal(9, *value.shape) * mask[..., None]

    @with_gradients_to_everything
    def ours(query, key, value, direction, scale, offset, mask):
        return ops.geometric_attention(
            query, key, value, direction=direction, scale=scale, offset=offset, key_mask=mask, **options
        )

    bad = np.where(mask[..., None], np.float32(0), np.float32(np.inf))
    got, gradients = ours((query, key + bad, value + bad, direction, *scalars), mask, cotangent)
    expected = attention_twin_with_gradients((query, key, value, direction, *scalars), mask, cotangent)
    np.testing.assert_allclose(np.asarray(got) * mask[..., None], np.asarray(expected[0]) * mask[..., None], atol=1e-5)
    for one, other in zip(gradients, expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_blocks_of_any_size_are_the_whole():
    """With several runs of a sum, blocks that do not divide the length, values of rank 2, and the default scale."""
    query, key, value, *_ = example(n=70, batch=())
    whole, by_targets, by_distances = jax.jit(
        lambda *x: [ops.geometric_attention(*x, **o) for o in ({}, {"block_size": 33}, {"tolerance": 0.0})]
    )(query, key, value)
    np.testing.assert_allclose(by_targets, whole, atol=1e-6)
    np.testing.assert_allclose(by_distances, whole, atol=1e-5)
    logits = D**-0.5 * query.astype(np.float64) @ key.T
    np.testing.assert_allclose(whole, weights_twin(logits) @ value, atol=1e-5)


@jax.jit
def with_gradients(query, key, value, direction, scale, offset, mask, cotangent, tolerance):
    """((exact result, gradients), (result within the tolerance, gradients)), to values and direction."""

    def pulled(**options):
        def function(value, direction):
            return ops.geometric_attention(
                query, key, value, direction=direction, scale=scale, offset=offset, key_mask=mask, **options
            )

        result, pull = jax.vjp(function, value, direction)
        return result, pull(cotangent)

    return pulled(), pulled(tolerance=tolerance, block_size=3)


@given(st.integers(0, 2**16), st.floats(0, 0.99), st.floats(-6, 3), st.integers(1, 24))
def test_tolerance_bounds_the_error(seed, tolerance, offset, length):
    """eps max |v| in the result, eps max |g . v| in each logit's gradient, at real targets; a traced tolerance."""
    n = 24
    query, key, value, direction, scale, _ = example(n, (), seed)
    mask = np.arange(n) < length
    cotangent = normal(seed + 1, n, V) * mask[:, None]
    exact, short = with_gradients(query, key, value, direction, scale, offset, mask, cotangent, tolerance)
    slack = 1e-5
    error = np.linalg.norm(short[0] - exact[0], axis=-1)[mask]
    assert np.all(error <= tolerance * np.linalg.norm(value[mask], axis=-1).max() + slack)
    (of_value, of_direction), (of_value_short, of_direction_short) = exact[1], short[1]
    error = np.linalg.norm(of_value - of_value_short, axis=-1)
    assert np.all(error <= tolerance * np.linalg.norm(cotangent, axis=-1).sum() + slack)
    reach = length * np.abs(cotangent @ value[mask].T).max(axis=-1)
    assert np.all(np.abs(of_direction - of_direction_short) <= (tolerance * reach)[:, None] + slack)


def test_tolerance_stops_the_work():
    """Probabilities 1/2 and tolerance 1/50: a block of 4 distances leaves 2^-8, and 2^-4 at the ends; two suffice."""
    n = 40
    nothing, value = np.zeros((n, 1), np.float32), np.ones((n, 1), np.float32)

    def ends(value, tolerance):
        return jnp.sum(
            ops.geometric_attention(nothing, nothing, value, block_size=4, tolerance=tolerance)[jnp.array([0, -1])]
        )

    gradient = jax.jit(jax.grad(ends))
    seen = np.flatnonzero(gradient(value, 1 / 50))
    np.testing.assert_array_equal(seen, [*range(1, 9), *range(n - 8, n - 1)])
    np.testing.assert_array_equal(np.flatnonzero(gradient(value, 0.0)), np.arange(n))


@pytest.mark.parametrize("options", [{}, {"tolerance": 0.0, "block_size": 4}, KERNEL], ids=str)
def test_transformations(options):
    """Gradients through vmap of scan of remat are those of the twin, used once after the other."""
    start, directions = normal(0, 2, N, D), normal(1, 3, N, 2)
    mask = np.arange(N) < np.array([[N], [6]])

    def scanned(states, mask):
        @jax.checkpoint
        def body(states, direction):
            read = ops.geometric_attention(states, states, states, direction=direction, key_mask=mask, **options)
            return states + read, None

        return jnp.sum(jnp.where(mask[:, None], jnp.sin(jax.lax.scan(body, states, directions)[0]), 0))

    got = jax.jit(jax.vmap(jax.value_and_grad(scanned)))(start, mask)
    expected = looped_twin(start, directions, mask)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-5)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, 0))
@jax.value_and_grad
def looped_twin(states, directions, mask):
    """The loss of `test_transformations` and its gradient."""
    for direction in directions:
        states = states + attention_twin(states, states, states, direction, D**-0.5, 0.0, mask)
    return jnp.sum(jnp.where(mask[:, None], jnp.sin(states), 0))


@jax.jit
def hessian_of_the_twin(arguments, mask):
    """The second derivatives of `test_attention_can_be_differentiated_forward`, in query and direction."""

    def twin(query, key, value, direction, scale, offset):
        read = attention_twin(query, key, value, direction, scale, offset, mask)
        return jnp.sum(jnp.where(mask[:, None], jnp.sin(read), 0))

    return jax.hessian(twin, (0, 3))(*arguments)


@pytest.mark.parametrize(
    "options", [{}, {"block_size": 2}, *thorough([{"tolerance": 0.0, "block_size": 2}], [KERNEL])], ids=str
)
def test_attention_can_be_differentiated_forward(options):
    """Directional derivatives in all arguments equal the twin's finite differences in float64; the Hessian, forward
    over backward, equals that of the twin by JAX."""
    n = 4
    query, key, value, direction, *scalars = example(n, ())
    mask = np.arange(n) < n - 1
    arguments = (query, key, value, direction, *scalars)
    towards = tuple(normal(20 + i, *np.shape(x)) for i, x in enumerate(arguments))

    def ours(query, key, value, direction, scale, offset):
        read = ops.geometric_attention(
            query, key, value, direction=direction, scale=scale, offset=offset, key_mask=mask, **options
        )
        return jnp.sum(jnp.where(mask[:, None], jnp.sin(read), 0))

    def exact(step):
        query, key, value, direction, scale, offset = (
            np.asarray(x, np.float64) + step * t for x, t in zip(arguments, towards, strict=True)
        )
        logits = scale * query @ key.T + offset
        logits = logits + np.where(np.arange(n) > np.arange(n)[:, None], direction[:, 1:], direction[:, :1])
        return np.sum(np.sin(weights_twin(logits, mask) @ value)[mask])

    @jax.jit
    def derivatives(*arguments):
        second = jax.hessian(ours, (0, 3))(*arguments)
        return jax.jvp(ours, arguments, towards)[1], jax.grad(ours, range(6))(*arguments), second

    along, gradients, got = derivatives(*arguments)
    expected = hessian_of_the_twin(arguments, mask)
    np.testing.assert_allclose(along, (exact(1e-5) - exact(-1e-5)) / 2e-5, rtol=1e-4)
    slope = sum(np.sum(g * t) for g, t in zip(gradients, towards, strict=True))
    np.testing.assert_allclose(along, slope, rtol=1e-4)
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"tolerance": 0.0}, KERNEL], ids=str)
def test_bfloat16_attention(options):
    """Within the rounding error of inputs and weights; in the dtype of the values."""
    arrays = [x.astype(jnp.bfloat16) for x in example(batch=())[:4]]
    query, key, value, direction = arrays
    got = attend(query, key, value, direction=direction, **options)
    assert got.dtype == jnp.bfloat16
    wide = [x.astype(np.float32) for x in arrays]
    expected = jitted_twin(*wide, D**-0.5, 0.0, np.ones(N, bool))
    np.testing.assert_allclose(np.asarray(got).astype(np.float32), expected, rtol=0.01, atol=0.02)


def test_memory_of_blocks_is_linear_in_the_length():
    """Twice the length takes twice the temporary memory, including the gradient, far less than N x N weights."""

    def temporary(length):
        shape = jax.ShapeDtypeStruct((length, 16), jnp.float32)
        gradient = jax.grad(lambda *x: jnp.sum(ops.geometric_attention(*x, block_size=16)), (0, 1, 2))
        return jax.jit(gradient).lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    short, long = temporary(2048), temporary(4096)
    assert long < 2.2 * short
    assert long < 4 * 4096**2 / 8


def test_wrong_arguments_are_refused():
    """Errors say what was got and what is allowed."""
    query, key, value, *_ = example(batch=())
    with pytest.raises(ValueError, match=r"square in their last two axes, not \(9, 5\)"):
        ops.geometric_attention_weights(query)
    with pytest.raises(ValueError, match="equal lengths, not 9, 9 and 8"):
        ops.geometric_attention(query, key, value[:8])
    with pytest.raises(ValueError, match="width 5 do not fit keys of width 4"):
        ops.geometric_attention(query, key[:, :4], value)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ops.geometric_attention(query, key, value, block_size=0)
    with pytest.raises(ValueError, match=r"at least 0 and below 1, not 1\.5"):
        ops.geometric_attention(query, key, value, tolerance=1.5)


# Stick-breaking -------------------------------------------------------------------------------------------------------


def broken_stick(x, visible):
    """The weights of a row of logits, from the right, in float64."""
    left, weights = 1.0, np.zeros(len(x))
    for k in reversed(range(len(x))):
        if visible[k]:
            p = 1 / (1 + np.exp(-np.float64(x[k])))
            weights[k], left = left * p, left * (1 - p)
    return weights


@pytest.mark.parametrize("count", [1, 5, 32, 45, 100])
def test_a_stick_is_broken_from_the_right(count):
    """Against a loop, for any number of keys, with some of them hidden."""
    logits, visible = 2 * normal(0, 2, 3, count), normal(1, 3, count) > -0.5
    result = jax.jit(ops.stick_breaking_weights)(logits, visible)
    expected = [[broken_stick(row, seen) for row, seen in zip(rows, visible, strict=True)] for rows in logits]
    np.testing.assert_allclose(result, expected, atol=2e-6)
    assert np.all(np.asarray(result)[:, ~visible] == 0)


def test_of_all_keys_before_it_is_the_left_half_of_geometric_attention():
    """Where nothing on the right matches, geometric attention is a broken stick."""
    logits = np.where(np.tri(N, k=-1) > 0, normal(2, N, N), -np.inf).astype(np.float32)
    result = jax.jit(ops.stick_breaking_weights)(logits)
    np.testing.assert_allclose(result, weights(logits), atol=1e-6)


def test_the_gradient_of_a_broken_stick():
    """That of the formula as JAX differentiates it; hidden keys have none, even where they are not finite."""
    logits, visible, cotangent = normal(3, 4, 40), normal(4, 4, 40) > -0.5, normal(5, 4, 40)

    def plain(x):
        losses = jnp.where(visible, jax.nn.softplus(x), 0)
        after = jnp.cumsum(losses[:, ::-1], axis=1)[:, ::-1] - losses
        return jnp.sum(cotangent * jnp.where(visible, jax.nn.sigmoid(x) * jnp.exp(-after), 0))

    def ours(x):
        return jnp.sum(cotangent * ops.stick_breaking_weights(x, visible))

    backward = jax.jit(jax.grad(ours))
    np.testing.assert_allclose(backward(logits), jax.jit(jax.grad(plain))(logits), atol=3e-6)
    gradient = np.asarray(backward(np.where(visible, logits, np.nan)))
    assert np.all(gradient[~visible] == 0) and np.isfinite(gradient).all()
    _, tangent = jax.jit(lambda x: jax.jvp(ours, (x,), (jnp.ones_like(x),)))(logits)
    assert tangent == pytest.approx(float(backward(logits).sum()), abs=1e-4)
