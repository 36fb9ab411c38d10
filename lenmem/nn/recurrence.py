"""Running a cell over time, with two kinds of scan.

A *cell* is a Linen module with

    start(batch_shape, steps) -> carry          the initial state, learned or zero; `steps` is the static number of
                                                time steps that read the input (the slots of a growing memory). There
                                                may be the arguments `deterministic`, for a random start,
                                                `lengths`, int[B]: the number of inputs of each row, and `columns`:
                                                the static number of all steps, with those that answer
    __call__(carry, Step) -> (carry, output)    one time step

and optionally `sequence_loss(carries, valid) -> scalar`, a regulariser that needs the carries of all times.

`scan_cell` ends after the last step at which a row is valid (`lenmem.ops.counted_scan`), or after the chunk of steps
with it, so the cost of a padded batch depends on its longest row and not on its capacity.

Cells whose memory only grows (`AppendOnlyCell`) run in a scan with its own backward pass. JAX's usual derivative would
store the complete memory at every step, O(T^2). But the memory at step t is the final memory with later slots masked,
so it suffices to store the final memory, O(T). The backward pass recomputes each step from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.ops.chunks import varying_like
from lenmem.ops.counted_scan import counted_scan
from lenmem.ops.gradients import with_gradient
from lenmem.ops.products import SharedProducts, closed, shared_scan
from lenmem.placement import platform
from lenmem.types import SOWN, STREAMS, PyTree, Step

CHUNK = 16


class AppendOnlyCell(nn.Module):
    """A cell with a growing memory: each step reads the earlier entries, then appends one.

    Subclasses define `start` and `advance`. The carry is `(state, memory, written, time)`. `memory` is a pytree of
    arrays [B, ..., slots], with the slots last; `start` fills the first `initial_slots`, and the entry of step t goes
    to slot `initial_slots + t`. Rows that are decoding, or no longer valid, append nothing. `written` int[B] counts the
    entries.
    """

    @property
    def initial_slots(self) -> int:
        """Number of slots that `start` fills."""
        return 1

    def start(self, batch_shape: tuple[int, ...], steps: int) -> tuple[PyTree, PyTree, jax.Array, jax.Array]:
        """`(state, memory, 0, 0)`, with a memory of `initial_slots + steps` slots."""
        raise NotImplementedError

    def advance(self, state: PyTree, memory: PyTree, filled: jax.Array, step: Step) -> tuple[PyTree, PyTree, PyTree]:
        """One step: `(state, entry, output)`. `filled` bool[B, slots]: the slots that may be read."""
        raise NotImplementedError

    def __call__(self, carry: PyTree, step: Step) -> tuple[PyTree, PyTree]:
        """One step as a plain cell: advance, then append."""
        state, memory, written, time = carry
        state, entry, output = self.advance(state, memory, _filled(self, memory, written), step)
        memory = _append(memory, entry, self.initial_slots + time)
        return (state, memory, written + (step.valid & ~step.decoding).astype(written.dtype), time + 1), output


def scan_cell(
    cell: nn.Module, carry: PyTree, steps: Step, *shared: PyTree, method: str = "__call__"
) -> tuple[PyTree, PyTree]:
    """Runs `cell` over time-major `steps` [T, B, ...] from `carry`: `(final carry, outputs [T, B, ...])`.

    `shared` are further arguments for each call of the cell, the same at all steps. `method` names the cell's method
    for one time step. Outputs at steps where a row is not valid are arbitrary, and so is the final carry of rows that
    ended early, unless the cell preserves it (`where_valid`). Values that the cell sows are stacked over time. The time
    is folded into the random streams.

    In the backward pass, the gradients of products with weights, and with `shared`, are computed after each chunk of
    steps instead of at each step (`lenmem.ops.products`). Raises ValueError if the cell does not return
    `(carry, output)`, or returns a carry of another form.
    """
    length = steps.valid.shape[0]
    if cell.is_initializing():  # one step creates all parameters
        returned = getattr(cell, method)(carry, jax.tree.map(lambda x: x[0], steps), *shared)
        carry, output = _checked_return(cell, carry, returned)
        return carry, jax.tree.map(lambda x: jnp.broadcast_to(x, (length, *x.shape)), output)

    module, variables = cell.unbind()
    variables = {name: value for name, value in variables.items() if name not in SOWN}
    keys = {name: cell.make_rng(name) for name in STREAMS if cell.has_rng(name)}
    sown = tuple(name for name in SOWN if cell.is_mutable_collection(name))
    regularised = hasattr(cell, "sequence_loss") and "losses" in sown

    def call(
        variables: PyTree, keys: PyTree, time: jax.Array, *arguments: Any, method: str = method
    ) -> tuple[Any, Any]:
        rngs = {name: jax.random.fold_in(key, time) for name, key in keys.items()}
        if sown:
            return module.apply(variables, *arguments, rngs=rngs, mutable=list(sown), method=method)
        return module.apply(variables, *arguments, rngs=rngs, method=method), {}

    if isinstance(cell, AppendOnlyCell) and not regularised:

        def advance(variables, keys, time, state, memory, filled, step):
            advanced, mutated = call(variables, keys, time, state, memory, filled, step, method="advance")
            new, entry, output = advanced
            entry = jax.tree.map(lambda new, column: new.astype(column.dtype), entry, memory)
            return _unless_padded(length, step, new, state), entry, (output, mutated)

        state, memory, written, time = carry
        count = written + jnp.sum(steps.valid & ~steps.decoding, axis=0)
        filled, first = _filled(module, memory, written), jax.tree.map(lambda x: x[0], steps)
        advance, variables = closed(advance, variables, keys, time, state, memory, filled, first)
        scan = _Appending(advance, module.initial_slots)
        result: Any = _append_scan(scan, variables, keys, state, memory, written, time, steps)
        state, memory, (outputs, mutated) = result
        carry = (state, memory, count, time + length)
    else:

        def body(fixed, carry, inputs):
            (variables, keys, *shared), (time, step) = fixed, inputs
            (carry, output), mutated = call(variables, keys, time, carry, step, *shared)
            return carry, (output, mutated, carry if regularised else ())

        fixed = (variables, keys, *shared)
        carry, (outputs, mutated, carries) = _counted_scan(body, fixed, carry, steps)
        if regularised:
            cell.sow("losses", "sequence", cell.sequence_loss(carries, steps.valid))

    for collection, tree in mutated.items():
        for name, value in tree.items():
            cell.put_variable(collection, name, value)
    return carry, outputs


def _counted_scan(body: Callable, fixed: PyTree, carry: PyTree, steps: Step) -> tuple[PyTree, PyTree]:
    """The scan of `body(fixed, carry, (time, step))` up to the last step at which a row is valid. Its backward pass
    forms the gradients of products with `fixed` after each chunk. On other devices than a CPU it ends with a chunk."""
    length, whole = steps.valid.shape[0], platform() != "cpu"
    count, size = _chunk_shape(length)

    def padded(fixed: PyTree, carry: PyTree, inputs: tuple[jax.Array, Step]) -> tuple[PyTree, PyTree]:
        new, outputs = body(fixed, carry, inputs)
        return _unless_padded(length, inputs[1], new, carry), outputs

    fixed, carry, steps = varying_like((fixed, carry, steps))
    step, example = padded if whole else body, (jnp.array(0), jax.tree.map(lambda x: x[0], steps))
    step, fixed = closed(step, fixed, carry, example)
    products = SharedProducts(step, fixed, carry, example)
    total = count * size if whole else length
    xs = jnp.arange(total), _extended(steps, total)
    carry, outputs = counted_scan(products, size, whole=whole)(fixed, carry, xs, last_valid(steps.valid))
    return carry, jax.tree.map(lambda x: x[:length], outputs)


def _checked_return(cell: nn.Module, carry: PyTree, returned: Any) -> tuple[PyTree, PyTree]:
    """`(carry, output)` of a cell's step. ValueError if it is something else, or if the carry has changed its form."""
    name = type(cell).__name__
    if not (isinstance(returned, tuple) and len(returned) == 2):
        one = "an array" if isinstance(returned, jax.Array) else f"a {type(returned).__name__}"
        what = f"{len(returned)} values" if isinstance(returned, tuple) else one
        raise ValueError(f"a step of {name} returns {what}; a cell returns (carry, output)")

    def form(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: f"{getattr(x, 'dtype', type(x).__name__)}{list(jnp.shape(x))}", tree)

    before, after = form(carry), form(returned[0])
    if before != after:
        raise ValueError(f"the carry of {name} starts as {before} and is {after} after a step; it must stay the same")
    return returned


def where_valid(valid: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` in the rows that are valid, bool[B], and `old` in the others; leaves [B, ...].

    A cell whose final carry is used needs this to preserve the state of rows that ended early.
    """
    return jax.tree.map(lambda n, o: jnp.where(valid.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)


@jax.custom_batching.custom_vmap
def any_valid(valid: jax.Array) -> jax.Array:
    """Whether any entry is True, also over mapped axes: under `vmap` over seeds the result is one scalar.

    A `lax.cond` on it therefore computes only one branch; with a mapped predicate it would compute both.
    """
    return jnp.any(valid)


@any_valid.def_vmap
def _any_valid_batched(axis_size: int, in_batched: list[bool], valid: jax.Array) -> tuple[jax.Array, bool]:
    return any_valid(valid), False


@jax.custom_batching.custom_vmap
def last_valid(valid: jax.Array) -> jax.Array:
    """The number of steps up to the last one at which a row is valid, bool[T, B], also over mapped axes."""
    steps = 1 + jnp.arange(valid.shape[0])
    return jnp.max(jnp.where(jnp.any(valid, axis=1), steps, 0), initial=0)


@last_valid.def_vmap
def _last_valid_batched(axis_size: int, in_batched: list[bool], valid: jax.Array) -> tuple[jax.Array, bool]:
    if in_batched[0]:
        valid = jnp.moveaxis(valid, 0, 1).reshape(valid.shape[1], -1)
    return last_valid(valid), False


def _chunk_shape(length: int) -> tuple[int, int]:
    """(number, size) of the chunks for `length` steps with the least padding."""
    count = -(-length // CHUNK)
    return count, -(-length // count)


def _chunk_times(start: jax.Array | int, length: int) -> jax.Array:
    """The times of all steps, [chunks, size]. They continue through the padding, so no slot is written twice."""
    count, size = _chunk_shape(length)
    return start + jnp.arange(count * size).reshape(count, size)


def _unless_padded(length: int, step: Step, new: PyTree, old: PyTree) -> PyTree:
    """`new`, or `old` at padding steps of the last chunk, so that the final carry is that of the last real step."""
    count, size = _chunk_shape(length)
    if count * size == length:
        return new
    real = jnp.any(step.valid)
    return jax.tree.map(lambda new, old: jnp.where(real, new, old), new, old)


def _chunks(tree: PyTree, length: int) -> PyTree:
    """[T, ...] -> [chunks, size, ...], padded with zeros (not valid) at the end."""
    count, size = _chunk_shape(length)
    return jax.tree.map(lambda x: x.reshape(count, size, *x.shape[1:]), _extended(tree, count * size))


def _extended(tree: PyTree, length: int) -> PyTree:
    """[T, ...] -> [length, ...], padded with zeros (not valid) at the end."""
    return jax.tree.map(lambda x: jnp.pad(x, [(0, length - x.shape[0])] + [(0, 0)] * (x.ndim - 1)), tree)


def _unchunk(tree: PyTree, length: int) -> PyTree:
    """The inverse of `_chunks`."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])[:length], tree)


def _scan_chunks(
    run: Callable, carry: PyTree, inputs: PyTree, valid: jax.Array, *, reverse: bool = False
) -> tuple[PyTree, PyTree]:
    """`run(carry, xs) -> (carry, ys)` on one chunk after another. A chunk without a valid step leaves the carry
    unchanged, and its outputs are zeros."""

    def skip(carry, xs):
        zeros = jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(run, carry, xs)[1])
        return carry, varying_like(zeros, carry, xs)

    def chunk(carry, xs):
        xs, valid = xs
        return jax.lax.cond(any_valid(valid), run, skip, carry, xs)

    return jax.lax.scan(chunk, varying_like(carry, inputs, valid), (inputs, valid), reverse=reverse)


def recomputed_scan(body: Callable, carry: PyTree, xs: PyTree, valid: jax.Array) -> tuple[PyTree, PyTree]:
    """`lax.scan` of `body(carry, x)` over time-major `xs` [T, ...] that stores one carry per chunk of `CHUNK` steps.

    The backward pass recomputes the steps of a chunk from its carry. It stores O(T / CHUNK + CHUNK) carries instead of
    O(T), at the cost of another forward pass. `valid` bool[T, B]: chunks without a valid step are skipped, and their
    outputs are zeros; the last chunk is padded with steps that are not valid. `body` must not change the carry of a row
    that is not valid. It is a pure function: it may close over arrays, but must not call Linen modules.
    """
    length = valid.shape[0]
    carry, xs, valid = varying_like((carry, xs, valid))
    first = jax.tree.map(lambda x: x[0], xs)
    step, fixed = closed(lambda _, carry, x: body(carry, x), (), carry, first)
    xs, valid = _chunks((xs, valid), length)
    scan = shared_scan(step, fixed, carry, first)
    run = jax.checkpoint(functools.partial(scan, fixed))
    carry, outputs = _scan_chunks(run, carry, xs, valid)
    return carry, _unchunk(outputs, length)


# The scan of an append-only memory ------------------------------------------------------------------------------------


class _Appending(NamedTuple):
    """The static arguments of `_append_scan`: a pure form of `AppendOnlyCell.advance` and its constant."""

    advance: Callable
    initial_slots: int


def _filled(cell: Any, memory: PyTree, written: jax.Array) -> jax.Array:
    """bool[B, slots]: the slots that hold an entry."""
    return jnp.arange(jax.tree.leaves(memory)[0].shape[-1]) < cell.initial_slots + written[:, None]


def _append(memory: PyTree, entry: PyTree, slot: jax.Array) -> PyTree:
    """Writes `entry` [B, ...] to one slot of all rows; a slot past the end changes nothing."""

    def put(column, new):
        at = jnp.minimum(slot, column.shape[-1] - 1)
        old = jax.lax.dynamic_index_in_dim(column, at, axis=-1, keepdims=False)
        new = jnp.where(slot < column.shape[-1], new.astype(column.dtype), old)
        return jax.lax.dynamic_update_index_in_dim(column, new, at, axis=-1)

    return jax.tree.map(put, memory, entry)


def _append_scan(scan: _Appending, *arguments: PyTree):
    """`(state, memory, outputs)` of an append-only cell run over `steps`."""
    backward = functools.partial(_append_scan_backward, scan)
    return with_gradient(functools.partial(_append_scan_forward, scan), backward)(*varying_like(arguments))


def _append_scan_forward(scan: _Appending, variables, keys, state, memory, written, time, steps):
    length = steps.valid.shape[0]
    total = written + jnp.sum(steps.valid & ~steps.decoding, axis=0)

    def body(carry, inputs):
        state, memory, entry, slot = carry
        now, step = inputs
        # The entry of the step before: XLA updates an array in place if it is read only afterwards, else it copies it.
        memory = _append(memory, entry, slot)
        # A row writes at every step until it stops, so after `now` steps it has written min(now, total) entries.
        filled = _filled(scan, memory, jnp.minimum(now, total))
        after, entry, output = scan.advance(variables, keys, now, state, memory, filled, step)
        return (after, memory, entry, scan.initial_slots + now), (output, state)

    times, chunked = _chunk_times(time, length), _chunks(steps, length)
    run = functools.partial(jax.lax.scan, body)
    entry, slot = jax.tree.map(lambda column: column[..., 0], memory), jnp.zeros_like(times[0, 0])  # changes nothing
    start = (state, memory, entry, slot)
    (final, memory, entry, slot), (outputs, states) = _scan_chunks(run, start, (times, chunked), chunked.valid)
    memory = _append(memory, entry, slot)
    residuals = (variables, keys, memory, states, time, times, chunked, total)
    return (final, memory, _unchunk(outputs, length)), residuals


def _append_scan_backward(scan: _Appending, residuals, cotangents):
    variables, keys, memory, states, time, times, chunked, total = residuals
    d_state, d_memory, d_outputs = cotangents
    length = jax.tree.leaves(d_outputs)[0].shape[0]

    def again(variables, state, memory, inputs, keys, now, filled, step):
        return scan.advance(variables, keys, now, state, memory, filled, step._replace(inputs=inputs))

    def recalled(inputs):
        """The arguments of `again`, after the variables, at a step."""
        now, step, state, _ = inputs
        return state, memory, step.inputs, keys, now, _filled(scan, memory, jnp.minimum(now, total)), step

    inputs = (times, chunked, states, _chunks(d_outputs, length))
    products = SharedProducts(again, variables, *recalled(jax.tree.map(lambda x: x[0, 0], inputs)))

    def of_entry(d_memory, time):
        """The gradient of the entry of a step, zero past the end, where nothing was written."""
        return jax.tree.map(functools.partial(_slot_or_zero, slot=scan.initial_slots + time), d_memory)

    def body(carry, inputs):
        d_leaves, d_state, d_memory, d_entry = carry
        state, memory, read, *fixed = recalled(inputs)

        def once(leaves, probes, state, memory, read):
            return products.run(leaves, probes, variables, state, memory, read, *fixed)

        leaves = products.plain_leaves(variables)
        _, pull, factors = jax.vjp(once, leaves, products.probes(), state, memory, read, has_aux=True)
        more_leaves, d_probes, d_state, more_memory, d_read = pull((d_state, d_entry, inputs[-1]))
        added = jax.tree.map(jnp.add, (d_leaves, d_memory), (more_leaves, more_memory))
        # Read after the sum, which is then in place.
        return (added[0], d_state, added[1], of_entry(added[1], inputs[0] - 1)), (d_read, factors, d_probes)

    def run(carry, inputs):
        d_variables, d_state, d_memory = carry
        zeros = jax.tree.map(jnp.zeros_like, products.plain_leaves(variables))
        start = (zeros, d_state, d_memory, of_entry(d_memory, inputs[0][-1]))
        end, (d_read, factors, d_probes) = jax.lax.scan(body, start, inputs, reverse=True)
        d_leaves, d_state, d_memory, _ = end
        more = products.gradient(variables, factors, d_probes, d_leaves)
        return (jax.tree.map(jnp.add, d_variables, more), d_state, d_memory), d_read

    start = (jax.tree.map(jnp.zeros_like, variables), d_state, d_memory)
    (d_variables, d_state, d_memory), d_inputs = _scan_chunks(run, start, inputs, chunked.valid, reverse=True)
    # Entries written inside the scan are not its inputs: only the initial memory has a gradient.
    slots = jnp.arange(jax.tree.leaves(memory)[0].shape[-1])
    d_memory = jax.tree.map(lambda d: jnp.where(slots < scan.initial_slots + time, d, 0), d_memory)
    d_steps = chunked._replace(inputs=_unchunk(d_inputs, length), decoding=None, valid=None)
    return d_variables, None, d_state, d_memory, None, None, d_steps


def _slot_or_zero(d_column: jax.Array, slot: jax.Array) -> jax.Array:
    """One slot; zero past the end."""
    at = jnp.minimum(slot, d_column.shape[-1] - 1)
    return jnp.where(slot < d_column.shape[-1], jax.lax.dynamic_index_in_dim(d_column, at, -1, keepdims=False), 0)
