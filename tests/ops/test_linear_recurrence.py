"""`linear_recurrence`: the chunked form against a NumPy loop in float64, and its special cases."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.placement import on_platform

scan = functools.partial(jax.jit, static_argnames="chunk_size")(ops.linear_recurrence)
FORMS = list(itertools.product([False, True], [False, True]))
"""Whether it erases, whether it decays."""


def drawn(length=13, width=4, of_values=3, erases=True, decays=True, seed=0, batch=(2,)):
    """Keyword arguments of `linear_recurrence`, with unit keys and strengths of erasure up to 2."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(*batch, length, width))
    arguments = {
        "keys": keys / np.linalg.norm(keys, axis=-1, keepdims=True),
        "values": rng.normal(size=(*batch, length, of_values)),
        "write": rng.uniform(0, 2, (*batch, length)),
        "erase": rng.uniform(0, 2, (*batch, length)) if erases else None,
        "log_decay": -rng.exponential(0.5, (*batch, length)) if decays else None,
        "queries": rng.normal(size=(*batch, length, width)),
        "initial": rng.normal(size=(*batch, of_values, width)),
    }
    return {name: value if value is None else value.astype(np.float32) for name, value in arguments.items()}


def twin(keys, values, write, erase, log_decay, queries, initial):
    """S_t = a S (I - e k k^T) + w v k^T for one row, step by step in float64."""
    state, reads = np.asarray(initial, float), []
    for t in range(len(keys)):
        key, value = np.asarray(keys[t], float), np.asarray(values[t], float)
        decay = 1.0 if log_decay is None else np.exp(float(log_decay[t]))
        strength = 0.0 if erase is None else float(erase[t])
        state = decay * state @ (np.eye(len(key)) - strength * np.outer(key, key))
        state = state + float(write[t]) * np.outer(value, key)
        reads.append(state @ np.asarray(queries[t], float))
    return state, np.array(reads)


def row(arguments, i):
    return {name: None if value is None else value[i] for name, value in arguments.items()}


@pytest.mark.parametrize("chunk_size", [1, 5, 64])
@pytest.mark.parametrize(("erases", "decays"), FORMS)
def test_it_is_the_recurrence(erases, decays, chunk_size):
    arguments = drawn(erases=erases, decays=decays)
    state, reads = scan(**arguments, chunk_size=chunk_size)
    for i in range(2):
        expected_state, expected = twin(**row(arguments, i))
        np.testing.assert_allclose(state[i], expected_state, atol=1e-5)
        np.testing.assert_allclose(reads[i], expected, atol=1e-5)


@pytest.mark.parametrize(("erases", "decays", "factor"), [*((*form, 1) for form in FORMS), (True, True, 0)])
def test_gradients_are_those_of_its_steps(erases, decays, factor):
    """Also without any decay, where all cumulated decays are equal."""
    length = 7  # two chunks, of which one is not full
    arguments = drawn(length=length, erases=erases, decays=decays)
    if decays:
        arguments["log_decay"] = factor * arguments["log_decay"]
    given = {name: value for name, value in arguments.items() if value is not None}

    def loss(state, reads):
        return jnp.sum(jnp.sin(reads)) + jnp.sum(jnp.cos(state))

    def chunked(given):
        return loss(*ops.linear_recurrence(**given, chunk_size=4))

    def stepwise(given):
        state, reads = given["initial"], []
        for t in range(length):
            at = {name: given[name][:, t] for name in ("write", "erase", "log_decay") if name in given}
            state = ops.linear_recurrence_step(state, given["keys"][:, t], given["values"][:, t], **at)
            reads.append(jnp.einsum("bvk,bk->bv", state, given["queries"][:, t]))
        return loss(state, jnp.stack(reads, axis=1))

    (got, gradients), (expected, others) = (jax.jit(jax.value_and_grad(f))(given) for f in (chunked, stepwise))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for name in given:
        np.testing.assert_allclose(gradients[name], others[name], rtol=1e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("erases", "decays"), FORMS)
def test_it_can_be_split_anywhere_and_padded(erases, decays):
    arguments = drawn(erases=erases, decays=decays)
    state, reads = scan(**arguments, chunk_size=4)
    sequences = {name: value for name, value in arguments.items() if name != "initial" and value is not None}
    first = {name: value[:, :6] for name, value in sequences.items()}
    middle, early = scan(**first, initial=arguments["initial"], chunk_size=4)
    after, late = scan(**{name: value[:, 6:] for name, value in sequences.items()}, initial=middle, chunk_size=4)
    np.testing.assert_allclose(np.concatenate([early, late], axis=1), reads, atol=1e-5)
    np.testing.assert_allclose(after, state, atol=1e-5)
    quiet = {name: np.where(np.arange(13) < 6, value, 0) for name, value in sequences.items() if value.ndim == 2}
    padded, _ = scan(**sequences | quiet, initial=arguments["initial"], chunk_size=4)
    np.testing.assert_allclose(padded, middle, atol=1e-6)


@pytest.mark.parametrize("length", [1, 35, 64])
def test_the_form_for_a_tpu(length):
    """Systems solved by columns, against the recurrence and its gradients; a key that repeats loses nothing."""
    arguments = drawn(length, width=2, seed=length)
    arguments["keys"][0] = arguments["keys"][0, 0]
    given = arguments | {"log_decay": None}

    def on(name):
        def loss(given):
            state, reads = ops.linear_recurrence(**given, chunk_size=64)
            return jnp.sum(jnp.sin(reads)), (state, reads)

        with on_platform(name):
            return jax.jit(jax.grad(loss, has_aux=True))(given)

    (gradients, results), (expected_gradients, _) = on("tpu"), on("cpu")
    state, reads = results
    for i in range(2):
        expected_state, expected_reads = twin(**row(given, i))
        np.testing.assert_allclose(state[i], expected_state, atol=2e-5)
        np.testing.assert_allclose(reads[i], expected_reads, atol=2e-5)
    for name, gradient in expected_gradients.items():
        if gradient is not None:
            close = {"atol": 1e-5 * np.abs(gradient).max(), "err_msg": name}
            np.testing.assert_allclose(gradients[name], gradient, **close)


def test_reflections_count_modulo_two():
    """With e = 2, I - 2 k k^T for k = (1, -1) / sqrt 2 exchanges two coordinates: parity, at any length."""
    bits = np.random.default_rng(0).integers(0, 2, 500)
    keys = np.tile(np.float32([1, -1] / np.sqrt(2)), (500, 1))
    queries = np.tile(np.float32([1, 0]), (500, 1))
    nothing, initial = np.zeros((500, 1), np.float32), np.float32([[1, 0]])
    _, reads = scan(queries, keys, nothing, nothing[:, 0], (2 * bits).astype(np.float32), initial=initial)
    np.testing.assert_allclose(np.asarray(reads)[:, 0], 1 - np.cumsum(bits) % 2, atol=1e-3)


def test_strong_decay_is_finite_and_forgets():
    arguments = drawn(length=40) | {"log_decay": np.full((2, 40), -90, np.float32)}
    state, reads = scan(**arguments, chunk_size=16)
    last = np.einsum("b,bv,bk->bvk", arguments["write"][:, -1], arguments["values"][:, -1], arguments["keys"][:, -1])
    np.testing.assert_allclose(state, last, atol=1e-6)
    gradient = jax.grad(lambda decay: jnp.sum(scan(**arguments | {"log_decay": decay}, chunk_size=16)[1]))
    assert np.all(np.isfinite(reads)) and np.all(np.isfinite(jax.jit(gradient)(arguments["log_decay"])))


def test_a_decay_to_nothing_forgets_all_before_it():
    """Also a logarithm of -inf, and one of -1e6, which would make the sums of the others inexact."""
    for nothing in (-np.inf, -1e6):
        arguments = drawn(length=12)
        decay = np.array(arguments["log_decay"])
        decay[:, 5] = nothing
        state, reads = scan(**arguments | {"log_decay": decay}, chunk_size=16)
        later = {name: array[:, 5:] for name, array in arguments.items() if name != "initial"}
        fresh = later | {"log_decay": np.where(np.arange(7), decay[:, 5:], 0)}
        expected, tail = scan(**fresh, initial=jnp.zeros_like(arguments["initial"]), chunk_size=16)
        np.testing.assert_allclose(reads[:, 5:], tail, atol=1e-4)
        np.testing.assert_allclose(state, expected, atol=1e-4)


def test_nothing_and_wrong_sizes():
    arguments = drawn(length=0)
    state, reads = scan(**arguments)
    np.testing.assert_array_equal(state, arguments["initial"])
    assert reads.shape == (2, 0, 3)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, not 0"):
        ops.linear_recurrence(**drawn(), chunk_size=0)
    for name in ("queries", "values", "write", "erase", "log_decay"):
        with pytest.raises(ValueError, match=f"lengths differ: 13 keys.* 12 {name}|12 {name}.*13 keys"):
            ops.linear_recurrence(**drawn() | {name: drawn(length=12)[name]})


def test_a_number_holds_at_every_step():
    given = drawn()
    constant = given | {"write": np.full((2, 13), 0.7, np.float32), "erase": np.full((2, 13), 0.5, np.float32)}
    constant["log_decay"] = np.full((2, 13), -0.1, np.float32)
    for got, expected in zip(
        scan(**given | {"write": 0.7, "erase": 0.5, "log_decay": -0.1}), scan(**constant), strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(("chunk_size", "implementation"), [(0, "auto"), (7, "pallas")])
def test_wrong_chunk_sizes(chunk_size, implementation):
    options = {"chunk_size": chunk_size, "implementation": implementation}
    some = jnp.ones((1, 4, 2))
    for attend in (ops.normalized_outer_product_attention, ops.linear_attention):
        with pytest.raises(ValueError, match=f"chunk_size (must be at least 1, not|is) {chunk_size}"):
            attend(some, some, some, **options)
    with pytest.raises(ValueError, match=f"chunk_size (must be at least 1, not|is) {chunk_size}"):
        ops.linear_recurrence(some, some, some, 1.0, **options)


def test_dtypes_that_the_kernel_does_not_take_go_to_xla():
    halves = {name: x if x is None else jnp.float16(x) for name, x in drawn(length=200).items()}
    with on_platform("tpu"):
        assert "pallas_call" not in str(jax.make_jaxpr(lambda: ops.linear_recurrence(**halves))())
