"""Arithmetic on integer random variables: the modules of a neural random-access machine.

Kurach, Andrychowicz & Sutskever, "Neural Random-Access Machines", ICLR 2016 (arXiv 1511.06392), section 3.2. A register
holds a distribution over the integers 0 .. M - 1; a module m(a, b) of two independent registers gives the distribution
P(c) = sum_{a, b} P(a) P(b) [m(a, b) = c]. A tape has one such distribution in each of its M cells.

Shapes: registers [..., M], `tape` [..., M cells, M integers]; any leading axes. `modulus` int[...] in 2 .. M, default
M: sums are modulo this number, and integers from this number on have no probability and no effect.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Register = Float[Array, "... M"]
Modulus = Int[Array, "..."] | None


def integer_shift(a: Register, by: int, modulus: Modulus = None) -> Register:
    """a + `by` modulo the modulus (INC: 1, DEC: -1). O(M)."""
    integers = jnp.arange(a.shape[-1])
    return _select(a, integers - by, modulus)


def integer_sum(a: Register, b: Register, modulus: Modulus = None) -> Register:
    """a + b modulo the modulus (ADD): P(c) = sum_a P(a) P_b(c - a).

    Computes all sums 0 .. 2M - 2 and folds the upper half onto the lower. O(M^2) time and temporary memory.
    """
    size = a.shape[-1]
    sums = _convolution(a, b)
    low, high = sums[..., :size], sums[..., size:]
    if modulus is None:
        return low + high
    integers = jnp.arange(size)
    wrapped = jnp.concatenate([low, high], axis=-1)
    wrapped = jnp.take_along_axis(wrapped, jnp.broadcast_to(integers + modulus[..., None], low.shape), axis=-1)
    return jnp.where(integers < modulus[..., None], low + wrapped, 0)


def integer_difference(a: Register, b: Register, modulus: Modulus = None) -> Register:
    """a - b modulo the modulus (SUB): the sum of a and -b. O(M^2)."""
    return integer_sum(a, _select(b, -jnp.arange(b.shape[-1]), modulus), modulus)


def integer_less(a: Register, b: Register) -> Register:
    """1 where a < b, else 0 (LESS-THAN): P(1) = sum_b P(b) P(a < b). O(M)."""
    return _truth(jnp.sum(b * (jnp.cumsum(a, axis=-1) - a), axis=-1), a.shape[-1])


def integer_less_or_equal(a: Register, b: Register) -> Register:
    """1 where a <= b, else 0 (LESS-OR-EQUAL-THAN). O(M)."""
    return _truth(jnp.sum(b * jnp.cumsum(a, axis=-1), axis=-1), a.shape[-1])


def integer_equal(a: Register, b: Register) -> Register:
    """1 where a = b, else 0 (EQUALITY-TEST). O(M)."""
    return _truth(jnp.sum(a * b, axis=-1), a.shape[-1])


def integer_minimum(a: Register, b: Register) -> Register:
    """min(a, b) (MIN): P(c) = P_a(c) P(b >= c) + P_b(c) P(a > c). O(M)."""
    a, b = jnp.broadcast_arrays(a, b)
    at_least = jax.lax.cumsum(jnp.stack([a, b]), axis=a.ndim, reverse=True)
    return a * at_least[1] + b * (at_least[0] - a)


def integer_maximum(a: Register, b: Register) -> Register:
    """max(a, b) (MAX): P(c) = P_a(c) P(b <= c) + P_b(c) P(a < c). O(M)."""
    at_most = jnp.cumsum(jnp.stack(jnp.broadcast_arrays(a, b)), axis=-1)
    return a * at_most[1] + b * (at_most[0] - a)


def read_tape(tape: Float[Array, "... M M"], address: Register) -> Register:
    """P(v) = sum_i P(address = i) tape[i, v] (READ). O(M^2)."""
    return jnp.einsum("...i,...iv->...v", address, tape)


def write_tape(tape: Float[Array, "... M M"], address: Register, value: Register) -> Float[Array, "... M M"]:
    """Cell i becomes (1 - P(address = i)) tape[i] + P(address = i) value (WRITE). O(M^2)."""
    here = address[..., None]
    return (1 - here) * tape + here * value[..., None, :]


@functools.partial(jax.checkpoint, prevent_cse=False)
def _convolution(a: jax.Array, b: jax.Array) -> jax.Array:
    """sum_i a[i] b[k - i] for k = 0 .. 2M - 1, as a product of a with the matrix of all shifts of b.

    Padding and reshaping build that matrix without a gather. The backward pass recomputes it.
    """
    size = a.shape[-1]
    rows = jnp.pad(b, [(0, 0)] * (b.ndim - 1) + [(0, size)])
    rows = jnp.broadcast_to(rows[..., None, :], (*b.shape, 2 * size)).reshape(*b.shape[:-1], -1)
    shifted = rows[..., : size * (2 * size - 1)].reshape(*b.shape, 2 * size - 1)  # row i: b shifted right by i
    sums = jnp.einsum("...i,...ik->...k", a, shifted)
    return jnp.pad(sums, [(0, 0)] * (sums.ndim - 1) + [(0, 1)])


def _select(a: jax.Array, source: jax.Array, modulus: jax.Array | None) -> jax.Array:
    """P'(c) = P(source[c] modulo the modulus) for c below the modulus, 0 beyond."""
    size = a.shape[-1]
    if modulus is None:
        return a[..., source % size]
    modulus = modulus[..., None]
    selected = jnp.take_along_axis(a, jnp.broadcast_to(source % modulus, a.shape), axis=-1)
    return jnp.where(jnp.arange(size) < modulus, selected, 0)


def _truth(probability: jax.Array, size: int) -> jax.Array:
    """The distribution of a boolean: 1 with `probability`, else 0."""
    both = jnp.stack([1 - probability, probability], axis=-1)
    return jnp.pad(both, [(0, 0)] * probability.ndim + [(0, size - 2)])
