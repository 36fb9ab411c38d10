"""The kernels in Pallas, interpreted, with several blocks: against float64 loops, and against the forms for XLA.

What they share with these forms is tested in `test_geometric.py`.
"""

from __future__ import annotations

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops
from lenmem.placement import on_platform
from tests.marks import thorough

N, D, V, BATCH = 300, 5, 3, (2,)
TILES = 3


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def example(dtype=np.float32):
    """Query, key, value, direction, and a mask with holes; the second row is shorter by more than a tile."""
    arrays = [normal(i, *BATCH, N, width).astype(dtype) for i, width in enumerate((D, D, V, 2))]
    mask = (normal(4, *BATCH, N) > -1) & (np.arange(N) < np.array([[N], [150]]))
    return arrays, mask


def reading(logits, value, mask, one_sided):
    """The values that each target reads, term by term in float64."""
    n = len(logits)
    result = np.zeros_like(value)
    for i in range(n):
        left = [j for j in range(i - 1, -1, -1) if mask[j]]
        right = [] if one_sided else [j for j in range(i + 1, n) if mask[j]]
        order = np.array(sorted(left + right, key=lambda j: (abs(j - i), j < i)), int)
        match = 1 / (1 + np.exp(-logits[i, order]))
        result[i] = (match * np.cumprod(np.concatenate([[1], 1 - match]))[:-1]) @ value[order]
    return result


def twin(query, key, value, direction, mask, one_sided=False):
    """Attention with the scale 0.7 and the offset -2, in float64."""
    right = np.arange(N) > np.arange(N)[:, None]
    logits = 0.7 * query @ np.swapaxes(key, 1, 2) - 2
    if not one_sided:
        logits = logits + np.where(right, direction[..., 1:], direction[..., :1])
    return np.stack([reading(*row, one_sided) for row in zip(logits, value, mask, strict=True)])


def attend(query, key, value, direction, mask, *, one_sided=False, **options):
    options |= {"scale": 0.7, "offset": -2.0, "key_mask": mask}
    if one_sided:
        return ops.stick_breaking_attention(query, key, value, **options)
    return ops.geometric_attention(query, key, value, direction=direction, **options)


@functools.partial(jax.jit, static_argnames=("one_sided", "implementation"))
def with_gradients(arrays, mask, cotangent, **options):
    result, pull = jax.vjp(lambda *x: attend(*x, mask, **options), *arrays)
    return result, pull(cotangent)


@pytest.mark.parametrize("options", [{"one_sided": True}, *thorough([{}], [{"tolerance": 0.0}])], ids=str)
def test_several_blocks(options):
    """Values are the twin's, slopes its finite differences, gradients those of the form for XLA."""
    arrays, mask = example()
    one_sided = "one_sided" in options
    cotangent = normal(5, *BATCH, N, V) * mask[..., None]
    got, gradients = with_gradients(arrays, mask, cotangent, implementation="pallas", **options)
    exact = [x.astype(np.float64) for x in arrays]
    expected = twin(*exact, mask, one_sided)
    np.testing.assert_allclose(np.asarray(got) * mask[..., None], expected * mask[..., None], atol=1e-5)
    towards = [normal(10 + i, *x.shape) for i, x in enumerate(exact)]
    ahead, behind = (
        np.sum(cotangent * twin(*[x + step * t for x, t in zip(exact, towards, strict=True)], mask, one_sided))
        for step in (1e-5, -1e-5)
    )
    slope = sum(np.sum(g * t) for g, t in zip(gradients, towards, strict=True))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-4)
    _, by_xla = with_gradients(arrays, mask, cotangent, implementation="xla", one_sided=one_sided)
    for mine, other in zip(gradients, by_xla, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_many_keys_that_almost_never_match():
    """Their losses are 1e-7 each: half of that, or of their sum, would be lost in 1 + exp(x)."""
    count = 1000
    nothing, value = np.zeros((count, 1), np.float32), np.ones((count, 1), np.float32)
    result = jax.jit(functools.partial(ops.geometric_attention, offset=-16.0, implementation="pallas"))(
        nothing, nothing, value
    )
    expected = -np.expm1((count - 1) * -np.log1p(np.exp(-16.0)))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_tolerance_ends_the_look_of_each_tile():
    """Probabilities of 1/2 in the last tile and next to none elsewhere: the tile stops after its neighbour.

    Other tiles see everything, and padded targets, whose keys never match, are not waited for.
    """
    count = 4 * 128
    query = np.where(np.arange(count) < 384, np.float32(-30), np.float32(0))[:, None]
    key, value = np.ones((count, 1), np.float32), np.ones((count, 1), np.float32)
    mask = np.arange(count) < count - 20

    @jax.jit
    def seen_by(target):
        def read(value):
            options = {"scale": 1.0, "tolerance": 0.01, "key_mask": mask, "implementation": "pallas"}
            return ops.geometric_attention(query, key, value, **options)[target, 0]

        return jax.grad(read)(value)[:, 0]

    in_last_tile = np.flatnonzero(np.asarray(seen_by(400)))
    assert in_last_tile.min() >= 256 and len(in_last_tile) > 20
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(seen_by(3))), np.delete(np.arange(count - 20), 3))


@pytest.mark.thorough
def test_tolerance_bounds_the_error():
    """eps max |v| in values."""
    arrays, mask = example()
    arrays[3] -= 2.0  # so that more than one block is needed
    exact, _ = with_gradients(arrays, mask, np.zeros((*BATCH, N, V)), implementation="pallas")
    for tolerance in (0.5, 0.01):
        short, _ = with_gradients(arrays, mask, np.zeros((*BATCH, N, V)), implementation="pallas", tolerance=tolerance)
        error = np.linalg.norm(np.asarray(short - exact) * mask[..., None], axis=-1).max()
        assert error <= tolerance * np.linalg.norm(arrays[2], axis=-1).max() + 1e-5


@jax.jit
def normalized(query, key, direction, mask):
    """The weights of `test_normalized_weights`."""
    logits = ops.geometric_attention_logits(query, key, direction=direction, offset=-2.0)
    return ops.geometric_attention_weights(logits, mask, normalize=True)


@pytest.mark.parametrize("options", [{}, {"block_size": 64}, {"tolerance": 0.0}, {"implementation": "pallas"}], ids=str)
def test_normalized_weights(options):
    """The values of normalised weights."""
    (query, key, value, direction), mask = example()
    scores = {"direction": direction, "offset": -2.0}
    run = jax.jit(lambda *x: ops.geometric_attention(*x, **scores, key_mask=mask, normalize=True, **options))
    got = np.asarray(run(query, key, value))
    expected = np.asarray(normalized(query, key, direction, mask)) @ value
    np.testing.assert_allclose(got * mask[..., None], expected * mask[..., None], atol=1e-5)


def test_auto_is_the_form_for_the_platform():
    """The kernel for a TPU, within its limits; XLA's elsewhere."""
    shape = jax.ShapeDtypeStruct((N, D), jnp.float32)
    longer = jax.ShapeDtypeStruct((2**16, D), jnp.float32)

    def program(operation, shape):
        return str(jax.make_jaxpr(lambda *x: operation(*x))(shape, shape, shape))

    for operation in (ops.geometric_attention, ops.stick_breaking_attention):
        assert "pallas_call" not in program(operation, shape)
        with on_platform("tpu"):
            assert "pallas_call" in program(operation, shape)
    with on_platform("tpu"):
        assert "pallas_call" not in program(ops.geometric_attention, longer)
    middle = jax.ShapeDtypeStruct((6000, 64), jnp.float32)  # a v4 has an eighth of the VMEM
    for kind, kernel in (
        ("TPU v5 lite", True),
        ("TPU v6 lite", True),
        ("TPU v5", True),
        ("TPU v4", False),
        ("TPU v9", False),
    ):
        with on_platform("tpu", kind):
            assert ("pallas_call" in program(ops.stick_breaking_attention, middle)) == kernel


def test_two_sequences_share_a_program_if_both_fit():
    """So there are half as many programs."""
    rows = jax.ShapeDtypeStruct((2, 1024, 64), jnp.float32)
    for kind, programs in (("TPU v5 lite", 1), ("TPU v4", 2)):
        with on_platform("tpu", kind):
            traced = str(jax.make_jaxpr(lambda x: ops.geometric_attention(x, x, x))(rows))
        assert f"grid=({programs}, 8)" in traced


def test_wrong_arguments_are_refused():
    """An unknown implementation, and what the kernel cannot do."""
    long = np.zeros((2**17, 1), np.float32)
    for operation in (ops.geometric_attention, ops.stick_breaking_attention):
        with pytest.raises(
            ValueError, match="no implementation 'palas'. Did you mean 'pallas'. Allowed: auto, xla, pal"
        ):
            operation(*[np.zeros((4, 1), np.float32)] * 3, implementation="palas")
        with pytest.raises(
            ValueError, match=r"up to a length of \d+ .* not float32 of length 131072: use implem.*'xla'"
        ):
            operation(long, long, long, implementation="pallas")


def test_kernels_are_imported_when_used():
    """Not by `import lenmem`, nor by the operations on other platforms."""
    code = "import jax, sys; from lenmem import ops; x = jax.numpy.ones((4, 2)); ops.geometric_attention(x, x, x);"
    code += "kernels = 'lenmem.ops.pallas.', 'jax.experimental.pallas'; "
    code += "assert not [name for name in sys.modules if name.startswith(kernels)]"
    subprocess.run([sys.executable, "-c", code], check=True)
