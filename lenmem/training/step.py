"""The compiled part of training: many optimiser steps of several seeds in one jitted call.

Batches are drawn on the device from the step number, so no data is fed in and a resumed run sees the same data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from lenmem.keys import bits, namespaced, typed
from lenmem.placement import spread_over
from lenmem.seeds import SEEDS, over_seeds
from lenmem.tasks.base import Task, growing_source
from lenmem.training.environment import require_memory
from lenmem.types import SOWN, STREAMS, Batch, PyTree, at_least_float32, check_batch, check_outputs


class Member(NamedTuple):
    """The state of one training seed; in a `State` every leaf has a leading axis S."""

    params: PyTree
    optimizer_state: PyTree
    alive: jax.Array
    """bool: all losses and gradients so far were finite. A diverged seed stays at its last good parameters."""
    key: jax.Array
    """The random key of initial parameters, training data and noise."""
    best: PyTree
    """Parameters with the best selection score so far; an empty tuple if selection is `last`."""
    best_score: jax.Array
    """float: the best selection score, -inf before the first."""
    recent: PyTree
    """float[window]: the latest validations, -inf before there are any; an empty tuple for a window of 1."""


class State(NamedTuple):
    """The contents of a checkpoint."""

    step: jax.Array
    """int: number of optimiser steps done, the same for all seeds."""
    members: Member


class Record(NamedTuple):
    """The logged values of one step, per seed."""

    loss: jax.Array
    grad_norm: jax.Array
    alive: jax.Array


def training_outputs(
    model: nn.Module, task: Task, params: PyTree, batch: Batch, rngs: dict[str, jax.Array]
) -> tuple[jax.Array, PyTree]:
    """(outputs in training mode, in float32 at least; everything the model sowed into `losses`)."""
    check_batch(task.spec, batch.inputs, batch.input_mask, batch.target_mask, batch.targets)
    outputs, mutated = model.apply(
        {"params": params},
        batch.inputs,
        batch.input_mask,
        batch.target_mask,
        targets=batch.targets,
        train=True,
        rngs=rngs,
        mutable=["losses"],
    )
    check_outputs(task.spec, outputs, batch.target_mask)
    return at_least_float32(outputs), mutated.get("losses", {})


def total_loss(task: Task, outputs: jax.Array, sown: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(task loss plus everything that was sown, task loss), from `training_outputs`."""
    loss = task.loss(outputs, batch)
    return loss + sum((jnp.sum(leaf) for leaf in jax.tree.leaves(sown)), jnp.zeros(())), loss


def objective(
    model: nn.Module, task: Task, params: PyTree, batch: Batch, rngs: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """(task loss plus everything the model sowed into `losses`, task loss)."""
    return total_loss(task, *training_outputs(model, task, params, batch, rngs), batch)


def initial_state(
    model: nn.Module,
    task: Task,
    optimizer: optax.GradientTransformation,
    keys: jax.Array,
    *,
    abstract: bool = False,
    **state_options: Any,
) -> State:
    """An initial state for the seeds with these typed keys, [S]; `abstract`: only its shapes. `state_options`: see
    `initial_members`."""
    members = functools.partial(initial_members, model, task, optimizer, **state_options)
    given = {} if abstract else pretrained(model)
    return State(jnp.zeros((), jnp.int32), run_once(members, keys, given, abstract=abstract))


def pretrained(model: nn.Module) -> PyTree:
    """The parameters, or a part of them, that the model's method `pretrained` returns, if there is one.

    Read on the host, and only at the start of a training: a trained network does not need them. Raises the ValueError
    of that method.
    """
    read = getattr(model, "pretrained", None)
    return {} if read is None else read()


def initial_members(
    model: nn.Module,
    task: Task,
    optimizer: optax.GradientTransformation,
    keys: jax.Array,
    given: PyTree = MappingProxyType({}),
    *,
    keep_best: bool,
    window: int = 1,
) -> Member:
    """Initial members for the seeds with these typed keys, [S], to be traced. `given`: the `pretrained` parameters.

    With `keep_best` they have room for the best parameters, selected by a mean score over `window` validations.
    """

    def member(key: jax.Array) -> Member:
        params = replaced_in(initial_parameters(model, task, key), given)
        return Member(
            params,
            jax.tree.map(jnp.asarray, optimizer.init(params)),
            jnp.ones((), bool),
            key,
            params if keep_best else (),
            jnp.full((), -jnp.inf, jnp.float32),
            jnp.full((window,), -jnp.inf, jnp.float32) if keep_best and window > 1 else (),
        )

    return jax.vmap(member)(keys)


def initial_parameters(model: nn.Module, task: Task, key: jax.Array) -> PyTree:
    """Initial parameters for the seed with this typed key, to be traced.

    Raises ValueError for a model without parameters, and for one with other variables (such as running means), which
    training would not keep.
    """
    shortest = task.train_lengths[0]
    example = task.sample(jax.random.key(0), shortest, task.train_lengths[1])
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), example)
    check_batch(task.spec, batch.inputs, batch.input_mask, batch.target_mask, batch.targets)
    rngs = {name: namespaced(key, name) for name in ("params", *STREAMS)}
    variables = model.init(rngs, batch.inputs, batch.input_mask, batch.target_mask)
    name = type(model).__name__
    if "params" not in variables:
        raise ValueError(f"{name} has no parameters, so there is nothing to train")
    if others := set(variables) - {"params", *SOWN}:
        raise ValueError(f"{name} has variables in {', '.join(sorted(others))}; only `params` can be trained and saved")
    return variables["params"]


def replaced_in(params: PyTree, given: PyTree, at: str = "") -> PyTree:
    """Nested dicts of parameters, with some of them replaced by `given`. ValueError for a parameter that does not exist
    or has another shape."""
    if not hasattr(given, "items"):
        if np.shape(params) != np.shape(given):
            raise ValueError(
                f"the given parameter {at.rstrip('/')} has shape {np.shape(given)}; the model needs {np.shape(params)}"
            )
        return jnp.asarray(given, params.dtype)
    unknown = [name for name in given if name not in params]
    if unknown:
        raise ValueError(f"the model has no parameter {at}{unknown[0]}; it has {', '.join(params)}")
    return params | {name: replaced_in(params[name], value, f"{at}{name}/") for name, value in given.items()}


def run_once(function: Callable[..., PyTree], *arguments: Any, abstract: bool = False) -> PyTree:
    """`function(*arguments)`, compiled; `abstract`: only the shapes of its result."""
    return jax.eval_shape(function, *arguments) if abstract else for_once(function)(*arguments)


def for_once(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`jax.jit` for functions that run once: on a CPU, optimised compilation takes longer than running unoptimised
    code, and its result must fit the memory (`require_memory`)."""
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    compiled = jax.jit(function, compiler_options=options)

    def call(*arguments: Any) -> PyTree:
        require_memory(compiled.eval_shape(*arguments))
        return compiled(*arguments)

    return call


def data_key(key: jax.Array) -> jax.Array:
    """The key of a member's training data. Derived from an integer, as for all existing records."""
    return jax.random.key(jax.random.bits(namespaced(key, "data"), dtype=jnp.uint32))


def make_advance(
    model: nn.Module,
    task: Task,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    *,
    at_once: int | None = None,
    widths: int = 1,
    growing: int = 0,
    axes: tuple[str, ...] = (),
    mesh: Mesh | None = None,
) -> Any:
    """`advance(state, count) -> (state, Record [count, S])`: `count` (static) steps, jitted, with `state` donated.

    All seeds take each step together, or only `at_once` of them (a divisor of S): then that many seeds take all steps
    before the next ones. With a mesh, seeds and batches are distributed over its axes `seed` and `data`; XLA inserts
    the sums over the batch. State and record are replicated on every device before and after. The initial state must be
    `replicated` like the later ones, or a second program is compiled for it.

    Inputs and answers are cut to the narrowest of `narrower_shapes` that fits the batches of all seeds trained
    together. Only padding is cut off, but noise is drawn for the cut shapes, so it differs. In the first `growing`
    steps the longest length grows (`growing_source`). `axes` are the mapped axes of `advance` itself.
    """
    gradient = jax.value_and_grad(objective, argnums=2, has_aux=True)
    source = growing_source(task.source("train", batch_size), growing)
    rule = optax.with_extra_args_support(optimizer)  # some rules need the value too, or do a line search

    def gradient_at(shape: tuple[int, int], params: PyTree, batch: Batch, rngs: dict[str, jax.Array]) -> Any:
        inputs = {name: getattr(batch, name)[:, : shape[0]] for name in ("inputs", "input_mask")}
        answers = {name: getattr(batch, name)[:, : shape[1]] for name in ("targets", "target_mask", "score_mask")}
        return gradient(model, task, params, batch._replace(**inputs, **answers), rngs)

    def narrowest_gradient(params: PyTree, batch: Batch, rngs: dict[str, jax.Array]) -> Any:
        shapes = narrower_shapes(task, batch, widths)
        # One shape for all seeds: with several, `vmap` would compute each branch.
        needed = [jnp.max(jnp.sum(mask, axis=1)) for mask in (batch.input_mask, batch.target_mask)]
        needed = jax.lax.pmax(jnp.stack(needed), (SEEDS, *axes))
        fits = jnp.all(needed <= jnp.asarray(shapes), axis=1)
        branches = [functools.partial(gradient_at, shape) for shape in shapes]
        return jax.lax.switch(jnp.argmax(fits), branches, params, batch, rngs)

    def update(member: Member, step: jax.Array) -> tuple[Member, Record]:
        batch = _spread(source.batch(data_key(member.key), step), mesh, "data")
        noise = namespaced(member.key, "noise", step)
        rngs = {name: namespaced(noise, name) for name in STREAMS}
        with spread_over(mesh, "data"):
            (total, loss), grads = narrowest_gradient(member.params, batch, rngs)

        def value_of(params: PyTree) -> jax.Array:
            with spread_over(mesh, "data"):
                return objective(model, task, params, batch, rngs)[0]

        changes, optimizer_state = rule.update(
            grads, member.optimizer_state, member.params, value=total, grad=grads, value_fn=value_of
        )
        params = optax.apply_updates(member.params, changes)
        grad_norm = optax.tree.norm(grads)
        # The last is for rules that make a finite gradient infinite.
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & jnp.isfinite(optax.tree.norm(changes))
        alive = member.alive & finite
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(alive, new, old),
            (params, optimizer_state),
            (member.params, member.optimizer_state),
        )
        member = member._replace(params=params, optimizer_state=optimizer_state, alive=alive)
        return member, Record(loss, grad_norm, alive)

    # Constraints inside it also apply to `seed`, along the mapped axis.
    spread = None if mesh is None else "seed"
    updates = over_seeds(update, spread=spread)

    def all_seeds(state: State, count: int) -> tuple[State, Record]:
        def body(state: State, _: None) -> tuple[State, Record]:
            members, record = updates(state.members, state.step)
            return State(state.step + 1, _spread(members, mesh, "seed")), record

        state = state._replace(members=_spread(state.members, mesh, "seed"))
        return jax.lax.scan(body, state, None, length=count)

    def advance(state: State, count: int) -> tuple[State, Record]:
        if at_once is None:
            return all_seeds(state, count)
        groups = jax.tree.map(lambda x: x.reshape(-1, at_once, *x.shape[1:]), state.members)
        states, record = jax.lax.map(lambda members: all_seeds(State(state.step, members), count), groups)
        members = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states.members)
        record = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(count, -1), record)
        return State(state.step + count, members), record

    return jax.jit(advance, static_argnums=1, donate_argnums=0, out_shardings=whole(mesh))


def narrower_shapes(task: Task, batch: Batch, widths: int) -> list[tuple[int, int]]:
    """(N, M): `widths` evenly spaced widths of the inputs, in ascending order, up to that of the batch, with the answer
    slots that the task has for inputs of each width."""
    inputs, answers = batch.inputs.shape[1], batch.target_mask.shape[1]
    sizes = sorted({-(-inputs * (i + 1) // widths) for i in range(widths)})
    if task.spec.alignment == "aligned":
        return [(size, size) for size in sizes]

    def slots(size: int) -> int:
        """The most answer slots of a capacity at which inputs have at most this size."""
        shapes = map(task.shapes, range(1, size + 1))
        return min(answers, max((m for n, m in shapes if n <= size), default=answers))

    return [*((size, slots(size)) for size in sizes[:-1]), (inputs, answers)]


def keep_best(state: State, score: jax.Array) -> State:
    """Stores the parameters of every alive seed whose selection `score` [S] is its best so far; ties go to the latest.

    With a window the score is the mean of the latest ones, once there are that many.
    """
    members = state.members
    score, recent = jnp.asarray(score, jnp.float32), members.recent
    if not isinstance(recent, tuple):
        recent = jnp.concatenate([recent[:, 1:], score[:, None]], axis=1)
        score = jnp.mean(recent, axis=1)
    better = (score >= members.best_score) & members.alive

    return state._replace(
        members=members._replace(
            best=where_seeds(better, members.params, members.best),
            best_score=jnp.where(better, score, members.best_score),
            recent=recent,
        )
    )


def selected(params: PyTree, best: PyTree, best_score: ArrayLike | None) -> PyTree:
    """The selected parameters, [S, ...] on the host; for a seed without a score, the last parameters."""
    if best_score is not None and best != ():
        params = where_seeds(np.isfinite(best_score), best, params)
    return jax.tree.map(np.asarray, params)


def where_seeds(flags: ArrayLike, new: PyTree, old: PyTree) -> PyTree:
    """`new` for the seeds whose flag [S] is set, `old` for the others; leaves [S, ...]."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(jnp.reshape(flags, (-1, *[1] * (a.ndim - 1))), a, b)

    return jax.tree.map(choose, new, old)


def device_mesh(devices: int, batch_size: int, among: Sequence[Any] | None = None) -> Mesh | None:
    """A mesh with the axes `seed` and `data` over `devices` devices, the same number from each process; None for one.

    Batches are distributed as far as they divide evenly, and seeds over the rest: `devices` divides their product.
    `among`: take the first of these, such as the devices of a topology, and not those of this machine.
    """
    if devices == 1:
        return None
    processes, data = jax.process_count(), math.gcd(devices, batch_size)
    if among is None:
        chosen = [jax.local_devices(process_index=i)[: devices // processes] for i in range(processes)]
    else:
        chosen = list(among[:devices])
    return Mesh(np.reshape(chosen, (devices // data, data)), ("seed", "data"), axis_types=(AxisType.Auto,) * 2)


def replicated(state: State, mesh: Mesh | None) -> State:
    """`state` replicated on each device of the mesh, as `advance` takes and returns it."""
    sharding = whole(mesh)
    if sharding is None:
        return state
    if sharding.is_fully_addressable:
        return jax.device_put(state, sharding)
    # Every process has the same state. Copies are needed, since `advance` donates its buffers.
    hosts = jax.tree.map(np.asarray, bits(state))
    shared = jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, sharding, lambda i: x[i].copy()), hosts)
    return typed(shared, state)


def on_one_device(tree: PyTree) -> PyTree:
    """The copy of replicated arrays on the first device of this process.

    XLA cannot distribute a program that contains a kernel, and would compute every other one on each device anew.
    """
    return jax.tree.map(lambda x: x.addressable_data(0) if len(x.sharding.device_set) > 1 else x, tree)


def whole(mesh: Mesh | None) -> NamedSharding | None:
    """The sharding of arrays that are replicated on every device of a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def _spread(tree: PyTree, mesh: Mesh | None, axis: str) -> PyTree:
    """`tree` with its leading axes distributed over an axis of the mesh."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(axis)))
