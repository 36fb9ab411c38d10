"""The kernel of causal linear attention, interpreted, against a loop in float64 and against the form for XLA."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.placement import on_platform

ROWS, D, V = (2, 3), 5, 4


def example(length):
    """Queries, keys, values, strengths, and a memory for each head that is the same for all rows."""
    rng = np.random.default_rng(length)
    shapes = [(*ROWS, length, D), (*ROWS, length, D), (*ROWS, length, V), (*ROWS, length), (ROWS[-1], V, D)]
    queries, keys, values, strengths, memory = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return queries, keys, values, np.abs(strengths), memory


def attend(implementation, queries, keys, values, strengths, memory):
    return ops.normalized_outer_product_attention(
        queries,
        keys,
        values,
        write_probability=strengths,
        causal=True,
        carry=memory,
        return_carry=True,
        implementation=implementation,
    )


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(implementation, arrays, cotangents):
    result, pull = jax.vjp(functools.partial(attend, implementation), *arrays)
    return result, pull(cotangents)


def twin(queries, keys, values, strengths, memory):
    """The memory grows by one outer product at a time."""
    queries, keys = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, keys))
    memory, reads = np.broadcast_to(memory, (*ROWS, V, D)), np.zeros(values.shape)
    for i in range(keys.shape[-2]):
        written = strengths[..., i, None] * values[..., i, :]
        memory = memory + written[..., :, None] * keys[..., i, None, :]
        reads[..., i, :] = np.einsum("...vk,...k->...v", memory, queries[..., i, :])
    return reads, memory


@pytest.mark.parametrize("length", [1, 600])
def test_reads_and_memory_are_those_of_the_twin(length):
    """One chunk, and three of which the last is padded; gradients are those of the form for XLA."""
    arrays = example(length)
    rng = np.random.default_rng(0)
    expected = twin(*[x.astype(np.float64) for x in arrays])
    cotangents = tuple(rng.normal(size=x.shape).astype(np.float32) for x in expected)
    result, gradients = with_gradients("pallas", arrays, cotangents)
    for mine, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-5)
    _, by_xla = with_gradients("xla", arrays, cotangents)
    for mine, other in zip(gradients, by_xla, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5 * max(1, np.abs(other).max()))


def test_no_position_leaves_the_memory():
    arrays = example(0)
    reads, memory = attend("pallas", *arrays)
    assert reads.shape == (*ROWS, 0, V)
    np.testing.assert_array_equal(memory, np.broadcast_to(arrays[-1], memory.shape))


def test_mapped_and_differentiated_forward():
    """Over an axis that only some arrays have, and a tangent: as the form for XLA."""
    queries, keys, values, strengths, memory = example(20)
    more = np.stack([values, 2 * values])

    @functools.partial(jax.jit, static_argnums=0)
    def both(implementation):
        def read(values):
            return attend(implementation, queries, keys, values * jnp.sin(values), strengths, memory)[0]

        return jax.vmap(lambda values: jax.jvp(read, (values,), (jnp.cos(values),)))(more)

    for mine, other in zip(both("pallas"), both("xla"), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_bfloat16_is_summed_in_float32():
    """The result is as far from the twin as its own rounding; sums in bfloat16 would end at 256."""
    arrays = [np.ones((600, 1)), np.ones((600, 1)), np.ones((600, 1)), np.ones(600)]
    read, memory = attend("pallas", *[jnp.asarray(x, jnp.bfloat16) for x in arrays], None)
    assert read.dtype == jnp.bfloat16 and memory.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(read, np.float32)[:, 0], np.arange(1, 601), rtol=2**-8)
    assert memory[0, 0] == 600


def test_linear_attention_has_the_kernel_too():
    queries, keys, values, *_ = example(300)
    mine, other = (
        jax.jit(functools.partial(ops.linear_attention, causal=True, implementation=kind))(queries, keys, values)
        for kind in ("pallas", "xla")
    )
    np.testing.assert_allclose(mine, other, atol=1e-5)


def test_auto_is_the_form_for_the_platform():
    """The kernel for long causal sequences on a TPU, unless a chunk size is given; XLA's form elsewhere."""

    def program(length, **options):
        shape = jax.ShapeDtypeStruct((length, D), jnp.float32)
        attention = functools.partial(ops.normalized_outer_product_attention, **options)
        return str(jax.make_jaxpr(attention)(shape, shape, shape))

    assert "pallas_call" not in program(300, causal=True)
    with on_platform("tpu"):
        assert "pallas_call" in program(300, causal=True)
        for length, options in ((300, {}), (100, {"causal": True}), (300, {"causal": True, "chunk_size": 64})):
            assert "pallas_call" not in program(length, **options)


def test_wrong_arguments_are_refused():
    wide = np.zeros((4, 2000), np.float32)
    for causal in (True, False):
        with pytest.raises(ValueError, match="no implementation 'triton'"):
            ops.linear_attention(wide, wide, wide, causal=causal, implementation="triton")
    with pytest.raises(ValueError, match="widths of up to 1024, not float32 with widths 2000 and 2000: use implem"):
        ops.normalized_outer_product_attention(wide, wide, wide, causal=True, implementation="pallas")
