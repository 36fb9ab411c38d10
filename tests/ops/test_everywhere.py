"""Operations on inputs that callers outside of lenmem have: empty batches, integers, NumPy, half precision, shards."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from lenmem import models, ops
from lenmem.placement import on_platform
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy


@pytest.mark.parametrize("options", [{}, {"block_size": 2}, {"tolerance": 1e-3}], ids=str)
def test_empty_batches(options):
    nothing = jnp.zeros((0, 5, 4))
    attend = ops.geometric_attention if options else ops.stick_breaking_attention
    assert attend(nothing, nothing, nothing, **options).shape == (0, 5, 4)
    assert jax.grad(lambda x: jnp.sum(attend(x, x, x, **options)))(nothing).shape == (0, 5, 4)


def test_empty_batches_never_reach_a_kernel():
    nothing, long = jnp.zeros((0, 5, 4)), jnp.zeros((0, 200, 4))
    with on_platform("tpu"):
        for x, options in ((nothing, {"implementation": "pallas"}), (long, {})):
            for attend in (ops.geometric_attention, ops.stick_breaking_attention):
                assert attend(x, x, x, **options).shape == x.shape
            assert ops.linear_recurrence(x, x, x, x[..., 0], **options)[1].shape == x.shape


def test_a_sequence_has_at_least_one_position():
    for attend in (ops.geometric_attention, ops.stick_breaking_attention):
        with pytest.raises(ValueError, match="a sequence must have at least one position"):
            attend(jnp.zeros((2, 0, 4)), jnp.zeros((2, 0, 4)), jnp.zeros((2, 0, 4)))


def test_integers_are_read_as_floats():
    np.testing.assert_allclose(ops.dereference(jnp.array([[10], [20]]), jnp.array([0.5, 0.5])), [15])
    np.testing.assert_allclose(ops.nam_read(0.5 * jnp.ones((2, 3)), jnp.array([1, 0, 0])), [0.5, 0.5])
    np.testing.assert_allclose(ops.geometric_attention_weights(jnp.array([[0, 0], [0, 0]])), [[0, 0.5], [0.5, 0]])


def test_doubles_of_numpy_are_taken_without_a_warning():
    assert ops.geometric_attention_weights(np.zeros((2, 2))).dtype == jnp.float32
    rows = np.zeros((3, 2))
    assert ops.linear_recurrence(rows, rows, rows, np.zeros(3))[1].dtype == jnp.float32


def test_a_program_for_another_device_of_the_machine_has_no_kernel(monkeypatch):
    """On a machine with a TPU, a program for its CPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    x = jnp.zeros((200, 4))

    def attend():
        return str(jax.make_jaxpr(lambda x: ops.geometric_attention(x, x, x))(x))

    assert "pallas_call" in attend()
    with jax.default_device(jax.devices("cpu")[0]):
        assert "pallas_call" not in attend()
    with on_platform("cpu"):
        assert "pallas_call" not in attend()


ATTENTIONS = {
    "geometric": functools.partial(ops.geometric_attention, tolerance=1e-3),
    "stick_breaking": ops.stick_breaking_attention,
    "outer_product": functools.partial(ops.normalized_outer_product_attention, causal=True),
}


@pytest.mark.parametrize("attend", ATTENTIONS.values(), ids=ATTENTIONS)
def test_kernels_have_32_bits_if_the_default_is_64(attend):
    """Lowered for a TPU, whose compiler knows no others, with the gradient."""
    with jax.enable_x64(True), on_platform("tpu"):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(attend(x, x, x))))
        lowered = gradient.trace(jnp.zeros((2, 256, 8), jnp.float32)).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


@pytest.fixture
def halves():
    """float16, on processors where XLA can convert it."""
    try:
        jnp.zeros(3, jnp.float16).astype(jnp.float32)
    except jax.errors.JaxRuntimeError as error:  # without the instruction set F16C
        pytest.skip(f"XLA cannot convert float16 on this processor: {error}")
    return jnp.float16


def test_large_numbers_in_float16(halves):
    """Squares and sums beyond 65504, the largest number."""
    ones, keys = jnp.ones(2, halves), jnp.array([[300.0], [600]], halves)
    for weigh, expected in (
        (ops.inverse_square_weights, [0.8, 0.2]),
        (functools.partial(ops.softmax_distance_weights, temperature=halves(1)), [1, 0]),
    ):
        weights = weigh(jnp.zeros(1, halves), keys, ones)
        assert weights.dtype == halves
        np.testing.assert_allclose(weights, expected, atol=1e-3)
    np.testing.assert_allclose(ops.dot_product_weights(jnp.full(1, 300, halves), keys, ones), [0, 1], atol=1e-3)
    some, values = jnp.full((4096, 2), 5, halves), jnp.full((4096, 3), 20, halves)
    for causal in (False, True):
        np.testing.assert_allclose(ops.linear_attention(some, some, values, causal=causal), 20, rtol=2e-3)
    orthogonal = jnp.array([[5.0, -5]], halves)
    np.testing.assert_array_equal(ops.normalized_outer_product_attention(orthogonal, some, values), 0)


def test_empty_rows_in_float16(halves):
    gradient = jax.grad(lambda memory: ops.content_weights(memory, jnp.ones((1, 4), halves), jnp.ones(1, halves))[0, 0])
    gradient = gradient(jnp.zeros((3, 4), halves))
    assert gradient.dtype == halves and jnp.isfinite(gradient).all()


def test_zeros_in_float16(halves):
    zeros = jnp.zeros(3, halves)
    np.testing.assert_array_equal(ops.unit(zeros), zeros)
    keys, strengths = jnp.ones((3, 3), jnp.float16), jnp.ones(3, jnp.float16)
    masked = ops.inverse_square_weights(zeros, keys, strengths, jnp.zeros(3, bool))
    np.testing.assert_array_equal(masked, zeros)
    np.testing.assert_allclose(ops.dot_product_weights(zeros, keys, zeros), 1 / 3, atol=0.02)


@pytest.mark.thorough
def test_gradients_inside_and_through_shards():
    """One device has the types of many: an array varies over the axis, or is replicated."""
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    rows, weights = jax.random.normal(jax.random.key(0), (2, 5, 4)), jax.random.normal(jax.random.key(1), (4, 4))
    split, same = PartitionSpec("batch"), PartitionSpec()

    def attend(weights, rows):
        return ops.geometric_attention(rows @ weights, rows, rows)

    def loss(attend):
        return lambda weights: jnp.sum(jnp.sin(attend(weights, rows)))

    sharded = jax.shard_map(attend, mesh=mesh, in_specs=(same, split), out_specs=split)
    np.testing.assert_allclose(jax.grad(loss(sharded))(weights), jax.grad(loss(attend))(weights), atol=1e-5)

    def inside(weights, rows):
        return jax.grad(lambda rows: jnp.sum(jnp.sin(attend(weights, rows))))(rows)

    sharded = jax.shard_map(inside, mesh=mesh, in_specs=(same, split), out_specs=split)
    np.testing.assert_allclose(sharded(weights, rows), inside(weights, rows), atol=1e-5)

    def truncated(rows):
        return ops.geometric_attention(rows, rows, rows, tolerance=1e-3)

    sharded = jax.shard_map(truncated, mesh=mesh, in_specs=split, out_specs=split)
    np.testing.assert_allclose(sharded(rows), truncated(rows), atol=1e-5)


def test_erasing_recurrences_inside_shards_on_a_tpu():
    """Traced only: what varies over the mesh must do so in the carries of loops, too."""
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("batch")

    def loss(rows):
        return jnp.sum(ops.linear_recurrence(rows, rows, rows, rows[..., 0], rows[..., 1], chunk_size=8)[1])

    with on_platform("tpu"):
        sharded = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=split, out_specs=split)
        assert jax.eval_shape(sharded, jnp.zeros((2, 20, 4))).shape == (2, 20, 4)


@pytest.mark.parametrize("name", ["ndr", "act", "transformer_shared", "lstm"])
def test_what_init_returns_can_be_applied(name):
    """Traces and losses are not part of it."""
    task = Copy(vocabulary=4, train_lengths=(1, 3))
    batch = draw(task, jax.random.key(0), jnp.array([2, 3]), 3)
    model, arguments = models.make(name, task.spec), (batch.inputs, batch.input_mask, batch.target_mask)
    variables = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    assert list(variables) == ["params"]
    assert jax.eval_shape(model.apply, variables, *arguments).shape[:2] == batch.target_mask.shape
