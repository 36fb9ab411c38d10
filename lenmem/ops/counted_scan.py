"""A scan whose number of steps is known at run time only, and whose backward pass stores little.

Batches are padded to a capacity, and only the first `count` steps concern a row. JAX cannot differentiate a loop whose
length is not static, so the loop has its own backward pass. The forward loop stores the carry of each step and its
products with weights (`lenmem.ops.products`). The backward loop computes the rest of a step again. It collects the
factors of the gradients of weights for a group of steps, and then computes one product for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lenmem.ops.chunks import varying_like
from lenmem.ops.gradients import with_gradient
from lenmem.ops.products import SharedProducts

PyTree = Any


def counted_scan(products: SharedProducts, size: int, *, whole: bool) -> Callable[..., PyTree]:
    """A function `scan(weights, carry, xs, count)`: `lax.scan` of the step of `products` over the first `count` steps
    of `xs` [T, ...], as (carry, outputs [T, ...]). The outputs of later steps are zeros.

    `size`: the number of steps in a group. With `whole`, T is a multiple of `size`, and groups are computed completely:
    on a GPU each decision whether to go on takes time. Only floats have gradients.
    """

    def plain(weights: PyTree, carry: PyTree, xs: PyTree, count: jax.Array) -> PyTree:
        return forward(weights, carry, xs, count, keep=False)[0]

    def over(count: jax.Array, body: Callable, state: PyTree, *, reverse: bool = False) -> PyTree:
        """`state = body(start, length, state)` for each group, by its first step and its number of steps."""
        groups = -(-count // size)

        def group(number: jax.Array, state: PyTree) -> PyTree:
            start = (groups - 1 - number if reverse else number) * size
            return body(start, size if whole else jnp.minimum(size, count - start), state)

        return lax.fori_loop(0, groups, group, state)

    def forward(
        weights: PyTree, carry: PyTree, xs: PyTree, count: jax.Array, *, keep: bool = True
    ) -> tuple[PyTree, PyTree]:
        def computed(carry: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
            (new, output), results = products.with_results(weights, carry, x)
            return new, (output, (carry, results) if keep else ())

        def group(start: jax.Array, length: Any, state: PyTree) -> PyTree:
            def step(i: jax.Array, state: PyTree) -> PyTree:
                carry, stacked = state
                carry, result = computed(carry, _at(xs, start + i))
                return carry, _put(stacked, start + i, result)

            return lax.fori_loop(0, length, step, state)

        stacked = _zeros(jax.eval_shape(computed, carry, _at(xs, 0))[1], _steps(xs))
        carry, (outputs, kept) = over(count, group, varying_like((carry, stacked), weights, xs))
        return (carry, outputs), (weights, xs, kept, count)

    def backward(residuals: PyTree, cotangents: PyTree) -> tuple[PyTree, ...]:
        weights, xs, (carries, results), count = residuals
        d_carry, d_outputs = cotangents
        leaves = products.plain_leaves(weights)

        def pulled(time: jax.Array | int, d_carry: list[jax.Array]) -> tuple[list, list, list, PyTree]:
            """The gradients of a step, of carry, inputs and leaves, and the factors of those of products."""
            carry, x = _at((carries, xs), time)

            def once(leaves: list, probes: list, carry: PyTree, x: PyTree) -> tuple[PyTree, list]:
                return products.run(leaves, probes, weights, carry, x, results=_at(results, time))

            _, pull, factors = jax.vjp(once, leaves, products.probes(), carry, x, has_aux=True)
            d_leaves, d_probes, d_before, d_x = pull((_cotangent(carry, d_carry), _at(d_outputs, time)))
            return _floats(carry, d_before), _floats(x, d_x), d_leaves, (factors, d_probes)

        def group(start: jax.Array, length: Any, state: PyTree) -> PyTree:
            def step(i: jax.Array, state: PyTree) -> PyTree:
                d_carry, d_xs, d_leaves, collected = state
                i = length - 1 - i
                d_carry, d_x, more, found = pulled(start + i, d_carry)
                d_leaves = jax.tree.map(jnp.add, d_leaves, more)
                return d_carry, _put(d_xs, start + i, d_x), d_leaves, _put(collected, i, found)

            d_weights, d_carry, d_xs = state
            collected = varying_like((jax.tree.map(jnp.zeros_like, leaves), _zeros(factored, size)), d_weights, d_carry)
            d_carry, d_xs, *collected = lax.fori_loop(0, length, step, (d_carry, d_xs, *collected))
            d_leaves, (factors, d_probes) = collected
            more = products.gradient(weights, factors, d_probes, d_leaves)
            return jax.tree.map(jnp.add, d_weights, jax.tree.leaves(more)), d_carry, d_xs

        d_carry = _floats(_at(carries, 0), d_carry)
        _, d_x, _, factored = jax.eval_shape(lambda d_carry: pulled(0, d_carry), d_carry)
        state = [jnp.zeros_like(x) for x in _floats(weights, weights)], d_carry, _zeros(d_x, _steps(xs))
        state = varying_like(state, weights, carries, xs, _floats(d_outputs, d_outputs))
        d_weights, d_carry, d_xs = over(count, group, state, reverse=True)
        return _gradient(weights, d_weights), _gradient(_at(carries, 0), d_carry), _gradient(xs, d_xs), None

    return with_gradient(forward, backward, plain)


def _steps(xs: PyTree) -> int:
    return len(jax.tree.leaves(xs)[0])


def _at(tree: PyTree, time: jax.Array | int) -> PyTree:
    """Element `time` of the first axis of each leaf."""

    def element(x: Any) -> Any:
        if x.dtype == jax.dtypes.float0:
            return np.zeros(x.shape[1:], x.dtype)
        return lax.dynamic_index_in_dim(x, time, keepdims=False)

    return jax.tree.map(element, tree)


def _put(stacked: PyTree, time: jax.Array, values: PyTree) -> PyTree:
    """The inverse of `_at`."""
    return jax.tree.map(lambda x, value: lax.dynamic_update_index_in_dim(x, value, time, 0), stacked, values)


def _zeros(tree: PyTree, steps: int) -> PyTree:
    """Zeros like the leaves, for each of so many steps."""
    return jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), tree)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _floats(tree: PyTree, values: PyTree) -> list[jax.Array]:
    """The leaves of `values` for the leaves of `tree` that are floats."""
    return [value for x, value in zip(jax.tree.leaves(tree), jax.tree.leaves(values), strict=True) if _is_float(x)]


def _spread(tree: PyTree, floats: list[jax.Array], other: Callable[[Any], Any]) -> PyTree:
    """The inverse of `_floats`: `other(x)` for the other leaves of `tree`."""
    leaves, each = jax.tree.leaves(tree), iter(floats)
    return jax.tree.unflatten(jax.tree.structure(tree), [next(each) if _is_float(x) else other(x) for x in leaves])


def _cotangent(tree: PyTree, floats: list[jax.Array]) -> PyTree:
    return _spread(tree, floats, lambda x: np.zeros(x.shape, jax.dtypes.float0))


def _gradient(tree: PyTree, floats: list[jax.Array]) -> PyTree:
    return _spread(tree, floats, lambda _: None)
