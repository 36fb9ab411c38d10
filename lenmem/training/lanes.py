"""Several experiments that differ only in numbers, trained as one program: a lane for each combination and seed.

`numbers` is {path of a field: its value in each of C combinations}, for fields below `model` and `training.optimizer`.
Lane c S + i is seed i of combination c. Inside the program a number is selected by the traced index of the combination.
It is weakly typed like a Python number, so it never determines the dtype of a result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from lenmem.errors import choices, first_line
from lenmem.evaluation.metrics import ApplyModel
from lenmem.fields import settable
from lenmem.seeds import SEEDS
from lenmem.training.program import Program, seed_keys
from lenmem.training.step import (
    Record,
    State,
    device_mesh,
    initial_members,
    make_advance,
    pretrained,
    replicated,
    run_once,
    whole,
)
from lenmem.types import PyTree

Numbers = Mapping[str, Sequence[float]]
TRACEABLE = ("model.", "training.optimizer.")
"""Prefixes of paths whose numbers can be traced; other numbers determine shapes, or are read on the host."""


def owner_of(config: Any, path: str) -> tuple[Any, str]:
    """The dataclass that contains the last field of a path such as `training.optimizer.learning_rate`, and that field.

    Raises ValueError, with the nearest name, if there is no such field.
    """
    owner, value = config, config
    for name in path.split("."):
        owner, fields = value, settable(value)
        if isinstance(owner, optax.GradientTransformation):
            raise ValueError(
                f"there is no field {path!r}: an optax.GradientTransformation keeps its numbers inside of functions; "
                "sweep over the fields of lenmem.Optimizer, or train an experiment for each"
            )
        if name not in fields:
            kind = type(owner).__name__
            raise ValueError(f"there is no field {path!r}: {kind} has no {name!r}.{choices(name, fields)}")
        value = getattr(owner, name)
    return owner, path.rpartition(".")[2]


def replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """`config` (nested dataclasses and Linen modules) with other values for the fields at these paths."""
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        first, _, rest = path.partition(".")
        if rest:
            below.setdefault(first, {})[rest] = value
        else:
            changes[first] = value
    changes |= {name: replaced(changes.get(name, getattr(config, name)), inner) for name, inner in below.items()}
    return config.clone(**changes) if isinstance(config, nn.Module) else dataclasses.replace(config, **changes)


def at_lane(config: Any, numbers: Numbers, combination: jax.Array) -> Any:
    """`config` with the numbers of a combination, whose index may be traced."""

    def chosen(values: Sequence[float]) -> Any:
        # `where` of two Python numbers is weakly typed, as Python numbers are.
        return functools.reduce(lambda x, c: jnp.where(combination == c, values[c], x), range(len(values)), values[0])

    return replaced(config, {path: chosen(values) for path, values in numbers.items()})


def combinations(numbers: Numbers) -> int:
    """C."""
    return len(next(iter(numbers.values())))


def initial_lanes(experiment: Any, numbers: Numbers, keys: jax.Array, *, abstract: bool = False) -> State:
    """An initial state of all lanes for the seeds with these typed keys, [S]; `abstract`: only its shapes."""

    def start(combination: jax.Array, keys: jax.Array, given: PyTree) -> PyTree:
        lane = at_lane(experiment, numbers, combination)
        training = lane.training
        rule, kept = training.transformation, training.state_options
        return initial_members(lane.bound_model, lane.task, rule, keys, given, **kept)

    def members(keys: jax.Array, given: PyTree) -> PyTree:
        lanes = jax.vmap(start, in_axes=(0, None, None))(jnp.arange(combinations(numbers)), keys, given)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), lanes)

    given = {} if abstract else pretrained(experiment.bound_model)
    return State(jnp.zeros((), jnp.int32), run_once(members, keys, given, abstract=abstract))


def advance_lanes(experiment: Any, numbers: Numbers, *, mesh: Mesh | None = None) -> Any:
    """`make_advance` for all lanes. All combinations see the same batches, drawn with the seed's key."""
    count_of = combinations(numbers)

    def advance(state: State, count: int) -> tuple[State, Record]:
        def of_combination(combination: jax.Array, members: PyTree) -> tuple[PyTree, Record]:
            lane = at_lane(experiment, numbers, combination)
            rule, options = lane.training.transformation, lane.training.step_options
            step = make_advance(lane.bound_model, lane.task, rule, **options, axes=("lanes",), mesh=mesh)
            after, record = step(State(state.step, members), count)
            return after.members, record

        members = jax.tree.map(lambda x: x.reshape(count_of, -1, *x.shape[1:]), state.members)
        mapped = jax.vmap(of_combination, out_axes=(0, 1), axis_name="lanes")
        members, record = mapped(jnp.arange(count_of), members)
        members = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), members)
        return State(state.step + count, members), jax.tree.map(lambda x: x.reshape(count, -1), record)

    return jax.jit(advance, static_argnums=1, donate_argnums=0, out_shardings=whole(mesh))


def untraceable(experiment: Any, *paths: str) -> str | None:
    """None if the numbers at `paths` can be traced; else the reason, the first line of JAX's error."""
    numbers = {}
    for path in paths:
        owner, name = owner_of(experiment, path)
        numbers[path] = (getattr(owner, name),) * 2
    try:
        keys = jax.random.split(jax.random.key(0), experiment.training.seeds)
        state = initial_lanes(experiment, numbers, keys, abstract=True)
        advance_lanes(experiment, numbers).lower(state, 1)
    except Exception as error:  # models may fail in any way on a traced number
        return first_line(error)
    return None


@dataclasses.dataclass(frozen=True)
class ApplyLane:
    """The `Apply` of all lanes, each with the numbers of its combination."""

    model: nn.Module
    numbers: tuple[tuple[str, tuple[float, ...]], ...]
    """Fields of the model, each with its value in every combination."""
    seeds: int
    """Number of lanes per combination."""

    def __call__(self, params: PyTree, *batch: Any) -> Any:
        """The model's outputs, with the numbers of the lane."""
        combination = jax.lax.axis_index(SEEDS) // self.seeds
        return ApplyModel(at_lane(self.model, dict(self.numbers), combination))(params, *batch)


def lanes_program(experiment: Any, numbers: Numbers, key: jax.Array) -> Program:
    """The program of all lanes. If only the training differs, they share a network."""
    training, model = experiment.training, experiment.bound_model
    mesh = device_mesh(training.device_count(), training.batch_size)
    of_model = {path.removeprefix("model."): tuple(v) for path, v in numbers.items() if path.startswith("model.")}
    return Program(
        init=lambda: replicated(initial_lanes(experiment, numbers, seed_keys(training, key)), mesh),
        advance=advance_lanes(experiment, numbers, mesh=mesh),
        apply=ApplyLane(model, tuple(of_model.items()), training.seeds) if of_model else ApplyModel(model),
    )
