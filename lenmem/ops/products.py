"""Gradients of weights that all steps of a loop share, as one product after the loop.

Let a step compute y_t = x_t W with the same W in every step. With JAX's usual derivative, the backward loop adds a
gradient of the size of W at every step:

    dW = sum_t x_t^T dy_t                                O(T |W|) memory traffic, T small products

`SharedProducts` finds such products in the traced step. Its `run` adds a probe to each of them, whose gradient is dy_t,
and also returns x_t. A loop stacks both over time, and `gradient` computes one product for all steps:

    dW = [x_1; ..; x_T]^T [dy_1; ..; dy_T]

If a step also uses weights in other ways (biases, gains), that part of their gradient is computed as usual.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import dot_general_p

from lenmem.ops.chunks import varying_over
from lenmem.ops.gradients import with_gradient
from lenmem.placement import platform

PyTree = Any

LARGEST = 1.0
"""A product is differentiated as usual if the ratio of its results to its weights exceeds this number: storing the
results of all steps would then cost more than adding a gradient at each step. With 0 all products are differentiated as
usual."""


def shared_scan(step: Callable, weights: PyTree, carry: PyTree, x: PyTree) -> Callable:
    """A function `scan(weights, carry, xs)`: `lax.scan` of `step(weights, carry, x)` over the first axis of `xs`, with
    the gradients of products with weights formed after the loop.

    The step is traced with `weights`, `carry` and `x`, and must not close over traced values.
    """
    products = SharedProducts(step, weights, carry, x)

    def plain(weights, carry, xs):
        return jax.lax.scan(lambda carry, x: step(weights, carry, x), carry, xs)

    def forward(weights, carry, xs):
        def run(leaves, probes, carry, xs):
            def probed(carry, inputs):
                probes, x = inputs
                (carry, output), factors = products.run(leaves, probes, weights, carry, x)
                return carry, (output, factors)

            carry, (outputs, factors) = jax.lax.scan(probed, carry, (probes, xs))
            return (carry, outputs), factors

        leaves, probes = products.plain_leaves(weights), products.probes(len(jax.tree.leaves(xs)[0]))
        result, pull, factors = jax.vjp(run, leaves, probes, carry, xs, has_aux=True)
        return result, (pull, factors, weights)

    def backward(kept, cotangents):
        pull, factors, weights = kept
        d_leaves, d_probes, d_carry, d_xs = pull(cotangents)
        return products.gradient(weights, factors, d_probes, d_leaves), d_carry, d_xs

    # Inside `jax.shard_map` with weights that are the same on all devices, JAX's derivative sums over the devices.
    return with_gradient(forward, backward, plain) if products.found and _vary_alike(weights, carry, x) else plain


def closed(step: Callable[..., PyTree], weights: PyTree, *arguments: PyTree) -> tuple[Callable[..., PyTree], PyTree]:
    """`step` and `weights`, with the traced values that the step closes over as further weights.

    A scan with a gradient of its own must not close over traced values. The step of a network does so if one of the
    network's fields is traced, as in a sweep.
    """
    found: Any = jax.make_jaxpr(step, return_shape=True)(weights, *arguments)
    traced, result = found
    hidden = [i for i, x in enumerate(traced.consts) if isinstance(x, Tracer)]
    if not hidden:
        return step, weights

    def of_all(given: PyTree, *arguments: PyTree) -> PyTree:
        weights, values = given
        constants = list(traced.consts)
        for i, value in zip(hidden, values, strict=True):
            constants[i] = value
        results = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, constants))(*jax.tree.leaves((weights, *arguments)))
        return jax.tree.unflatten(jax.tree.structure(result), results)

    return of_all, (weights, [traced.consts[i] for i in hidden])


class SharedProducts:
    """The products in `step(weights, *arguments)` in which one factor depends on `weights` alone.

    The step is traced once; the values of the arguments do not matter. Only products at the top level of the step are
    found. Products inside a loop, a branch or a checkpoint are differentiated as usual.
    """

    def __init__(self, step: Callable[..., PyTree], weights: PyTree, *arguments: PyTree):
        traced: Any = jax.make_jaxpr(step, return_shape=True)(weights, *arguments)
        closed, result = traced
        self.jaxpr, self.constants, self.result = closed.jaxpr, closed.consts, jax.tree.structure(result)
        leaves, self.tree = jax.tree.flatten(weights)
        self.of_weights = self.jaxpr.invars[: len(leaves)]
        self.of_arguments = self.jaxpr.invars[len(leaves) :]

        # What can be known before the first step.
        fixed, known = set(self.of_weights), {*self.jaxpr.constvars, *self.of_weights}
        self.before: list[int] = []
        """Numbers of the equations that depend on weights alone."""
        self.products: dict[int, int] = {}
        """Number of an equation -> which of its two operands is fixed."""
        for number, equation in enumerate(self.jaxpr.eqns):
            used = [x for x in equation.invars if isinstance(x, Var)]
            if known.issuperset(used) and not equation.effects:
                known.update(equation.outvars)
                if not fixed.isdisjoint(used):
                    fixed.update(equation.outvars)
                self.before.append(number)
            elif equation.primitive is dot_general_p:
                sides = [i for i, x in enumerate(equation.invars) if x in fixed]
                if len(sides) == 1 and equation.outvars[0].aval.size <= LARGEST * equation.invars[sides[0]].aval.size:
                    self.products[number] = sides[0]

        # Weights that also count in another way, by going back through the equations.
        needed = {x for x in self.jaxpr.outvars if isinstance(x, Var)}
        for number, equation in reversed(list(enumerate(self.jaxpr.eqns))):
            if not equation.effects and needed.isdisjoint(equation.outvars):
                continue
            side = self.products.get(number)
            needed.update(x for i, x in enumerate(equation.invars) if isinstance(x, Var) and i != side)
        self.floats = [i for i, x in enumerate(self.of_weights) if jnp.issubdtype(x.aval.dtype, jnp.inexact)]
        self.plain = [i for i in self.floats if self.of_weights[i] in needed]

    @property
    def found(self) -> bool:
        """Whether there are such products."""
        return bool(self.products)

    def plain_leaves(self, weights: PyTree) -> list[jax.Array]:
        """The leaves of `weights` for which `run` must also be differentiated as usual."""
        leaves = jax.tree.leaves(weights)
        return [leaves[i] for i in self.plain]

    def probes(self, *leading: int) -> list[jax.Array]:
        """A zero array for each product, with additional leading axes."""
        results = (self.jaxpr.eqns[number].outvars[0].aval for number in self.products)
        return [varying_over(jnp.zeros((*leading, *x.shape), x.dtype), x.mat.varying) for x in results]

    def run(
        self,
        plain: list[jax.Array],
        probes: list[jax.Array],
        weights: PyTree,
        *arguments: PyTree,
        results: list[jax.Array] | None = None,
    ) -> tuple[PyTree, list[jax.Array]]:
        """(the result of the step, the other factor of each product).

        `plain` are the `plain_leaves` of `weights`. The result is differentiable in `plain`, `probes` and `arguments`.
        `results`: those of the products, if they are known from `with_results`; they are then not computed again.
        """
        leaves = jax.tree.leaves(weights)
        fixed, factors, probe = self._before(leaves), [], iter(probes)
        known = itertools.repeat(None) if results is None else iter(results)
        for i, leaf in zip(self.plain, plain, strict=True):
            leaves[i] = leaf

        def product(number: int, weight: Any, factor: jax.Array) -> jax.Array:
            factors.append(factor)
            of_equation = functools.partial(self._product, number)
            return _probed(of_equation, fixed[weight], factor, next(probe), next(known))

        return self._evaluate(self._before(leaves), arguments, product), factors

    def with_results(self, weights: PyTree, *arguments: PyTree) -> tuple[PyTree, list[jax.Array]]:
        """(the result of the step, the result of each product)."""
        fixed, results = self._before(jax.tree.leaves(weights)), []

        def product(number: int, weight: Any, factor: jax.Array) -> jax.Array:
            results.append(self._product(number, fixed[weight], factor))
            return results[-1]

        return self._evaluate(fixed, arguments, product), results

    def _evaluate(self, before: dict[Any, Any], arguments: PyTree, product: Callable[..., jax.Array]) -> PyTree:
        """The result of the step, from the values `before` it, with `product(number of the equation, its weight as a
        variable, other factor)`."""
        values = before | dict(zip(self.of_arguments, jax.tree.leaves(arguments), strict=True))
        for number, equation in enumerate(self.jaxpr.eqns):
            if number in self.before:
                continue
            operands = [_value(values, x) for x in equation.invars]
            side = self.products.get(number)
            if side is None:
                results = self._apply(number, operands)
            else:
                results = [product(number, equation.invars[side], operands[1 - side])]
            values.update(zip(equation.outvars, results, strict=True))
        return jax.tree.unflatten(self.result, [_value(values, x) for x in self.jaxpr.outvars])

    def gradient(
        self, weights: PyTree, factors: list[jax.Array], d_probes: list[jax.Array], d_plain: Iterable[jax.Array]
    ) -> PyTree:
        """The gradient in `weights`, from the factors that `run` returned and the gradients in `probes`, both stacked
        over the steps on axis 0, and from the gradients in `plain`. None for leaves that are not floats."""
        leaves = jax.tree.leaves(weights)

        def products(floats: list[jax.Array]) -> list[jax.Array]:
            at = list(leaves)
            for i, leaf in zip(self.floats, floats, strict=True):
                at[i] = leaf
            values = self._before(at)
            fixed = [values[self.jaxpr.eqns[number].invars[side]] for number, side in self.products.items()]
            each = zip(self.products, fixed, factors, strict=True)
            return [self._products(number, x, y) for number, x, y in each]

        (of_products,) = jax.vjp(products, [leaves[i] for i in self.floats])[1](d_probes)
        gradient: list[Any] = [None] * len(leaves)
        for i, value in zip(self.floats, of_products, strict=True):
            gradient[i] = value
        for i, value in zip(self.plain, d_plain, strict=True):
            gradient[i] = gradient[i] + value
        return jax.tree.unflatten(self.tree, gradient)

    def _before(self, leaves: list[jax.Array]) -> dict[Any, Any]:
        """The values that depend on weights alone."""
        values: dict[Any, Any] = dict(zip(self.jaxpr.constvars, self.constants, strict=True))
        values.update(zip(self.of_weights, leaves, strict=True))
        for number in self.before:
            equation = self.jaxpr.eqns[number]
            operands = [_value(values, x) for x in equation.invars]
            values.update(zip(equation.outvars, self._apply(number, operands), strict=True))
        return values

    def _product(self, number: int, weight: jax.Array, factor: jax.Array) -> jax.Array:
        """The product of an equation, from its fixed operand and the other."""
        return self._apply(number, (weight, factor) if self.products[number] == 0 else (factor, weight))[0]

    def _products(self, number: int, weight: jax.Array, factors: jax.Array) -> jax.Array:
        """The products of an equation in all steps, from the factors of all steps [T, ...]."""
        (contracted, _), (batch, _) = self.jaxpr.eqns[number].params["dimension_numbers"]
        rows = self.products[number] == 1 and not batch and 0 not in contracted
        if platform() != "cpu" or not rows:
            return jax.vmap(functools.partial(self._product, number, weight))(factors)
        # The rows of all steps as rows of one matrix: XLA's form of the gradient would take several times as long.
        steps, count = factors.shape[:2]
        results = self._product(number, weight, factors.reshape(steps * count, *factors.shape[2:]))
        return results.reshape(steps, count, *results.shape[1:])

    def _apply(self, number: int, operands: Iterable[Any]) -> list[Any]:
        """The results of an equation with these operands."""
        equation, names = self.jaxpr.eqns[number], self.jaxpr.debug_info.with_unknown_names()
        given = {x: value for x, value in zip(equation.invars, operands, strict=True) if isinstance(x, Var)}
        alone = {"invars": [*given], "outvars": equation.outvars, "eqns": [equation], "debug_info": names}
        return jaxpr_as_fun(ClosedJaxpr(self.jaxpr.replace(constvars=[], **alone), ()))(*given.values())


def _vary_alike(*trees: PyTree) -> bool:
    """Whether all arrays vary over the same axes of a mesh."""
    return len({jax.typeof(x).mat.varying for x in jax.tree.leaves(trees)}) < 2


def _value(values: dict[Any, Any], x: Var | Literal) -> Any:
    return x.val if isinstance(x, Literal) else values[x]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _probed(
    product: Callable, weight: jax.Array, factor: jax.Array, probe: jax.Array, known: jax.Array | None
) -> jax.Array:
    """`product(weight, factor) + probe` for a probe of zeros, without the addition; `known` is its value, if given."""
    return product(weight, factor) if known is None else known


def _moved(product: Callable, primals: tuple, tangents: tuple) -> tuple[jax.Array, Any]:
    (weight, factor, probe, known), (d_weight, d_factor, d_probe, d_known) = primals, tangents
    result = _probed(product, weight, factor, probe, known)
    if known is not None and not isinstance(d_known, SymbolicZero):
        return result, d_known  # in second derivatives, where it contains the tangents of the factors
    terms = [] if isinstance(d_probe, SymbolicZero) else [d_probe]
    if not isinstance(d_factor, SymbolicZero):
        terms.append(product(weight, d_factor))
    if not isinstance(d_weight, SymbolicZero):
        terms.append(product(d_weight, factor))
    return result, functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(result)


_probed.defjvp(_moved, symbolic_zeros=True)
