"""Functions with a hand-written gradient that also support forward-mode differentiation.

`jax.custom_vjp` gives a function its own backward pass, but then `jax.jvp` and `jax.hessian` no longer work. With
`with_gradient` they do: tangents are JAX's own derivative of the forward pass, wrapped in one linear operation whose
transpose is the hand-written backward pass. In reverse mode, the residuals that the backward pass needs are stored, as
with `jax.custom_vjp`. Second derivatives are derivatives of the hand-written backward pass, in forward mode if it has a
loop of unknown length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from lenmem.ops.chunks import varying_like, varying_over

PyTree = Any


def with_gradient(
    forward: Callable[..., tuple[PyTree, PyTree]],
    backward: Callable[[Any, Any], tuple[PyTree, ...]],
    plain: Callable[..., PyTree] | None = None,
) -> Callable[..., Any]:
    """The function `forward(*arguments)[0]` with `backward` as its gradient. As for `jax.custom_vjp`,

        result, residuals = forward(*arguments)
        cotangents of the arguments = backward(residuals, cotangent of the result)

    with None for an argument without a cotangent. Arguments, result and residuals are pytrees of arrays; `forward` must
    not close over traced values. `plain(*arguments)` computes the result alone, for calls without a gradient; None: it
    is taken from `forward`.
    """
    alone = plain or (lambda *arguments: forward(*arguments)[0])

    @jax.custom_jvp
    def function(*arguments: PyTree) -> PyTree:
        return alone(*arguments)

    @function.defjvp
    def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[PyTree, PyTree]:
        result, residuals = forward(*primals)
        arguments, in_tree = jax.tree.flatten(primals)
        results, out_tree = jax.tree.flatten(result)
        residuals, residuals_tree = jax.tree.flatten(residuals)
        inputs, outputs = (
            [i for i, x in enumerate(leaves) if jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)]
            for leaves in (arguments, results)
        )

        # The closures below capture structures and shapes, not traced values.
        first, known = len(arguments), len(arguments) + len(residuals)
        kinds = [_type(jax.typeof(x)) for x in results]

        def as_tree(moved: Sequence[jax.Array]) -> PyTree:
            """The result's tangent or cotangent as a pytree; leaves that are not floats get float0 zeros."""
            zeros: list[Any] = [np.zeros(kind.shape, jax.dtypes.float0) for kind in kinds]
            leaves: list[Any] = [varying_over(x, kind.mat.varying) for x, kind in zip(zeros, kinds, strict=True)]
            for i, value in zip(outputs, moved, strict=True):
                leaves[i] = value
            return jax.tree.unflatten(out_tree, leaves)

        def push(*operands: jax.Array) -> list[jax.Array]:
            """Tangents of the result, from (arguments, residuals, tangents of the arguments)."""
            at, moves = list(operands[:first]), operands[known:]

            def moved(*values: jax.Array) -> list[jax.Array]:
                for i, value in zip(inputs, values, strict=True):
                    at[i] = value
                leaves = jax.tree.leaves(alone(*jax.tree.unflatten(in_tree, at)))
                return [leaves[i] for i in outputs]

            return jax.jvp(moved, tuple(at[i] for i in inputs), moves)[1]

        def pull(*operands: jax.Array) -> list[jax.Array]:
            """Cotangents of the arguments, from (arguments, residuals, cotangents of the result)."""
            given = backward(jax.tree.unflatten(residuals_tree, operands[first:known]), as_tree(operands[known:]))
            flat = _leaves(given, in_tree)
            return [jnp.zeros_like(operands[i]) if flat[i] is None else flat[i] for i in inputs]

        moves = jax.tree.leaves(tangents)
        outcome = _linear.bind(
            *varying_like([*arguments, *residuals, *(moves[i] for i in inputs)]),
            push=push,
            pull=pull,
            known=known,
            types=tuple(kinds[i] for i in outputs),
        )
        return result, as_tree(outcome)

    return function


def _leaves(given: PyTree, tree: Any) -> list[Any]:
    """One leaf of `given` for each leaf of `tree`; a None in `given` stands for all leaves below it."""
    marked = jax.tree.map(lambda x: _NONE if x is None else x, given, is_leaf=lambda x: x is None)
    full = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [None if x is _NONE else x for x in jax.tree.leaves(jax.tree.broadcast(marked, full))]


_NONE = object()


# The linear operation -------------------------------------------------------------------------------------------------
# The first `known` operands are arrays in which the operation need not be linear; it is linear in the others:
# results = push(*operands). The transpose has the same known arrays and swaps pull and push. `types` holds the type of
# each result: shape, dtype, and the mesh axes over which it varies inside `jax.shard_map`.

_linear = Primitive("linear_with_transpose")
_linear.multiple_results = True


def _run(*operands: jax.Array, push: Callable, **_: Any) -> list[jax.Array]:
    return push(*operands)


def _abstract(*_: Any, types: Sequence[ShapedArray], **__: Any) -> list[ShapedArray]:
    return list(types)


def _type(array: Any) -> ShapedArray:
    return array.update(weak_type=False)


def _differentiated(primals: Sequence, tangents: Sequence, *, known: int, push: Callable, **rest: Any) -> tuple:
    """Linear in the linear operands; JAX differentiates it in the known ones."""
    results = _linear.bind(*primals, known=known, push=push, **rest)
    moves = [ad.instantiate_zeros(x) for x in tangents[known:]]
    moved = _linear.bind(*primals[:known], *moves, known=known, push=push, **rest)
    turned = [i for i, tangent in enumerate(tangents[:known]) if type(tangent) is not ad.Zero]
    if turned:

        def at(*values: jax.Array) -> list[jax.Array]:
            operands = list(primals)
            for i, value in zip(turned, values, strict=True):
                operands[i] = value
            return push(*operands)

        _, more = jax.jvp(at, tuple(primals[i] for i in turned), tuple(tangents[i] for i in turned))
        moved = [x + y for x, y in zip(moved, more, strict=True)]
    return results, moved


def _transposed(
    cotangents: Sequence, *operands: Any, known: int, push: Callable, pull: Callable, types: Sequence[ShapedArray]
) -> list[Any]:
    came = [ad.instantiate_zeros(x) for x in cotangents]
    wanted = [ad.is_undefined_primal(x) for x in operands[known:]]
    avals = [x.aval if unknown else jax.typeof(x) for x, unknown in zip(operands[known:], wanted, strict=True)]
    turned = tuple(_type(aval) for aval in avals)
    given = _linear.bind(*operands[:known], *came, known=known, push=pull, pull=push, types=turned)
    return [None] * known + [x if unknown else None for x, unknown in zip(given, wanted, strict=True)]


def _batched(
    operands: Sequence, axes: Sequence, *, known: int, push: Callable, pull: Callable, types: Sequence[ShapedArray]
) -> tuple:
    """Batched over the first axis. The linear operands are always batched, so the transpose is batched too."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moves = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands[known:], axes[known:], strict=True)
    ]
    held = tuple(axes[:known])
    results = _linear.bind(
        *operands[:known],
        *moves,
        known=known,
        push=jax.vmap(push, (*held, *[0] * len(moves))),
        pull=jax.vmap(pull, (*held, *[0] * len(types))),
        types=tuple(x.update(shape=(size, *x.shape), sharding=None) for x in types),
    )
    return results, [0] * len(results)


_linear.def_impl(_run)
_linear.def_abstract_eval(_abstract)
ad.primitive_jvps[_linear] = _differentiated
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
