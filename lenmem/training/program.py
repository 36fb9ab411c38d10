"""The computation of a training, independent of how it is run, logged and saved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lenmem.evaluation.metrics import Apply, ApplyModel
from lenmem.keys import namespaced
from lenmem.reuse import reused
from lenmem.tasks.base import Task
from lenmem.training.configuration import TrainableExperiment, Training
from lenmem.training.optimizer import built
from lenmem.training.step import (
    Record,
    State,
    device_mesh,
    for_once,
    initial_members,
    make_advance,
    pretrained,
    replicated,
)

Options = tuple[tuple[str, Any], ...]


class Program(NamedTuple):
    """The input of the training loop: S networks that are trained at once."""

    init: Callable[[], State]
    """Creates an initial state, on the devices where `advance` expects it."""
    advance: Callable[[State, int], tuple[State, Record]]
    """Runs a number of steps. It donates the buffers of the state."""
    apply: Apply
    """The network of one seed."""


def seeds_program(experiment: TrainableExperiment, key: jax.Array) -> Program:
    """The program of all seeds of an experiment."""
    training, task, model = experiment.training, experiment.task, experiment.bound_model
    advance, mesh = advance_on(experiment)
    members = _known_initial(model, task, _rule_of(training), tuple(training.state_options.items()))
    keys = seed_keys(training, key)

    def init() -> State:
        return replicated(State(jnp.zeros((), jnp.int32), members(keys, pretrained(model))), mesh)

    return Program(init=init, advance=advance, apply=ApplyModel(model))


def advance_on(experiment: TrainableExperiment, devices: Sequence[Any] | None = None) -> tuple[Any, Mesh | None]:
    """`advance` of all seeds, jitted, and the mesh over which it distributes them. `devices`: the devices of a
    topology, which need not be present; None: those of this machine. On this machine, an experiment that is trained
    again, with another key or from where it stopped, is not compiled again unless the user's own code has changed."""
    training = experiment.training
    count = training.device_count(None if devices is None else len(devices))
    mesh = device_mesh(count, training.batch_size, devices)
    options = tuple(training.step_options.items())
    arguments = (experiment.bound_model, experiment.task, _rule_of(training), options, mesh)
    # For the devices of a topology, the traced program depends on their platform, which is not one of the arguments.
    return (_known_advance if devices is None else _advance)(*arguments), mesh


# The arguments contain only those settings of a training that affect the program. Changing others, such as the interval
# of logging, causes no new compilation.


def _rule_of(training: Training) -> tuple[Any, int]:
    """The data that determines `training.transformation`, which is a new object each time."""
    return training.optimizer, training.steps


def _advance(model: nn.Module, task: Task, rule: tuple[Any, int], options: Options, mesh: Mesh | None) -> Any:
    return make_advance(model, task, built(*rule), **dict(options), mesh=mesh)


_known_advance = reused(_advance, 4)


def _initial(model: nn.Module, task: Task, rule: tuple[Any, int], options: Options) -> Any:
    """(keys, what is `pretrained`) -> `Member`, jitted."""
    return for_once(functools.partial(initial_members, model, task, built(*rule), **dict(options)))


_known_initial = reused(_initial, 4)


def seed_keys(training: Training, key: jax.Array) -> jax.Array:
    """The key of each seed, [S]."""
    return jax.vmap(lambda seed: namespaced(key, seed))(np.arange(training.seeds))
