"""`lenmem.ops.tensor_memory` against float64 loops written from section 6, and the section's claims."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import ops

COUNTS, WIDTHS, V = (3, 4, 2), (5, 6, 3), 4
"""Entries and key widths of up to three levels, outermost first; width of the values."""

memory_of = jax.jit(ops.tensor_memory)
read = jax.jit(ops.nested_read)
write = jax.jit(ops.nested_write)
few_shot = functools.partial(jax.jit, static_argnums=(3, 4))(ops.few_shot)


def orthogonal(rng, *shape):
    """Rows of different lengths that are orthogonal."""
    *leading, count, width = shape
    basis = np.linalg.qr(rng.normal(size=(*leading, width, width)))[0][..., :count, :]
    return basis * rng.uniform(0.5, 2, size=(*leading, count, 1))


def entries(levels, *, seed=0, leading=(), keys=orthogonal):
    """Keys of each level, values, and which of them are real, in float64."""
    rng = np.random.default_rng(seed)
    made = tuple(keys(rng, *leading, *COUNTS[: n + 1], WIDTHS[n]) for n in range(levels))
    shape = (*leading, *COUNTS[:levels])
    return made, rng.normal(size=(*shape, V)), rng.uniform(size=shape) < 0.8


def normal(rng, *shape):
    return rng.normal(size=shape)


def f32(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float32), tree)


def mu(x):
    return x / np.sqrt(x @ x + 1e-10)


def twin(keys, values, mask=None):
    """M as a sum of tensor products over every value, one by one."""
    levels = len(keys)
    total = np.zeros((V, *(key.shape[-1] for key in reversed(keys))))
    for place in itertools.product(*(range(n) for n in values.shape[:-1])):
        if mask is not None and not mask[place]:
            continue
        term = values[place]
        for level in reversed(range(levels)):
            term = np.multiply.outer(term, mu(keys[level][place[: level + 1]]))
        total += term
    return total


def contracted(memory, *queries):
    for query in queries:
        memory = memory @ mu(query)
    return memory


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_a_memory_is_a_sum_of_tensor_products(levels):
    """Any order, with any keys. No level: the vector itself; one: the matrix of `outer_product_memory`."""
    keys, values, mask = entries(levels, keys=normal)
    got = memory_of(*f32((keys, values)), mask=mask if levels else None)
    np.testing.assert_allclose(got, twin(keys, values, mask if levels else None), rtol=1e-5, atol=1e-5)
    if levels == 1:
        np.testing.assert_allclose(got, ops.outer_product_memory(*f32((keys[0], values)), key_mask=mask), atol=1e-6)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_nested_reads_return_what_orthogonal_keys_hold(levels):
    """Theorem 2 at each level: the outer m keys give the tensor of their entry, all keys its vector."""
    keys, values, mask = entries(levels)
    memory = memory_of(*f32((keys, values)), mask=mask)
    for depth in range(1, levels + 1):
        for place in itertools.product(*(range(n) for n in COUNTS[:depth])):
            queries = [keys[n][place[: n + 1]] for n in range(depth)]
            inside = twin([keys[n][place] for n in range(depth, levels)], values[place], mask[place])
            np.testing.assert_allclose(read(memory, *f32(queries)), inside, atol=1e-5)


def test_a_batch_of_memories_is_read_with_a_batch_of_queries():
    """Leading axes are those of the queries; each row is its own document."""
    keys, values, mask = entries(2, leading=(2,), keys=normal)
    memory = memory_of(*f32((keys, values)), mask=mask)
    queries = keys[0][:, 1], keys[1][:, 1, 2]
    gates = np.array([0.25, 1.0])
    got = read(memory, *f32(queries), read_probability=f32(gates))
    for row in range(2):
        expected = twin(tuple(key[row] for key in keys), values[row], mask[row])
        np.testing.assert_allclose(memory[row], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[row], gates[row] * contracted(expected, *(q[row] for q in queries)), atol=1e-5)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_what_was_written_at_a_level_is_read_at_that_level(levels):
    """Theorem 1 at each level, over a memory with any contents; what orthogonal keys hold stays as it was."""
    rng = np.random.default_rng(levels)
    for depth in range(1, levels + 1):
        memory = 3 * rng.normal(size=(V, *WIDTHS[:levels][::-1]))
        pairs = [orthogonal(rng, 2, WIDTHS[n]) for n in range(depth)]
        keys, value = [pair[0] for pair in pairs], rng.normal(size=memory.shape[: memory.ndim - depth])
        after = write(*f32((memory, keys, value)))
        np.testing.assert_allclose(read(after, *f32(keys)), value, atol=1e-5)
        for level in range(depth):
            other = [pairs[n][int(n == level)] for n in range(depth)]
            np.testing.assert_allclose(read(after, *f32(other)), contracted(memory, *other), atol=1e-4)


def test_a_word_is_written_by_reading_and_writing_its_sentence():
    """The write with two keys is the matrix write of the word, inside the write of the sentence; with gates."""
    rng = np.random.default_rng(0)
    memory, sentence, word = rng.normal(size=(V, 6, 5)), mu(rng.normal(size=5)), mu(rng.normal(size=6))
    value, gates = rng.normal(size=V), (0.75, 0.5)
    matrix = memory @ sentence
    matrix = matrix + gates[0] * np.outer(value, word) - gates[1] * matrix @ np.outer(word, word)
    expected = memory + np.multiply.outer(matrix - memory @ sentence, sentence)
    got = write(*f32((memory, (sentence, word), value)), *gates)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    flat = write(*f32((matrix, (word,), value)), *gates)
    np.testing.assert_allclose(flat, ops.nam_write(*f32((matrix, word, value)), *gates), atol=1e-5)


def test_zero_keys_and_masked_entries_leave_no_trace():
    """Values and gradients, although masked entries and their keys are NaN."""
    keys, values, mask = entries(2, keys=normal)
    mask[1] = False
    dirty = (np.where(np.arange(3)[:, None] == 1, np.nan, keys[0]), np.where(mask[..., None], keys[1], np.nan))
    holes = np.where(mask[..., None], values, np.nan)

    def loss(keys, values):
        return jnp.sum(ops.tensor_memory(keys, values, mask=jnp.asarray(mask)) ** 2)

    got, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(f32(dirty), f32(holes))
    np.testing.assert_allclose(got, np.sum(twin(keys, values, mask) ** 2), rtol=1e-5)
    assert all(np.all(np.isfinite(gradient)) for gradient in jax.tree.leaves(gradients))
    memory = f32(twin(keys, values))
    for zero in ((0 * keys[0][0], keys[1][0, 0]), (keys[0][0], 0 * keys[1][0, 0])):
        np.testing.assert_array_equal(write(memory, f32(zero), f32(values[0, 0])), memory)
        assert not np.any(read(memory, *f32(zero)))
    gradient = jax.grad(lambda k: jnp.sum(write(memory, (k, k[0] + jnp.ones(6)), jnp.ones(V))))(jnp.zeros(5))
    assert np.all(np.isfinite(gradient))


def test_gradients_are_those_of_the_twin():
    """Of a read after a write to a memory of keys and values, along a random direction of each argument."""
    keys, values, _ = entries(2, keys=normal)
    rng = np.random.default_rng(1)
    arguments = (*keys, values, rng.normal(size=5), rng.normal(size=6), rng.normal(size=V))
    weights = rng.normal(size=V)

    def ours(sentences, words, values, sentence, word, value):
        memory = ops.nested_write(ops.tensor_memory((sentences, words), values), (sentence, word), value, 0.75, 0.5)
        return ops.nested_read(memory, sentences[1], words[1, 1]) @ jnp.asarray(weights, jnp.float32)

    def theirs(sentences, words, values, sentence, word, value):
        memory = twin((sentences, words), values)
        change = 0.75 * value - 0.5 * contracted(memory, sentence, word)
        memory = memory + np.multiply.outer(np.multiply.outer(change, mu(word)), mu(sentence))
        return contracted(memory, sentences[1], words[1, 1]) @ weights

    gradients = jax.jit(jax.grad(ours, tuple(range(6))))(*f32(arguments))
    for number, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        there, back = (
            theirs(*(x + sign * 1e-5 * direction if n == number else x for n, x in enumerate(arguments)))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(np.sum(gradient * direction), (there - back) / 2e-5, rtol=1e-3, atol=1e-3)


def test_types_of_tensors():
    """bfloat16 values are summed in float32; a read has the type of its queries, a write that of the memory."""
    keys, values, _ = (jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), x) for x in entries(2, keys=normal))
    memory = ops.tensor_memory(keys, values)
    assert memory.dtype == jnp.float32
    assert ops.nested_read(memory, keys[0][0], keys[1][0, 0]).dtype == jnp.bfloat16
    assert ops.nested_write(memory, (keys[0][0],), jnp.ones((V, 6))).dtype == jnp.float32


def test_wrong_shapes_are_refused():
    """One line each, with both shapes."""
    keys, values, mask = entries(2)
    memory = twin(keys, values)
    for call, message in (
        (lambda: ops.tensor_memory(keys[::-1], values), "keys of level 1 are [3, 4, 6]; for values [3, 4, 4] of 2 lev"),
        (lambda: ops.tensor_memory((keys[0][:2], keys[1]), values), "level 1 are [2, 5]; .* they must be [3, 'k']"),
        (lambda: ops.tensor_memory(keys, values, mask=mask[:2]), "the mask is [2, 4]; .* it must be [3, 4]"),
        (lambda: ops.nested_read(memory, keys[1][0, 0]), "queries of level 1 are [6], which do not fit a memory [4, 6"),
        (lambda: ops.nested_read(values[0, 0], keys[0][0], keys[0][0]), "queries of level 1 are [5]"),
        (lambda: ops.nested_write(memory, (keys[0][0],), values[0, 0]), "the value is [4]; .* it must be [4, 6]"),
    ):
        with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
            call()


# Learning by writing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1e-12, 1e-3, 1.0, 1e6])
def test_one_shot_learns_a_pair(length):
    """W' x = y for an input of any length, and inputs orthogonal to x are mapped as before."""
    rng = np.random.default_rng(0)
    weight, outputs = rng.normal(size=(2, V, 5)), rng.normal(size=(2, V))
    inputs, others = np.moveaxis(orthogonal(rng, 2, 2, 5), 1, 0)
    learned = np.asarray(jax.jit(ops.one_shot)(*f32((weight, length * inputs, outputs))), np.float64)
    # float32 rounds W, whose entries x multiplies
    rounding = 1e-6 * max(1, np.abs(learned).max() * length)
    np.testing.assert_allclose(np.einsum("bvk,bk->bv", learned, length * inputs), outputs, rtol=0, atol=rounding)
    drift = np.einsum("bvk,bk->bv", learned - weight, others)
    assert np.abs(drift).max() < 1e-5 * np.abs(learned).max()


def test_one_shot_of_nothing_changes_nothing():
    """x = 0 has no direction to learn; gradients are finite."""
    weight = np.ones((V, 5), np.float32)
    np.testing.assert_array_equal(ops.one_shot(weight, jnp.zeros(5), jnp.ones(V)), weight)
    gradient = jax.grad(lambda x: jnp.sum(ops.one_shot(weight, x, jnp.ones(V))))(jnp.zeros(5))
    assert np.all(np.isfinite(gradient))


def test_pairs_with_orthogonal_inputs_are_all_learned():
    """k pairs, k up to the width; and any pairs are learned as by `one_shot`, one after the other."""
    rng = np.random.default_rng(0)
    weight, inputs, outputs = rng.normal(size=(V, 5)), orthogonal(rng, 5, 5), rng.normal(size=(5, V))
    learned = few_shot(*f32((weight, inputs, outputs)), 1.0, 1.0)
    np.testing.assert_allclose(np.asarray(learned, np.float64) @ inputs.T, outputs.T, atol=1e-5)
    inputs, outputs = rng.normal(size=(70, 5)), rng.normal(size=(70, V))
    one_by_one = weight
    for x, y in zip(inputs, outputs, strict=True):
        one_by_one = one_by_one + np.outer(y - one_by_one @ x, x) / (x @ x)
    got = few_shot(*f32((weight, inputs, outputs)), 1.0, 1.0)
    np.testing.assert_allclose(got, one_by_one, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got @ inputs[-1], outputs[-1], atol=1e-4)


def test_pairs_without_erasure_are_a_sum():
    """In any order, and a zero input adds nothing."""
    rng = np.random.default_rng(0)
    inputs, outputs = rng.normal(size=(9, 5)), rng.normal(size=(9, V))
    inputs[3] = 0
    lengths = np.maximum(np.sum(inputs**2, axis=-1), 1e-30)
    expected = 0.5 * np.einsum("sv,sk->vk", outputs / lengths[:, None], inputs)
    got = few_shot(np.zeros((V, 5), np.float32), *f32((inputs, outputs)), 0.5, 0.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    swapped = few_shot(np.zeros((V, 5), np.float32), *f32((inputs[::-1], outputs[::-1])), 0.5, 0.0)
    np.testing.assert_allclose(swapped, got, rtol=1e-5, atol=1e-6)


def test_gradients_of_one_and_of_many_writes():
    """To weight, inputs and outputs: those of the twin's writes in float64."""
    rng = np.random.default_rng(0)
    arguments = rng.normal(size=(V, 5)), rng.normal(size=(3, 5)), rng.normal(size=(3, V))
    weights = rng.normal(size=(V, 5))

    def theirs(weight, inputs, outputs):
        for x, y in zip(inputs, outputs, strict=True):
            weight = weight + np.outer(y - weight @ x, x) / (x @ x)
        return np.sum(weights * weight)

    def one_by_one(weight, inputs, outputs):
        for x, y in zip(inputs, outputs, strict=True):
            weight = ops.one_shot(weight, x, y)
        return weight

    for function in (ops.few_shot, one_by_one):
        loss = lambda *x, function=function: jnp.sum(jnp.asarray(weights, jnp.float32) * function(*x))  # noqa: E731
        gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(*f32(arguments))
        for number, gradient in enumerate(gradients):
            direction = rng.normal(size=gradient.shape)
            there, back = (
                theirs(*(x + sign * 1e-5 * direction if n == number else x for n, x in enumerate(arguments)))
                for sign in (1, -1)
            )
            np.testing.assert_allclose(np.sum(gradient * direction), (there - back) / 2e-5, rtol=1e-3, atol=1e-3)
