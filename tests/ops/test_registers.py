"""`lenmem.ops.registers` against sums over all pairs of integers in float64."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.ops import registers

M = 6
jitted = functools.cache(jax.jit)
increment = functools.partial(registers.integer_shift, by=1)
decrement = functools.partial(registers.integer_shift, by=-1)

UNARY = {"inc": (increment, lambda a: a + 1), "dec": (decrement, lambda a: a - 1)}
BINARY = {
    "add": (registers.integer_sum, lambda a, b: a + b),
    "sub": (registers.integer_difference, lambda a, b: a - b),
    "less": (registers.integer_less, lambda a, b: int(a < b)),
    "less_or_equal": (registers.integer_less_or_equal, lambda a, b: int(a <= b)),
    "equal": (registers.integer_equal, lambda a, b: int(a == b)),
    "min": (registers.integer_minimum, min),
    "max": (registers.integer_maximum, max),
}
MODULAR = ("inc", "dec", "add", "sub")


@st.composite
def distributions(draw, modulus=M):
    """Weights over 0 .. M - 1, all below `modulus`; some are certain."""
    raw = draw(hnp.arrays(np.float32, M, elements=st.floats(0, 1, width=32, allow_subnormal=False)))
    raw[modulus:] = 0
    raw[draw(st.integers(0, modulus - 1))] += draw(st.sampled_from([0.1, 1e6]))
    return (raw / raw.sum()).astype(np.float32)


def twin(function, arguments, modulus=M):
    """P(c) = the sum of joint probabilities over all arguments for which the module gives c."""
    result = np.zeros(M)
    for values in np.ndindex(*[M] * len(arguments)):
        probability = np.prod([np.float64(argument[value]) for argument, value in zip(arguments, values, strict=True)])
        if probability:
            result[function(*values) % modulus] += probability
    return result


def run(name, arguments, modulus=None):
    operation, _ = (UNARY | BINARY)[name]
    return jitted(operation)(*arguments, **({} if modulus is None else {"modulus": jnp.asarray(modulus)}))


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
@given(distributions(), distributions())
def test_modules_equal_the_sum_over_all_pairs(name, a, b):
    arguments = (a,) if name in UNARY else (a, b)
    got = np.asarray(run(name, arguments))
    np.testing.assert_allclose(got, twin((UNARY | BINARY)[name][1], arguments), atol=1e-5)
    np.testing.assert_allclose(got.sum(), 1, atol=1e-5)
    assert got.min() >= -1e-6


@pytest.mark.parametrize("name", MODULAR)
@given(st.data(), st.integers(2, M))
def test_sums_are_taken_modulo_the_modulus_and_ignore_integers_beyond(name, data, modulus):
    arguments = [data.draw(distributions(modulus)) for _ in range(1 if name in UNARY else 2)]
    got = np.asarray(run(name, arguments, modulus))
    np.testing.assert_allclose(got, twin((UNARY | BINARY)[name][1], arguments, modulus), atol=1e-5)
    assert np.all(got[modulus:] == 0)
    exactly = run(name, [argument[:modulus] for argument in arguments])
    np.testing.assert_allclose(got[:modulus], exactly, atol=1e-6)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_certain_integers_compute(name):
    """All pairs at once, as a leading axis; a modulus for each."""
    function = (UNARY | BINARY)[name][1]
    first, second = np.divmod(np.arange(M * M), M)
    values = (first,) if name in UNARY else (first, second)
    expected = [function(*pair) % M for pair in zip(*(v.tolist() for v in values), strict=True)]
    got = run(
        name, [np.eye(M, dtype=np.float32)[value] for value in values], np.full(M * M, M) if name in MODULAR else None
    )
    np.testing.assert_array_equal(got, np.eye(M)[expected])


def test_rows_may_have_moduli_of_their_own():
    generator = np.random.default_rng(0)
    moduli = np.array([2, 5, 6])
    a, b = (generator.dirichlet(np.ones(M), 3) * (np.arange(M) < moduli[:, None]) for _ in range(2))
    for name in MODULAR:
        arguments = [np.asarray(x, np.float32) for x in ((a,) if name in UNARY else (a, b))]
        together = run(name, arguments, moduli)
        for row, modulus in enumerate(moduli):
            alone = twin((UNARY | BINARY)[name][1], [argument[row] for argument in arguments], int(modulus))
            np.testing.assert_allclose(together[row], alone, atol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_gradients_are_those_of_the_sums(name):
    """A module is linear in each argument, except for the probability 1 - p of `false`, which is not a sum."""
    generator = np.random.default_rng(1)
    a, b = generator.dirichlet(np.ones(M), 2)
    direction = generator.normal(size=M)
    operation, function = BINARY[name]
    arguments = [jnp.asarray(x, jnp.float32) for x in (a, b)]
    got = jax.jit(jax.grad(lambda a, b: operation(a, b) @ jnp.asarray(direction), argnums=(0, 1)))(*arguments)
    for which, other in enumerate((b, a)):
        pairs = [(one, other) if which == 0 else (other, one) for one in np.eye(M)]
        exact = np.array([twin(function, pair) @ direction for pair in pairs])
        # Along the simplex, where distributions live, both agree.
        np.testing.assert_allclose(got[which] - np.mean(got[which]), exact - np.mean(exact), atol=1e-5)


@given(st.data())
def test_reading_and_writing_a_tape(data):
    tape = np.stack([data.draw(distributions()) for _ in range(M)])
    address, value = data.draw(distributions()), data.draw(distributions())
    read = sum(np.float64(address[i]) * tape[i] for i in range(M))
    np.testing.assert_allclose(jitted(registers.read_tape)(tape, address), read, atol=1e-6)
    written = np.asarray(jitted(registers.write_tape)(tape, address, value))
    for i in range(M):
        np.testing.assert_allclose(written[i], (1 - np.float64(address[i])) * tape[i] + address[i] * value, atol=1e-6)
    np.testing.assert_allclose(written.sum(-1), 1, atol=1e-5)


def test_a_whole_write_replaces_one_cell_and_is_read_again():
    generator = np.random.default_rng(2)
    tape, value = generator.dirichlet(np.ones(M), M), generator.dirichlet(np.ones(M))
    written = registers.write_tape(tape, np.eye(M)[4], value)
    np.testing.assert_allclose(registers.read_tape(written, np.eye(M)[4]), value, atol=1e-6)
    np.testing.assert_allclose(np.delete(written, 4, 0), np.delete(tape, 4, 0), atol=1e-6)


def test_leading_axes_are_rows():
    generator = np.random.default_rng(3)
    tape = generator.dirichlet(np.ones(M), (2, 3, M)).astype(np.float32)
    a, b = generator.dirichlet(np.ones(M), (2, 2, 3)).astype(np.float32)
    operations = [(operation, (a, b)) for operation, _ in BINARY.values()]
    operations += [(increment, (a,)), (registers.read_tape, (tape, a)), (registers.write_tape, (tape, a, b))]
    for operation, arguments in operations:
        one = operation(*(argument[1, 2] for argument in arguments))
        np.testing.assert_allclose(operation(*arguments)[1, 2], one, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_one_register_is_combined_with_many(name):
    generator = np.random.default_rng(4)
    one, many = generator.dirichlet(np.ones(M)), generator.dirichlet(np.ones(M), (2, 3))
    operation = BINARY[name][0]
    for arguments in ((one, many), (many, one)):
        whole = operation(*(np.broadcast_to(x, many.shape).astype(np.float32) for x in arguments))
        np.testing.assert_allclose(operation(*(x.astype(np.float32) for x in arguments)), whole, atol=1e-6)
