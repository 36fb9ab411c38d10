"""Addressing an external memory: the differentiable neural computer and the neural Turing machine.

Graves et al., "Hybrid computing using a neural network with dynamic external memory", Nature 538, 2016 (its Methods
give every equation of a DNC); Csordás & Schmidhuber, "Improving Differentiable Neural Computers Through Memory Masking,
De-allocation, and Link Distribution Sharpness Control", ICLR 2019; Graves, Wayne & Danihelka, "Neural Turing Machines",
2014 (arXiv 1410.5401), section 3.3.

Shapes: `memory` [..., N, W] with N slots; arguments per head [..., R, W], [..., R, N] or [..., R]; `usage`,
`precedence` and `write_weights` (of a DNC's single write head) [..., N]; `link` [..., N, N]; any leading axes. All
weights are non-negative and sum to at most 1 over the slots. The NTM's sharpening is `lenmem.ops.sharpen`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lenmem.ops.alone import compiled_alone
from lenmem.ops.chunks import result_type, sum_type
from lenmem.ops.gradients import with_gradient

EPSILON = 1e-6
"""Added to squared lengths, products of lengths, and links before sharpening; also the smallest usage. As in the
published code."""


# Content (both machines) ----------------------------------------------------------------------------------------------


def content_weights(
    memory: Float[Array, "... N W"],
    keys: Float[Array, "... R W"],
    strengths: Float[Array, "... R"],
    *,
    mask: Float[Array, "... R W"] | None = None,
    plain_lengths: bool = False,
) -> Float[Array, "... R N"]:
    """C(M, k, beta)_i = softmax_i(beta cos(k, M_i)): weights by similarity to a key.

    With a `mask` m in [0, 1] (Csordás & Schmidhuber, section 3.1) the similarity is cos(k * m, M_i * m), which ignores
    masked columns. cos(a, b) = a . b / (|a| |b| + 1e-6) with |a|^2 = sum a_j^2 + 1e-6, as in DeepMind's code. It is 0
    for zero rows and keys, with a finite gradient. The softmax gives such an empty row a positive weight, so empty rows
    take weight from the others. With `plain_lengths`, |a|^2 = sum a_j^2 as in the code of Csordás & Schmidhuber; the
    length of a zero row then has gradient 0. O(R N W).
    """
    kind = result_type(memory, keys, strengths)
    wide = sum_type(memory, keys, strengths)
    memory, keys, strengths = memory.astype(wide), keys.astype(wide), strengths.astype(wide)
    if mask is None:
        row_squares = jnp.sum(jnp.square(memory), axis=-1)[..., None, :]
        masked_twice = keys
    else:
        mask = mask.astype(wide)
        row_squares = _products(jnp.square(memory), jnp.square(mask))
        keys = keys * mask
        masked_twice = keys * mask
    key_squares = jnp.sum(jnp.square(keys), axis=-1)[..., None]
    length = _plain_length if plain_lengths else _length
    cosines = _products(memory, masked_twice) / (length(row_squares) * length(key_squares) + EPSILON)
    return jax.nn.softmax(strengths[..., None] * cosines, axis=-1).astype(kind)


def _length(squares: jax.Array) -> jax.Array:
    return jnp.sqrt(squares + EPSILON)


def _plain_length(squares: jax.Array) -> jax.Array:
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1)), 0)


def _products(memory: jax.Array, keys: jax.Array) -> jax.Array:
    """The inner product of every key with every row, [..., R, N]."""
    return jnp.einsum("...rw,...nw->...rn", keys, memory)


# Writing --------------------------------------------------------------------------------------------------------------


def retention(read_weights: Float[Array, "... R N"], free_gates: Float[Array, "... R"]) -> Float[Array, "... N"]:
    """psi = prod_r (1 - f^r w^r): the fraction of each slot's usage that is not freed by its last readers. O(R N)."""
    # `jnp.prod` has a slower gradient.
    return functools.reduce(jnp.multiply, jnp.unstack(1 - free_gates[..., None] * read_weights, axis=-2))


def update_usage(
    usage: Float[Array, "... N"],
    write_weights: Float[Array, "... N"],
    read_weights: Float[Array, "... R N"],
    free_gates: Float[Array, "... R"],
    *,
    stop_gradient: bool = True,
) -> Float[Array, "... N"]:
    """u_t = (u + w - u * w) * psi, with usage u, write weights w and read weights of step t - 1, free gates of step t.

    Usage stays in [0, 1]. `stop_gradient` blocks the gradient through w, as in the published code; the paper does not
    mention it. O(R N).
    """
    if stop_gradient:
        write_weights = jax.lax.stop_gradient(write_weights)
    return (usage + (1 - usage) * write_weights) * retention(read_weights, free_gates)


@compiled_alone
def allocation_weights(usage: Float[Array, "... N"]) -> Float[Array, "... N"]:
    """a_i = (1 - u_i) prod_{j before i} u_j: weights for writing to free slots. The least used slot gets the largest.

    j is before i if u_j < u_i, or if u_j = u_i and j < i: slots are in ascending order of usage, and ties go to the
    lowest index. u = 1e-6 + (1 - 1e-6) usage, so an empty slot leaves some weight to the next one. The weights sum to
    1 - prod_j u_j; if all slots are full, they are zero. No gradient flows through the order.

    O(N^2), forward and backward: all pairs are compared instead of sorted. On a CPU, value and gradient for 64 rows of
    50 slots take a twelfth of the time of a version with `argsort`, and with 500 slots a fifth.
    """
    slots_first = jnp.moveaxis(EPSILON + (1 - EPSILON) * usage, -1, 0)
    return jnp.moveaxis(_allocation(slots_first), 0, -1)


def _allocation_forward(usage: Float[Array, "N ..."]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    before = _over_earlier(jnp.multiply, usage, usage)
    return (1 - usage) * before, (usage, before)


def _allocation_backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
    # For every k after i, a_k has the factor u_i (at least 1e-6). Reversing the slots turns "after" into "before".
    usage, before = residuals
    later = _over_earlier(jnp.add, -usage[::-1], (gradient * (1 - usage) * before)[::-1])[::-1]
    return (later / usage - gradient * before,)


_allocation = with_gradient(_allocation_forward, _allocation_backward)


def _over_earlier(operation: Any, order: Float[Array, "N ..."], values: Float[Array, "N ..."]) -> jax.Array:
    """For each i, the sum (`jnp.add`) or product (`jnp.multiply`) of values_j over all j before i in ascending `order`.

    Ties are ordered by index.
    """
    slots = jnp.arange(len(order)).reshape(-1, *[1] * (order.ndim - 1))

    def earlier(other: jax.Array, number: jax.Array, value: jax.Array) -> jax.Array:
        before = (other < order) | ((other == order) & (number < slots))
        return jnp.where(before, value, operation.identity)

    def loop() -> jax.Array:
        # A whole number of rounds of 10. XLA would fuse the steps after the last round into whatever uses the result,
        # and repeat them there for each pair of slots.
        count, rounds = len(order), -(-len(order) // 10)

        def combine(j, result):
            value = earlier(order[j], j, values[j])
            if count % 10:
                value = jnp.where(j < count, value, operation.identity)
            return operation(result, value)

        return jax.lax.fori_loop(0, 10 * rounds, combine, jnp.full_like(values, operation.identity), unroll=10)

    def pairs() -> jax.Array:
        return operation.reduce(earlier(order[:, None], slots[:, None], values[:, None]), axis=0)

    # On a CPU, XLA vectorises a loop of elementwise operations, but not a reduction. A GPU prefers few kernels.
    return jax.lax.platform_dependent(cpu=loop, default=pairs)


def erase_and_write(
    memory: Float[Array, "... N W"],
    weights: Float[Array, "... R N"],
    erase: Float[Array, "... R W"],
    vector: Float[Array, "... R W"],
) -> Float[Array, "... N W"]:
    """M_t = M * prod_r (1 - w^r e^rT) + sum_r w^r v^rT: all heads erase, then all heads write.

    `erase` and the weights are in [0, 1]; zero weights change nothing. A DNC has one write head. O(R N W).
    """
    written = jnp.einsum("...rn,...rw->...nw", weights, vector)
    for head, erased in zip(jnp.unstack(weights, axis=-2), jnp.unstack(erase, axis=-2), strict=True):
        memory = memory * (1 - _outer(head, erased))
    return memory + written


def _outer(first: jax.Array, second: jax.Array) -> jax.Array:
    """The outer product as a matrix product. Its gradient is then a matrix product too, which is faster than
    reductions."""
    return jnp.einsum("...i,...j->...ij", first, second)


# The order of writing (DNC) -------------------------------------------------------------------------------------------


def update_temporal_link(
    link: Float[Array, "... N N"], precedence: Float[Array, "... N"], write_weights: Float[Array, "... N"]
) -> tuple[Float[Array, "... N N"], Float[Array, "... N"]]:
    """(L_t, p_t): how much slot i was written right after slot j, and how much each slot was the last one written.

        L_t[i, j] = (1 - w_i - w_j) L[i, j] + w_i p_j for i != j, and 0 for i = j
        p_t = (1 - sum_i w_i) p + w

    L uses the old p. Rows and columns of L_t and p_t sum to at most 1. O(N^2).
    """
    weights = write_weights
    link = (1 - weights[..., :, None] - weights[..., None, :]) * link + _outer(weights, precedence)
    link = jnp.where(jnp.eye(weights.shape[-1], dtype=bool), 0, link)
    return link, (1 - jnp.sum(weights, axis=-1, keepdims=True)) * precedence + weights


def directional_weights(
    link: Float[Array, "... N N"], read_weights: Float[Array, "... R N"]
) -> tuple[Float[Array, "... R N"], Float[Array, "... R N"]]:
    """(f^r, b^r) = (L w^r, L^T w^r): weights of the slots written right after and right before those that a head read.

    Each sums to at most 1. O(R N^2) time; the link is not copied for each head.
    """
    return _directional(link, read_weights)


def _directional_forward(link: jax.Array, weights: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    forward = jnp.einsum("...ij,...rj->...ri", link, weights)
    backward = jnp.einsum("...ij,...ri->...rj", link, weights)
    return (forward, backward), (link, weights)


def _directional_backward(residuals: tuple[jax.Array, jax.Array], gradients: tuple[jax.Array, jax.Array]):
    # Plain differentiation would form the gradient of the link as the sum of two N x N products.
    link, weights = residuals
    forward, backward = gradients
    rows, columns = jnp.concatenate([forward, weights], axis=-2), jnp.concatenate([weights, backward], axis=-2)
    of_backward, of_forward = directional_weights(link, backward)[0], directional_weights(link, forward)[1]
    return jnp.einsum("...ri,...rj->...ij", rows, columns), of_backward + of_forward


_directional = with_gradient(_directional_forward, _directional_backward)


def sharpen_directional(weights: Float[Array, "... R N"], sharpness: Float[Array, "... R"]) -> Float[Array, "... R N"]:
    """(d_i + 1e-6)^s / sum_j (d_j + 1e-6)^s (Csordás & Schmidhuber, section 3.3), `sharpness` s >= 1.

    The result sums to 1. It is uniform where the link is empty. O(R N).
    """
    return jax.nn.softmax(sharpness[..., None] * jnp.log(weights + EPSILON), axis=-1)


# Moving by location (NTM, section 3.3.2) ------------------------------------------------------------------------------


def interpolate(
    gates: Float[Array, "... R"], content: Float[Array, "... R N"], previous: Float[Array, "... R N"]
) -> Float[Array, "... R N"]:
    """w^g = g w^c + (1 - g) w_{t-1} (equation 7). With a gate of 0 the content weights are ignored. O(R N)."""
    gates = gates[..., None]
    return gates * content + (1 - gates) * previous


def shift(weights: Float[Array, "... R N"], distribution: Float[Array, "... R S"]) -> Float[Array, "... R N"]:
    """w~_i = sum_j w_j s(i - j), indices modulo N (equation 8), with S shifts s(-(S // 2)), ..., s((S - 1) // 2).

    The shift +1 moves weights from slot i to slot i + 1, and from the last slot to the first. O(R N S).
    """
    count = distribution.shape[-1]
    moved = [
        distribution[..., number, None] * jnp.roll(weights, number - count // 2, axis=-1) for number in range(count)
    ]
    return functools.reduce(jnp.add, moved)
