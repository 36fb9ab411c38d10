"""The kernel of linear recurrences, interpreted, against a loop in float64 and against the form for XLA."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.ops.pallas import recurrence
from lenmem.ops.pallas.chunk import unit_triangular_inverse
from lenmem.placement import on_platform
from tests.ops.test_linear_recurrence import FORMS, drawn, row, twin

WIDTH, OF_VALUES = 5, 4


def example(length, erases=True, decays=True):
    """Keyword arguments of `linear_recurrence` for three rows, which are not a multiple of the rows of a program."""
    return drawn(length, WIDTH, OF_VALUES, erases, decays, seed=length, batch=(3,))


def recur(implementation, given):
    return ops.linear_recurrence(**given, implementation=implementation)


def present(arguments):
    return {name: value for name, value in arguments.items() if value is not None}


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(implementation, given, cotangents):
    result, pull = jax.vjp(functools.partial(recur, implementation), given)
    return result, pull(cotangents)[0]


def assert_close(mine, others, tolerance=1e-5):
    """To a part of the largest entry of each array, at least of 1."""
    for value, (path, other) in zip(jax.tree.leaves(mine), jax.tree.leaves_with_path(others), strict=True):
        scale = max(1, np.abs(other).max(initial=0))
        np.testing.assert_allclose(value, other, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("erases", "decays", "length"), [(*form, 300) for form in FORMS] + [(True, True, 1)])
def test_state_and_reads_are_those_of_the_twin(erases, decays, length):
    """One chunk, and three of which the last is padded; gradients are those of the form for XLA."""
    arguments = example(length, erases, decays)
    given = present(arguments)
    expected = tuple(np.stack(x) for x in zip(*[twin(**row(arguments, i)) for i in range(3)], strict=True))
    rng = np.random.default_rng(0)
    cotangents = tuple(rng.normal(size=x.shape).astype(np.float32) for x in expected)
    result, gradients = with_gradients("pallas", given, cotangents)
    assert_close(result, expected, 2e-5)
    assert_close(gradients, with_gradients("xla", given, cotangents)[1], 2e-5)


@pytest.mark.thorough
def test_mapped_and_differentiated_again():
    """Over an axis that only some arrays have, a tangent, and the derivative of a gradient: as the form for XLA."""
    given = example(20)
    more = np.stack([given["values"], 2 * given["values"]])

    @functools.partial(jax.jit, static_argnums=0)
    def both(implementation):
        def loss(values):
            state, reads = recur(implementation, given | {"values": values * jnp.sin(values)})
            return jnp.sum(jnp.sin(state)) + jnp.sum(jnp.cos(reads))

        def curved(values):
            tangent = jax.jvp(loss, (values,), (jnp.cos(values),))[1]
            return tangent, jax.jvp(jax.grad(loss), (values,), (jnp.cos(values),))[1]

        return jax.vmap(curved)(more)

    assert_close(both("pallas"), both("xla"))


def test_shared_and_missing_axes():
    """A state for each head that is the same for all rows, and one strength for all."""
    keys, values = np.float32(np.random.default_rng(0).normal(size=(2, 2, 3, 40, WIDTH)))
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    strength = np.full(40, 0.5, np.float32)
    initial = np.float32(np.random.default_rng(1).normal(size=(3, WIDTH, WIDTH)))
    given = {"queries": keys, "keys": keys, "values": values, "write": strength, "erase": strength, "initial": initial}
    assert_close(jax.jit(functools.partial(recur, "pallas"))(given), jax.jit(functools.partial(recur, "xla"))(given))


def test_no_position_leaves_the_state():
    given = example(0)
    state, reads = recur("pallas", given)
    assert reads.shape == (3, 0, OF_VALUES)
    np.testing.assert_array_equal(state, given["initial"])


@pytest.mark.parametrize("nothing", [-np.inf, -1e6])
def test_a_decay_to_nothing_forgets_all_before_it(nothing):
    given = example(140)
    given["log_decay"][:, 5] = nothing
    cotangents = np.ones((3, OF_VALUES, WIDTH), np.float32), np.ones((3, 140, OF_VALUES), np.float32)
    result, gradients = with_gradients("pallas", given, cotangents)
    expected, others = with_gradients("xla", given, cotangents)
    assert_close(result, expected, 1e-4)
    assert_close(gradients, others, 1e-4)
    assert all(np.all(np.isfinite(x)) for x in gradients.values())


@pytest.mark.parametrize("passes", [3, 6])
@pytest.mark.parametrize("repeats", [True, False])
def test_systems_are_inverted_with_their_gradient(passes, repeats):
    """All keys equal, where a Neumann series loses all precision, or all different; strengths of up to 2."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(1 if repeats else 128, 16)) * np.ones((128, 1))
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    below = np.tril(rng.uniform(0, 2, (128, 1)) * keys @ keys.T, -1)
    inverse, pull = jax.vjp(functools.partial(unit_triangular_inverse, passes), jnp.float32(below))
    expected = np.linalg.inv(np.eye(128) + below)
    tolerance = 2e-5 if passes == 6 else 1e-3
    np.testing.assert_allclose(inverse, expected, atol=tolerance)
    cotangent = rng.normal(size=below.shape)
    gradient = -expected.T @ cotangent @ expected.T
    (got,) = pull(jnp.float32(cotangent))
    np.testing.assert_allclose(got, gradient, atol=tolerance * np.abs(gradient).max())


def test_reflections_stay_reflections_when_factors_are_rounded(monkeypatch):
    """As on a TPU by default. With e = 2 an error in the length of a key grows with every step; the sign of r_t is the
    parity of the bits. If products of keys were rounded to bfloat16, the error would be 0.1 to 2 at the end."""
    monkeypatch.setattr(recurrence, "exact", lambda interpret: not interpret)
    bits = np.random.default_rng(0).integers(0, 2, 512)
    keys = np.random.default_rng(1).normal(size=(4, 1, 16))
    keys = np.float32(keys / np.linalg.norm(keys, axis=-1, keepdims=True))
    sequence = jnp.tile(keys, (1, 512, 1))
    _, reads = ops.linear_recurrence(
        sequence, sequence, jnp.zeros((512, 1)), jnp.zeros(512), 2.0 * bits, initial=keys, implementation="pallas"
    )
    np.testing.assert_allclose(reads[..., 0], np.tile(1 - 2 * (np.cumsum(bits) % 2), (4, 1)), atol=0.01)


def test_bfloat16_is_summed_in_float32():
    """The result is as far from the twin as its own rounding; sums in bfloat16 would end at 256."""
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in (np.ones((600, 1)), np.ones((600, 1)), np.ones((600, 1)))]
    read, memory = ops.normalized_outer_product_attention(
        *arrays, causal=True, return_carry=True, implementation="pallas"
    )
    assert read.dtype == jnp.bfloat16 and memory.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(read, np.float32)[:, 0], np.arange(1, 601), rtol=2**-8)
    assert memory[0, 0] == 600


def test_gradients_of_bfloat16_are_summed_in_float32():
    """Three terms in the gradient for a key: each array is as far from that of float32 as its own rounding."""
    given = {name: value for name, value in example(200).items() if name != "initial"}
    rounded = {name: x.astype(jnp.bfloat16) if x.ndim == 3 else x for name, x in given.items()}
    cotangents = np.zeros((3, OF_VALUES, WIDTH), np.float32), np.ones((3, 200, OF_VALUES), np.float32)
    (_, reads), gradients = with_gradients("pallas", rounded, (cotangents[0], cotangents[1].astype(jnp.bfloat16)))
    assert reads.dtype == jnp.bfloat16 and gradients["keys"].dtype == jnp.bfloat16
    exact = {name: np.asarray(x, np.float32) for name, x in rounded.items()}
    _, expected = with_gradients("xla", exact, cotangents)
    assert_close({name: np.asarray(x, np.float32) for name, x in gradients.items()}, expected, 2**-8)


def test_linear_attention_has_the_kernel_too():
    queries, keys, values = (example(300)[name] for name in ("queries", "keys", "values"))
    mine, other = (
        jax.jit(functools.partial(ops.linear_attention, causal=True, implementation=kind))(queries, keys, values)
        for kind in ("pallas", "xla")
    )
    np.testing.assert_allclose(mine, other, atol=1e-5)


def test_outer_product_attention_has_the_kernel_too():
    """Padded keys, probabilities, and a memory from before."""
    given = example(150)
    rng = np.random.default_rng(0)
    options = {
        "key_mask": np.arange(150) < 140,
        "write_probability": given["write"],
        "read_probability": given["erase"],
        "carry": given["initial"],
    }
    arrays = rng.normal(size=(3, 150, WIDTH)), given["keys"], given["values"]

    @functools.partial(jax.jit, static_argnums=0)
    def attend(implementation):
        return ops.normalized_outer_product_attention(
            *map(jnp.float32, arrays), causal=True, return_carry=True, implementation=implementation, **options
        )

    assert_close(attend("pallas"), attend("xla"))


def test_auto_is_the_form_for_the_platform():
    """The kernel for long causal sequences on a TPU, unless a chunk size is given; XLA's form elsewhere."""

    def program(operation, length, **options):
        shape, strength = (
            jax.ShapeDtypeStruct((length, WIDTH), jnp.float32),
            jax.ShapeDtypeStruct((length,), jnp.float32),
        )
        arrays = [shape] * 3 if operation is ops.normalized_outer_product_attention else [shape] * 2 + [strength] * 2
        return str(jax.make_jaxpr(functools.partial(operation, **options))(*arrays))

    attention, scan = ops.normalized_outer_product_attention, ops.nam_scan
    cases = [(attention, 300, {"causal": True}), (scan, 300, {})]
    for operation, length, options in cases:
        assert "pallas_call" not in program(operation, length, **options)
        with on_platform("tpu"):
            assert "pallas_call" in program(operation, length, **options)
            assert "pallas_call" not in program(operation, 100, **options)
            for others in ({"chunk_size": 64}, {"implementation": "xla"}):
                assert "pallas_call" not in program(operation, length, **options, **others)
    with on_platform("tpu"):
        assert "pallas_call" not in program(attention, 300)


def test_wrong_arguments_are_refused():
    wide, strength = np.zeros((4, 2000), np.float32), np.zeros(4, np.float32)
    for causal in (True, False):
        with pytest.raises(ValueError, match="no implementation 'triton'"):
            ops.linear_attention(wide, wide, wide, causal=causal, implementation="triton")
    with pytest.raises(ValueError, match="no implementation 'triton'"):
        ops.linear_recurrence(wide, wide, wide, strength, implementation="triton")
    with pytest.raises(ValueError, match="widths of up to 256, not float32 with widths 2000 and 2000: use implem"):
        ops.normalized_outer_product_attention(wide, wide, wide, causal=True, implementation="pallas")
    with pytest.raises(ValueError, match="widths of up to 256, not float32 with widths 2000 and 2000: use implem"):
        ops.nam_scan(wide, wide, strength, strength, implementation="pallas")
