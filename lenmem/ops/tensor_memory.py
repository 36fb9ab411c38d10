"""Memories of any order, and learning a weight matrix by writing to it: further applications of NAM.

Nam & Seo, "Neural Attention Memory", 2023 (arXiv 2302.09422), section 6. The matrix of `lenmem.ops.outer_product` maps
unit keys to vectors; a tensor maps unit keys to tensors, M = sum_i T_i (x) k_i. For example, a sentence is a sum of
outer products of words and word keys, and a document is a sum of outer products of sentences and sentence keys. A read
contracts one level for each query, outermost first.

Shapes: a memory of n levels is [..., v, k_n, .., k_1]; level 1 is the outermost (the sentences), and its axis is the
last. Keys and queries of level j are [..., k_j]; they are normalised by mu. Their leading axes are those of the memory.
Sums are float32 (float64 for float64 inputs).
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops.chunks import result_type, sum_type
from lenmem.ops.lie import unit
from lenmem.ops.linear_recurrence import linear_recurrence
from lenmem.ops.outer_product import Probability, nam_write

# Tensors of any order -------------------------------------------------------------------------------------------------


def tensor_memory(
    keys: Sequence[Float[Array, "..."]], values: Float[Array, "..."], *, mask: Bool[Array, "..."] | None = None
) -> Float[Array, "..."]:
    """M = sum_i T_i (x) mu(k_i), where T_i is a sum of this form at the next level, and a vector at the innermost
    level.

    `keys` has an array for each level, outermost first: [..., N_1, k_1], [..., N_1, N_2, k_2] and so on; `values` are
    [..., N_1, .., N_n, v], and the result is [..., v, k_n, .., k_1]. With one level this is `outer_product_memory`;
    with none it returns the values. Values where `mask` [..., N_1, .., N_n] is False are left out, with their keys,
    whatever they contain. A document is `tensor_memory((sentence_keys, word_keys), words)`.

    Costs O(v k_n .. k_j) for each T of level j. The size of the memory does not depend on the number of values. Raises
    ValueError for shapes that do not fit each other.
    """
    levels = len(keys)
    shape = values.shape[:-1]
    leading = len(shape) - levels
    for level, key in enumerate(keys, start=1):
        if key.shape[:-1] != shape[: leading + level] or leading < 0:
            raise ValueError(
                f"keys of level {level} are {list(key.shape)}; for values {list(values.shape)} of {levels} "
                f"level{'s' if levels > 1 else ''} they must be {[*shape[: leading + level], 'k']}"
            )
    if mask is not None and mask.shape != shape:
        raise ValueError(f"the mask is {list(mask.shape)}; for values {list(values.shape)} it must be {list(shape)}")
    memory = values if mask is None else jnp.where(mask[..., None], values, 0)
    for level in reversed(range(levels)):
        key, there = keys[level], mask
        if there is not None:  # a key is real if anything is under it
            key = jnp.where(jnp.any(there, axis=tuple(range(leading + level + 1, there.ndim)))[..., None], key, 0)
        outer, inner = _letters(leading + level, memory.ndim - leading - level - 1)
        memory = jnp.einsum(
            f"{outer}Y{inner},{outer}YZ->{outer}{inner}Z", memory, _mu(key), preferred_element_type=sum_type(memory)
        )
    return memory


def nested_read(
    memory: Float[Array, "..."], *queries: Float[Array, "... _"], read_probability: Probability = 1.0
) -> Float[Array, "..."]:
    """Nested attention (section 6): contracts one level for each query, outermost first, p_r M mu(q_1) .. mu(q_m).

    `nested_read(document, sentence_query, word_query)` is a word, and `nested_read(document, sentence_query)` is a
    sentence, which can be read with word queries. A query equal to a key returns the value of this key, plus the values
    of the other keys times their cosines with it, which are zero if the keys are orthogonal. The result has the dtype
    of the queries. O(size of the memory). Raises ValueError for more queries than levels, and for queries of other
    widths.
    """
    leading = _leading(memory, queries, "queries")
    read = memory
    for query in queries:
        outer, inner = _letters(leading, read.ndim - leading - 1)
        read = jnp.einsum(
            f"{outer}{inner}Z,{outer}Z->{outer}{inner}", read, _mu(query), preferred_element_type=sum_type(memory)
        )
    read = _spread(read_probability, leading, read) * read
    return read.astype(result_type(queries[0])) if queries else read


def nested_write(
    memory: Float[Array, "..."],
    keys: Sequence[Float[Array, "... _"]],
    value: Float[Array, "..."],
    write_probability: Probability = 1.0,
    erase_probability: Probability = 1.0,
) -> Float[Array, "..."]:
    """WR at any level of a tensor: M + (p_w T - p_e RD(M, k_1, .., k_m)) (x) mu(k_m) .. (x) mu(k_1).

    The value T has the remaining levels: it is a word for a sentence key and a word key, and a sentence (matrix) for a
    sentence key alone. With both probabilities 1, a read with the same keys returns T (Theorem 1, at each level), and
    values of orthogonal keys, at any level, are unchanged. The result is the same as that of reading the sentence,
    writing the word to it, and writing the sentence back. With one key and a vector it is `nam_write`. A zero key
    changes nothing.

    The result has the dtype of the memory. O(size of the memory). Raises ValueError for shapes that do not fit.
    """
    leading = _leading(memory, keys, "keys")
    wanted = memory.shape[: memory.ndim - len(keys)]
    if value.shape != wanted:
        raise ValueError(
            f"the value is {list(value.shape)}; under {len(keys)} of the keys of a memory {list(memory.shape)} it must "
            f"be {list(wanted)}"
        )
    stored = nested_read(memory, *(key.astype(sum_type(memory)) for key in keys))
    change = _spread(write_probability, leading, value) * value - _spread(erase_probability, leading, value) * stored
    for key in reversed(keys):
        change = change[..., None] * _mu(key).reshape(*key.shape[:-1], *[1] * (change.ndim - leading), key.shape[-1])
    return (memory + change).astype(result_type(memory))


def _mu(vectors: jax.Array) -> jax.Array:
    """Projection to the unit sphere, computed in float32; the zero vector stays zero."""
    return unit(vectors.astype(sum_type(vectors)))


def _leading(memory: jax.Array, keys: Sequence[jax.Array], what: str) -> int:
    """The number of leading axes, which the keys have before their last one."""
    leading = keys[0].ndim - 1 if keys else 0
    for level, key in enumerate(keys, start=1):
        expected = (*memory.shape[:leading], memory.shape[-level] if level <= memory.ndim - leading else 0)
        if key.shape != expected:
            raise ValueError(
                f"the {what} of level {level} are {list(key.shape)}, which do not fit a memory {list(memory.shape)}"
            )
    return leading


def _letters(outer: int, inner: int) -> tuple[str, str]:
    """Names of axes for `einsum`; Y and Z are left free."""
    return string.ascii_lowercase[:outer], string.ascii_uppercase[:inner]


def _spread(probability: Probability, leading: int, value: jax.Array) -> jax.Array:
    """A probability for each row, over the axes of its tensor."""
    probability = jnp.asarray(probability)
    return probability.reshape(*probability.shape, *[1] * (value.ndim - leading)) if probability.ndim else probability


# Learning by writing --------------------------------------------------------------------------------------------------


def one_shot(
    weight: Float[Array, "... v k"], inputs: Float[Array, "... k"], outputs: Float[Array, "... v"]
) -> Float[Array, "... v k"]:
    """One-shot learning (section 6): W' = WR(W, x / |x|, y / |x|, 1, 1), so that W' x = y by Theorem 1.

    The paper prints key and value in the other order.

    Inputs orthogonal to x are mapped as before. x = 0 changes nothing. O(d_v d_k).
    """
    inverse = _inverse_length(inputs)
    return nam_write(weight, inputs * inverse, outputs * inverse)


def few_shot(
    weight: Float[Array, "... v k"],
    inputs: Float[Array, "... S k"],
    outputs: Float[Array, "... S v"],
    write_probability: float = 1.0,
    erase_probability: float = 1.0,
) -> Float[Array, "... v k"]:
    """S pairs learned one after the other by writes, W <- WR(W, x / |x|, y / |x|, p_w, p_e), in parallel over chunks.

    With both probabilities 1 this is `one_shot` for each pair: the last pair is exact, all pairs are exact if their
    inputs are orthogonal, and the result depends on the order. With equal probabilities below 1, writes are steps of
    the delta rule. Without erasure W is a sum of outer products, which does not depend on the order. The result has the
    dtype of the weight. O(S d_v d_k).
    """
    inverse = _inverse_length(inputs)
    shape = inputs.shape[:-1]
    write, erase = (jnp.full(shape, p, sum_type(weight)) for p in (write_probability, erase_probability))
    keys = inputs * inverse
    learned, _ = linear_recurrence(keys, keys, outputs * inverse, write, erase, initial=weight)
    return learned.astype(result_type(weight))


def _inverse_length(vectors: jax.Array) -> jax.Array:
    """1 / |x| in the dtype of sums, or 0 if the square of x is 0 there; with finite gradients."""
    square = jnp.sum(jnp.square(vectors.astype(sum_type(vectors))), axis=-1, keepdims=True)
    there = square > 0
    return jnp.where(there, jax.lax.rsqrt(jnp.where(there, square, 1)), 0)
