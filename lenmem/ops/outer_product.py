"""Neural Attention Memory: attention as writing to and reading from a matrix.

Nam & Seo, "Neural Attention Memory", 2023 (arXiv 2302.09422), sections 3 and 4; section 6 is in
`lenmem.ops.tensor_memory`. A memory M in R^{d_v x d_k} maps unit keys to values. Reading multiplies it by a unit query;
writing erases the old value of a key and adds the outer product of the new value and the key. Without erasure, writes
commute and the memory of a sequence is a sum. This gives normalized outer-product attention, whose cost is linear in
the length S.

Shapes: memories [..., d_v, d_k], queries and keys [..., S, d_k], values [..., S, d_v], probabilities and masks
[..., S]; any leading axes (batch, heads). Sums and memories are float32 (float64 for float64 inputs), even if queries,
keys and values are bfloat16; reads have the dtype of the values, or of the query if a memory is read.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lenmem.ops import pallas
from lenmem.ops.chunks import chunked, outer_products, read_all, result_type, sum_type, unchunked
from lenmem.ops.lie import unit
from lenmem.ops.linear_recurrence import by_kernel, linear_recurrence

LINEAR_EPSILON = 1e-6
MINIMAL_CHUNK = 32

Probability = Float[Array, "..."] | float


# The primitives (section 3.1) -----------------------------------------------------------------------------------------


def nam_read(
    memory: Float[Array, "... v k"], query: Float[Array, "... k"], read_probability: Probability = 1.0
) -> Float[Array, "... v"]:
    """RD(M, q, p_r) = p_r M q (section 3.1), for a unit query q. In the dtype of the query. O(d_v d_k)."""
    read = jnp.einsum("...vk,...k->...v", memory, query, preferred_element_type=sum_type(memory))
    return (jnp.asarray(read_probability, read.dtype)[..., None] * read).astype(result_type(query))


def nam_write(
    memory: Float[Array, "... v k"],
    key: Float[Array, "... k"],
    value: Float[Array, "... v"],
    write_probability: Probability = 1.0,
    erase_probability: Probability = 1.0,
) -> Float[Array, "... v k"]:
    """WR(M, k, v, p_w, p_e) = M + p_w v k^T - p_e M k k^T (section 3.1), for a unit key k. O(d_v d_k).

    With p_w = p_e = 1, reading with k then returns v (Theorem 1). A zero key changes nothing. A key longer than 1
    erases too much; if p_e |k|^2 > 2, repeated writes diverge. The result has the dtype of the memory.
    """
    stored = jnp.einsum("...vk,...k->...v", memory, key, preferred_element_type=sum_type(memory))
    memory_type, kind = result_type(memory), stored.dtype
    written = jnp.asarray(write_probability, kind)[..., None] * value.astype(kind)
    change = written - jnp.asarray(erase_probability, kind)[..., None] * stored
    return (memory.astype(kind) + change[..., :, None] * key.astype(kind)[..., None, :]).astype(memory_type)


# Normalized outer-product attention (sections 3.2 and 4.1) ------------------------------------------------------------


def outer_product_memory(
    key: Float[Array, "... S k"],
    value: Float[Array, "... S v"],
    *,
    key_mask: Bool[Array, "... S"] | None = None,
    write_probability: Float[Array, "... S"] | None = None,
) -> Float[Array, "... v k"]:
    """M = sum_s p_w^(s) v_s mu(k_s)^T (section 3.2); mu projects onto the unit sphere. O(S d_v d_k)."""
    return outer_products(*_writes(key, value, key_mask, write_probability))


def outer_product_read(
    memory: Float[Array, "... v k"],
    query: Float[Array, "... S k"],
    *,
    read_probability: Float[Array, "... S"] | None = None,
) -> Float[Array, "... S v"]:
    """r_i = p_r^(i) M mu(q_i): many reads of one memory (section 3.2). In the dtype of the query. O(S d_v d_k)."""
    return _gated(read_all(memory, unit(query)), read_probability).astype(result_type(query))


def normalized_outer_product_attention(
    query: Float[Array, "... S k"],
    key: Float[Array, "... N k"],
    value: Float[Array, "... N v"],
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... N"] | None = None,
    write_probability: Float[Array, "... N"] | None = None,
    read_probability: Float[Array, "... S"] | None = None,
    chunk_size: int | None = None,
    carry: Float[Array, "... v k"] | None = None,
    return_carry: bool = False,
    implementation: pallas.Implementation = "auto",
) -> Float[Array, "... S v"] | tuple[Float[Array, "... S v"], Float[Array, "... v k"]]:
    """Normalized outer-product attention (sections 3.2 and 4.1): attention without a softmax, linear in the length.

        Y_i = p_r^(i) (M_0 + sum_s p_w^(s) v_s mu(k_s)^T) mu(q_i)

    with mu(x) = x / sqrt(|x|^2 + 1e-10). All probabilities default to 1. The result is not divided by a sum of weights
    or by S. The sum runs over all s, or over s <= i if `causal`. If the keys are orthonormal, reading with one of them
    returns its value (Theorem 2).

    `key_mask` is True for real keys; other keys have no effect, whatever they contain. Queries are not masked: the
    result of a padded query is finite and meaningless. Zero rows read and write zeros, with finite gradients.

    `carry` is M_0 (default zero); with `return_carry` the result is (Y, M), with M the float32 memory after the last
    write. A causal sequence may be split anywhere and read piece by piece, passing the carry from piece to piece;
    `normalized_outer_product_step` processes one token at a time.

    Bidirectional: O(S d_v d_k) time, O(S d + d_v d_k) memory. Causal: within chunks of C = `chunk_size` positions,
    attention is computed from C x C scores; earlier chunks are read from a prefix sum of the chunks' memories. All
    chunks are processed at once, in O(S (C d + d_v d_k)) time and O(S (d + C + d_v d_k / C) + d_v d_k) memory. The
    default C is the smallest power of two that is at least sqrt(d_v d_k) and at least 32, which gives O(S d^2) time and
    O(S d + d^2) memory. The gradient has the same cost; only the inputs are stored for it.

    `implementation` is for causal attention: `xla` is described above, `pallas` is a kernel for TPUs with chunks of its
    own, whose memory is O(S d + S d^2 / 128) (`lenmem.ops.pallas.recurrence`). `auto` is `pallas` on a TPU,
    from a length of 128 on and without a `chunk_size`, if the kernel takes these dtypes and widths; otherwise `xla`.

    Raises ValueError for mismatched lengths, an invalid chunk size, an unknown implementation, and what the kernel does
    not take.
    """
    _check_lengths(query, key, value, causal)
    if by_kernel(implementation, key, value, chunk_size) and causal:
        from lenmem.ops.pallas.recurrence import recur

        keys, values, strengths = _masked(key, value, key_mask, write_probability)
        memory, read = recur(query, keys, values, strengths, initial=carry, normalise=True)
    else:
        keys, values = _writes(key, value, key_mask, write_probability)
        read, memory = _attend(unit(query), keys, values, carry, causal, chunk_size)
    read = _gated(read, read_probability).astype(result_type(value))
    return (read, memory) if return_carry else read


def normalized_outer_product_step(
    query: Float[Array, "... k"],
    key: Float[Array, "... k"],
    value: Float[Array, "... v"],
    carry: Float[Array, "... v k"] | None = None,
    *,
    write_probability: Probability = 1.0,
    read_probability: Probability = 1.0,
) -> tuple[Float[Array, "... v"], Float[Array, "... v k"]]:
    """One token of causal `normalized_outer_product_attention`: returns (its read, the new carry).

        M_t = M_{t-1} + p_w v mu(k)^T,  Y_t = p_r M_t mu(q)

    O(d_v d_k) for any number of earlier tokens. Without a carry it is the first token.
    """
    if carry is None:
        shape = (*jnp.broadcast_shapes(key.shape[:-1], value.shape[:-1]), value.shape[-1], key.shape[-1])
        carry = jnp.zeros(shape, sum_type(value))
    carry = nam_write(carry, unit(key), value, write_probability, 0.0)
    return nam_read(carry, unit(query), read_probability).astype(result_type(value)), carry


def linear_attention(
    query: Float[Array, "... S k"],
    key: Float[Array, "... N k"],
    value: Float[Array, "... N v"],
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... N"] | None = None,
    chunk_size: int | None = None,
    carry: tuple[Float[Array, "... v k"], Float[Array, "... k"]] | None = None,
    return_carry: bool = False,
    implementation: pallas.Implementation = "auto",
) -> Float[Array, "... S v"] | tuple[Float[Array, "... S v"], tuple[Float[Array, "... v k"], Float[Array, "... k"]]]:
    """Attention of the Linear Transformer (Katharopoulos et al. 2020, equation 5), the baseline of section 4.

        Y_i = (sum_s v_s phi(k_s)^T) phi(q_i) / (phi(q_i) . sum_s phi(k_s) + 1e-6),  phi(x) = elu(x) + 1

    over all s, or s <= i if `causal`. Keys where `key_mask` is False are ignored; a query that sees no key gets zeros.
    `carry` contains both sums over earlier keys (default zero). With `return_carry` the result is (Y, the sums
    including these keys), so a causal sequence may be read piece by piece. The cost, the implementations and the errors
    are those of `normalized_outer_product_attention`.
    """
    _check_lengths(query, key, value, causal)
    keys, values = _zero_where_masked(key, key_mask), _zero_where_masked(value, key_mask)
    queries, keys = _elu_features(query), _zero_where_masked(_elu_features(keys), key_mask)
    before, already = (None, None) if carry is None else carry
    if by_kernel(implementation, keys, values, chunk_size) and causal:
        from lenmem.ops.pallas.recurrence import recur

        memory, read = recur(queries, keys, values, initial=before)
    else:
        read, memory = _attend(queries, keys, values, before, causal, chunk_size)
    wide = keys.astype(sum_type(keys))
    total = jnp.sum(wide, axis=-2)
    seen = _prefix_sums(wide, axis=-2) if causal else total[..., None, :]
    if already is not None:
        total, seen = already + total, already[..., None, :] + seen
    weight = jnp.sum(queries.astype(seen.dtype) * seen, axis=-1, keepdims=True)
    read = (read / (weight + LINEAR_EPSILON)).astype(result_type(value))
    return (read, (memory, total)) if return_carry else read


def _elu_features(vectors: jax.Array) -> jax.Array:
    return (jax.nn.elu(vectors.astype(sum_type(vectors))) + 1).astype(result_type(vectors))


def _zero_where_masked(vectors: jax.Array, mask: jax.Array | None) -> jax.Array:
    return vectors if mask is None else jnp.where(mask[..., None], vectors, 0)


def _gated(vectors: jax.Array, probability: jax.Array | None) -> jax.Array:
    return vectors if probability is None else vectors * probability[..., None]


def _writes(
    key: jax.Array, value: jax.Array, mask: jax.Array | None, probability: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Unit keys and gated values, both zero where masked, so masked rows have no effect."""
    keys, values, probability = _masked(key, value, mask, probability)
    return unit(keys), _gated(values, probability).astype(result_type(value))


def _masked(
    key: jax.Array, value: jax.Array, mask: jax.Array | None, probability: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Keys, values and probabilities, zero where masked."""
    if probability is not None and mask is not None:
        probability = jnp.where(mask, probability, 0)
    return _zero_where_masked(key, mask), _zero_where_masked(value, mask), probability


def _attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    initial: jax.Array | None,
    causal: bool,
    chunk_size: int | None,
) -> tuple[jax.Array, jax.Array]:
    """((M_0 + sum_s v_s k_s^T) q_i for every i, the memory after the last write), over all s or over s <= i."""
    if causal:
        return _causal(queries, keys, values, initial, _chunk(keys, values, chunk_size))
    memory = outer_products(keys, values)
    memory = memory if initial is None else initial + memory
    return read_all(memory, queries), memory


# Only the inputs are stored for the gradient: scores and prefix sums would take several times their memory.
@functools.partial(jax.checkpoint, static_argnums=4)
def _causal(
    queries: jax.Array, keys: jax.Array, values: jax.Array, initial: jax.Array | None, size: int
) -> tuple[jax.Array, jax.Array]:
    length = keys.shape[-2]
    queries, keys, values = (chunked(array, size) for array in (queries, keys, values))
    memories = outer_products(keys, values)
    first = jnp.zeros_like(memories[..., :1, :, :])
    first = first if initial is None else first + initial[..., None, :, :]
    before = _prefix_sums(jnp.concatenate([first, memories], axis=-3), axis=-3)
    read = _read_within(queries, keys, values) + read_all(before[..., :-1, :, :], queries)
    return unchunked(read, length), before[..., -1, :, :]


def _prefix_sums(array: jax.Array, axis: int) -> jax.Array:
    """Inclusive. Several times faster on a CPU than `jnp.cumsum`, which XLA compiles to windowed sums."""
    return jax.lax.associative_scan(jnp.add, array, axis=axis % array.ndim)


def _read_within(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """sum_{s <= i} v_s (k_s . q_i) within each chunk."""
    scores = jnp.einsum("...ik,...sk->...is", queries, keys, preferred_element_type=sum_type(keys))
    scores = jnp.tril(scores).astype(result_type(values))
    return jnp.einsum("...is,...sv->...iv", scores, values, preferred_element_type=sum_type(values))


def _chunk(keys: jax.Array, values: jax.Array, size: int | None) -> int:
    """The chunk size, or its default, but at most the length."""
    if size is None:
        size = MINIMAL_CHUNK
        while size * size < keys.shape[-1] * values.shape[-1]:
            size *= 2
    return max(1, min(size, keys.shape[-2]))


def _check_lengths(query: jax.Array, key: jax.Array, value: jax.Array, causal: bool) -> None:
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"queries of width {query.shape[-1]} cannot read keys of width {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{key.shape[-2]} keys but {value.shape[-2]} values")
    if causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(f"causal attention needs as many queries as keys, not {query.shape[-2]} and {key.shape[-2]}")


# The erasing write over a sequence ------------------------------------------------------------------------------------


def nam_scan(
    keys: Float[Array, "... S k"],
    values: Float[Array, "... S v"],
    write_probability: Float[Array, "... S"],
    erase_probability: Float[Array, "... S"],
    *,
    queries: Float[Array, "... S k"] | None = None,
    initial: Float[Array, "... v k"] | None = None,
    chunk_size: int | None = None,
    implementation: pallas.Implementation = "auto",
) -> tuple[Float[Array, "... v k"], Float[Array, "... S v"] | None]:
    """`nam_write` at every step of a sequence whose keys and values are known in advance, in parallel over chunks.

        M_t = M_{t-1} + p_w^(t) v_t k_t^T - p_e^(t) M_{t-1} k_t k_t^T,  r_t = M_t q_t

    Returns (M_S in float32, the reads r or None without `queries`). This is `linear_recurrence` without decay; see
    there for details. With p_w = p_e = beta it is the delta rule of fast weight programmers (Schlag et al. 2021).
    """
    asked = keys if queries is None else queries
    memory, reads = linear_recurrence(
        asked,
        keys,
        values,
        write_probability,
        erase_probability,
        initial=initial,
        chunk_size=chunk_size,
        implementation=implementation,
    )
    return memory, None if queries is None else reads
