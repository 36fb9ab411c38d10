"""A kernel for TPUs of linear recurrences: a matrix-valued state that decays, is erased, written and read.

    S_t = a_t S_{t-1} (I - e_t k_t k_t^T) + w_t v_t k_t^T,      r_t = S_t q_t

A sequence passes in chunks, while the state stays in VMEM. The equations are those of `lenmem.ops.linear_recurrence`.
With the rows of a chunk in Q, K and V, A_t = a_1 .. a_t, G_ts = A_t / A_s, and the transposed state Z = S^T, a program
computes

    T = (I + tril(diag(e) (G * K K^T), -1))^-1
    U = T (diag(w) V - diag(e A) K Z)
    R = tril(G * Q K^T) U + diag(A) Q Z,      Z' = A_C Z + K^T diag(A_C / A) U

The kernel of the gradient applies the derivative of this function to one chunk after another, from the last to the
first. For it the state before each chunk is stored.

On a platform that is not a TPU the kernels are interpreted, which is slow and serves tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from lenmem.ops.chunks import finite_logarithms, result_type, varying_like
from lenmem.ops.gradients import with_gradient
from lenmem.ops.lie import unit
from lenmem.ops.linear_recurrence import linear_recurrence
from lenmem.ops.outward import padded_sums
from lenmem.ops.pallas.calls import by_rows, exact, of_rows, output, run, with_tangents_of
from lenmem.ops.pallas.chunk import Form, chunk
from lenmem.ops.pallas.tiles import TILE, positions
from lenmem.placement import platform, spread

TOGETHER = 2
"""Rows of a program, if their number allows it: while one waits for a product, another goes on."""
STRENGTHS = 8
"""Rows of the array of strengths, of which five are used: w, e, log A, log A_C / A, log a. A tile of float32 has 8."""
USED = 5
WIDEST = 256
"""Widths up to this fit into VMEM."""


def fits(keys: jax.Array, values: jax.Array) -> bool:
    """Whether the kernel takes these dtypes and widths."""
    widest = max(keys.shape[-1], values.shape[-1])
    return widest <= WIDEST and {jnp.result_type(x).name for x in (keys, values)} <= {"float32", "bfloat16"}


def recur(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    write: jax.Array | None = None,
    erase: jax.Array | None = None,
    log_decay: jax.Array | None = None,
    *,
    initial: jax.Array | None = None,
    normalise: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """(S after the last position [..., d_v, d_k] in float32, r [..., S, d_v] in the dtype of the values).

    As `linear_recurrence`. Without `write`, w = 1. `normalise`: queries and keys are projected to the unit sphere.
    O(S (d + d_v d_k / 128)) memory. Forward-mode and second derivatives are those of the form for XLA. ValueError for
    other dtypes, and widths above WIDEST.
    """
    length, widths = keys.shape[-2], (keys.shape[-1], values.shape[-1])
    if not fits(keys, values):
        raise ValueError(
            f"the kernel takes float32 or bfloat16 with widths of up to {WIDEST}, not {jnp.result_type(keys, values)} "
            f"with widths {widths[0]} and {widths[1]}: use implementation='xla'"
        )
    interpret = platform() != "tpu"
    form = Form(normalise, erase is not None, log_decay is not None, exact(interpret))
    whole = max(TILE, length + -length % TILE)
    strengths = _strengths(jnp.ones(length) if write is None else write, erase, log_decay, whole)
    state = jnp.zeros(widths, jnp.float32) if initial is None else jnp.swapaxes(initial.astype(jnp.float32), -1, -2)
    sequences = (queries, keys, values.astype(result_type(values)))
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in (*sequences, strengths, state)))
    rows = [by_rows(x, leading, whole) for x in sequences]
    rows += [by_rows(strengths, leading, STRENGTHS), by_rows(state, leading, widths[0])]
    state, reads = _recurrence(form, interpret, spread())(*rows)
    reads = reads.reshape(*leading, whole, widths[1])[..., :length, :]
    return jnp.swapaxes(state.reshape(*leading, *widths), -1, -2), reads


def _strengths(write: jax.Array, erase: jax.Array | None, log_decay: jax.Array | None, whole: int) -> jax.Array:
    """[..., 8, whole]: w, e, the sums of log a from the start of the chunk and after this step, log a; then zeros."""
    kind = jnp.dtype(jnp.float32)

    def filled(strength: jax.Array | None) -> jax.Array:
        strength = jnp.zeros(0, kind) if strength is None else strength.astype(kind)
        return jnp.pad(strength, [(0, 0)] * (strength.ndim - 1) + [(0, whole - strength.shape[-1])])

    given = [filled(write), filled(erase)]
    if log_decay is not None:
        decay = filled(finite_logarithms(log_decay, kind))
        chunks = _in_chunks(decay)
        since, left = jnp.cumsum(chunks, axis=-1), padded_sums(chunks, reverse=True)
        given += [since.reshape(decay.shape), left.reshape(decay.shape), decay]
    rows = jnp.stack(jnp.broadcast_arrays(*given), axis=-2)
    return jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, STRENGTHS - len(given)), (0, 0)])


def _in_chunks(array: jax.Array) -> jax.Array:
    return array.reshape(*array.shape[:-1], -1, TILE)


@functools.cache
def _recurrence(form: Form, interpret: bool, over: tuple[Mesh, str] | None) -> Callable[..., Any]:
    """The function of (queries, keys, values, strengths, Z_0) by rows, with its gradient."""
    plain = functools.partial(_plain, form=form)
    options = {"form": form, "interpret": interpret}

    def plain_with_states(*arrays: jax.Array) -> Any:
        states = jnp.zeros(_states_shape(*arrays[1:3]))  # only the kernel of the gradient uses them
        return *plain(*arrays), varying_like(states, arrays)

    def plain_gradient(*arrays: jax.Array) -> Any:
        return jax.vjp(plain, *arrays[:5])[1](arrays[6:])

    alone = with_tangents_of(plain, of_rows(functools.partial(_forward, keep=False, **options), 5, over))
    ahead = with_tangents_of(plain_with_states, of_rows(functools.partial(_forward, keep=True, **options), 5, over))
    back = with_tangents_of(plain_gradient, of_rows(functools.partial(_backward, **options), 8, over))

    def forward(*arrays: jax.Array) -> tuple[Any, Any]:
        state, reads, states = ahead(*arrays)
        return (state, reads), (*arrays, states)

    return with_gradient(forward, lambda kept, cotangents: back(*kept, *cotangents), alone)


# The kernels ----------------------------------------------------------------------------------------------------------


def _forward(*arrays: jax.Array, form: Form, keep: bool, interpret: bool) -> tuple[jax.Array, ...]:
    """(the last state, the reads) from (queries, keys, values, strengths, Z_0) by rows; with `keep` also the state
    before each chunk [R, n, d_k, d_v]."""
    _, keys, values, _, initial = arrays
    outputs = [(initial.shape, jnp.float32, "state"), (values.shape, values.dtype, "sequence")]
    if keep:
        outputs.append((_states_shape(keys, values), jnp.float32, "states"))
    kinds = ["sequence", "sequence", "sequence", "strengths", "state"]
    kernel = functools.partial(_forward_kernel, form=form)
    return _called(kernel, arrays, kinds, outputs, reverse=False, interpret=interpret)


def _forward_kernel(
    queries: Any, keys: Any, values: Any, strengths: Any, initial: Any, state: Any, reads: Any, *states: Any, form: Form
) -> None:
    """The block of `state` is that of the whole sequence, so it stays in VMEM from chunk to chunk."""

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        state[...] = initial[...]

    for i in range(keys.shape[0]):
        if states:
            states[0][i, 0] = state[i]
        given = _unpacked(strengths[i])
        state[i], read = chunk(queries[i], keys[i], values[i], *given, state[i], form=form)
        reads[i] = read.astype(reads.dtype)


def _backward(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    strengths: jax.Array,
    initial: jax.Array,
    states: jax.Array,
    d_state: jax.Array,
    d_reads: jax.Array,
    *,
    form: Form,
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """The gradients for (queries, keys, values, strengths, Z_0) by rows."""
    sequences = (queries, keys, values)
    outputs = [*((x.shape, x.dtype, "sequence") for x in sequences), (strengths.shape, jnp.float32, "strengths")]
    outputs.append((initial.shape, jnp.float32, "state"))
    kinds = ["sequence", "sequence", "sequence", "strengths", "states", "state", "sequence"]
    kernel = functools.partial(_backward_kernel, form=form)
    arrays = (*sequences, strengths, states, d_state, d_reads)
    return _called(kernel, arrays, kinds, outputs, reverse=True, interpret=interpret)


def _backward_kernel(
    queries: Any,
    keys: Any,
    values: Any,
    strengths: Any,
    states: Any,
    d_last: Any,
    d_reads: Any,
    d_queries: Any,
    d_keys: Any,
    d_values: Any,
    d_strengths: Any,
    d_state: Any,
    *,
    form: Form,
) -> None:
    """The gradient for the state after a chunk is in `d_state`, where that for the state before it replaces it."""

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        d_state[...] = d_last[...]

    for i in range(keys.shape[0]):
        sequences = (x[i].astype(jnp.float32) for x in (queries, keys, values))
        arguments = (*sequences, *_unpacked(strengths[i]), states[i, 0])
        pull = jax.vjp(functools.partial(chunk, form=form), *arguments)[1]
        *moved, d_state[i] = pull((d_state[i], d_reads[i].astype(jnp.float32)))
        for array, gradient in zip((d_queries, d_keys, d_values), moved[:3], strict=True):
            array[i] = gradient.astype(array.dtype)
        d_strengths[i] = _packed(*moved[3:])


def _unpacked(strengths: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """w, e, log A and log A_C / A as columns [C, 1], and log a as a row [1, C]."""
    columns = strengths.T
    write, erase, since, left = (columns[:, i : i + 1] for i in range(USED - 1))
    return write, erase, since, left, strengths[USED - 1 : USED]


def _packed(*gradients: jax.Array) -> jax.Array:
    """The transpose of `_unpacked`."""
    *given, last = gradients
    column = jax.lax.broadcasted_iota(jnp.int32, (TILE, STRENGTHS), 1)
    columns = functools.reduce(jnp.add, [jnp.where(column == i, x, 0.0) for i, x in enumerate(given)])
    row, _ = positions(STRENGTHS)
    return jnp.where(row == USED - 1, last, columns.T)


def _states_shape(keys: jax.Array, values: jax.Array) -> tuple[int, ...]:
    rows, length, width = keys.shape
    return rows, length // TILE, width, values.shape[-1]


def _called(
    kernel: Callable[..., None],
    arrays: tuple[jax.Array, ...],
    kinds: list[str],
    outputs: list[tuple[tuple[int, ...], Any, str]],
    *,
    reverse: bool,
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """The kernel over chunks, with blocks by the kind of each array; `outputs` are (shape, dtype, kind)."""
    arrays = varying_like(arrays)
    rows, length, _ = arrays[0].shape
    count, together = length // TILE, next(i for i in range(TOGETHER, 0, -1) if rows % i == 0)

    def block(shape: tuple[int, ...], kind: str) -> pl.BlockSpec:
        def at(step: Any) -> Any:
            return count - 1 - step if reverse else step

        return {
            "sequence": pl.BlockSpec((together, TILE, shape[-1]), lambda row, step: (row, at(step), 0)),
            "strengths": pl.BlockSpec((together, STRENGTHS, TILE), lambda row, step: (row, 0, at(step))),
            "state": pl.BlockSpec((together, *shape[-2:]), lambda row, _: (row, 0, 0)),
            "states": pl.BlockSpec((together, 1, *shape[-2:]), lambda row, step: (row, at(step), 0, 0)),
        }[kind]

    return run(
        kernel,
        arrays,
        out_shape=tuple(output(shape, arrays[0], dtype) for shape, dtype, _ in outputs),
        grid=(rows // together, count),
        in_specs=[block(x.shape, kind) for x, kind in zip(arrays, kinds, strict=True)],
        out_specs=tuple(block(shape, kind) for shape, _, kind in outputs),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )


# Without a kernel -----------------------------------------------------------------------------------------------------


def _plain(
    queries: jax.Array, keys: jax.Array, values: jax.Array, strengths: jax.Array, initial: jax.Array, *, form: Form
) -> tuple[jax.Array, jax.Array]:
    """(the last state, the reads) of rows."""
    if form.normalises:
        queries, keys = unit(queries), unit(keys)
    write, erase, log_decay = (strengths[:, i] for i in (0, 1, USED - 1))
    state, reads = linear_recurrence(
        queries,
        keys,
        values,
        write,
        erase if form.erases else None,
        log_decay if form.decays else None,
        initial=jnp.swapaxes(initial, 1, 2),
        implementation="xla",
    )
    return jnp.swapaxes(state, 1, 2), reads
