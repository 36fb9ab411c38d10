"""Pointers as physical addresses: banks of binary addresses, attention over them, and dereferencing.

Le et al., "Enhancing Length Extrapolation in Sequential Models with Pointer-Augmented Neural Memory", 2024 (arXiv
2404.11870), sections 2.2 and 2.3. Every slot of a memory M is bound to an address, an integer below 2^b written as a
vector of b bits. A pointer is a distribution w over the slots: its address is p = sum_n w[n] A[n], its value *p = sum_n
w[n] M[n]. Addresses contain no information about the data, so a rule learned on addresses holds for any data, and for
up to 2^b slots.

Shapes: addresses [..., N, b], `memory` [..., N, d], weights and `mask` [..., N]; any leading axes.
"""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lenmem.ops.chunks import result_type, sum_type
from lenmem.ops.lie import masked_softmax, unit

Similarity = Literal["cosine", "cosine_temperature", "dot"]


def sample_base(key: Array, bits: int, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
    """p_B ~ U{0, ..., 2^b - 1} (section 2.2, appendix B): a base for each sequence, with the given `shape`.

    With random bases, all addresses occur in training. Otherwise the addresses of longer sequences would be unseen.
    """
    return jax.random.randint(key, shape, 0, 2**bits, jnp.int32)


def address_bank(base: Int[Array, "..."] | int, length: int, bits: int) -> Float[Array, "... {length} {bits}"]:
    """A[j] = (p_B + j) mod 2^b for j = 0 .. length - 1, as bits 0 and 1, the most significant first (section 2.2).

    `base` is any integer and may be traced. Raises ValueError for `bits` outside 1 .. 24, or if two slots
    would share an address. O(length b).
    """
    addresses = _addresses(base, length, bits)
    return ((addresses[..., None] >> jnp.arange(bits)[::-1]) & 1).astype(jnp.float32)


def phase_bank(base: Int[Array, "..."] | int, length: int, bits: int) -> Float[Array, "... {length} 2*{bits}"]:
    """cos(2 pi a / 2^k), then sin(2 pi a / 2^k), k = b .. 1, for the addresses a of `address_bank`; not in the paper.

    As a function of the address, bit b - k is a square wave of period 2^k; phase k is a sinusoid of the same period.
    Adding a number to an address rotates each (cosine, sine) pair by a fixed angle, which is one linear map for all
    addresses. With bits, addition requires carries, and long carries are rare in training. Raises ValueError as
    `address_bank`. O(length b).
    """
    periods = 2 ** jnp.arange(bits, 0, -1)
    addresses = _addresses(base, length, bits)
    angles = 2 * jnp.pi * (addresses[..., None] % periods).astype(jnp.float32) / periods.astype(jnp.float32)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def _addresses(base: Int[Array, "..."] | int, length: int, bits: int) -> Int[Array, "... {length}"]:
    if not 1 <= bits <= 24:
        raise ValueError(f"an address has 1 to 24 bits; got {bits}")
    if length > 2**bits:
        raise ValueError(f"{bits} bits give {2**bits} addresses; got {length} slots to address")
    return (jnp.asarray(base)[..., None] + jnp.arange(length)) % 2**bits


def pointer_weights(
    query: Float[Array, "*#batch d"],
    keys: Float[Array, "*#batch N d"],
    *,
    mask: Bool[Array, "*#batch N"] | None = None,
    kind: Similarity = "cosine",
    temperature: Float[Array, "*#batch"] | None = None,
) -> Float[Array, "... N"]:
    """w[n] = softmax_n(s(q, k_n)), the attention of equations 2 (keys g(A[n])) and 5 (keys M[n]).

        cosine                s = q . k / (|q| |k|), as printed; weights differ at most by a factor of e^2
        cosine_temperature    s = beta q . k / (|q| |k|), `temperature` beta >= 0; higher is sharper
        dot                   s = q . k / sqrt(d), as in the published code

    Lengths are sqrt(|x|^2 + 1e-10), so a zero query or key has similarity 0 to everything, with a finite gradient.
    Slots where `mask` is False have weight exactly 0; if all slots are masked, all weights are zero. Computed and
    returned in at least float32. O(N d). Raises ValueError for an unknown kind, and for a temperature without
    `cosine_temperature` or the reverse.
    """
    if kind not in get_args(Similarity):
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(get_args(Similarity))}")
    if (temperature is None) == (kind == "cosine_temperature"):
        raise ValueError(f"a temperature belongs to kind 'cosine_temperature'; got {temperature} with {kind!r}")
    dtype = sum_type(query, keys)
    query, keys = query.astype(dtype), keys.astype(dtype)
    if kind != "dot":
        query, keys = unit(query), unit(keys)
    logits = jnp.einsum("...d,...nd->...n", query, keys)
    if kind == "dot":
        logits = logits * query.shape[-1] ** -0.5
    elif temperature is not None:
        logits = logits * jnp.asarray(temperature, dtype)[..., None]
    return masked_softmax(logits, mask)


def dereference(memory: Float[Array, "*#batch N d"], weights: Float[Array, "*#batch N"]) -> Float[Array, "... d"]:
    """*p = sum_n w[n] M[n] (section 2.3.2), or p = sum_n w[n] A[n] (equation 3). In the memory's dtype. O(N d).

    Zero weights read zeros. Rows with weight 0 have no effect as long as they are finite.
    """
    kind = result_type(memory)
    return jnp.einsum("...n,...nd->...d", weights.astype(kind), memory.astype(kind))
