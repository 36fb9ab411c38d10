"""The computation of a training, apart from how it is run, logged and saved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from lenmem.evaluation.metrics import Apply, ApplyModel
from lenmem.keys import namespaced
from lenmem.tasks.base import Task
from lenmem.training.configuration import TrainableExperiment, Training
from lenmem.training.step import Record, State, device_mesh, initial_state, make_advance, replicated


class Program(NamedTuple):
    """The input of the training loop: S networks that are trained at once."""

    init: Callable[[], State]
    """Makes an initial state, on the devices where `advance` expects it."""
    advance: Callable[[State, int], tuple[State, Record]]
    """Runs this many steps. It donates the buffers of the state."""
    apply: Apply
    """The network of one seed."""


def seeds_program(experiment: TrainableExperiment, key: jax.Array) -> Program:
    """The program of all seeds of an experiment."""
    training, task, model = experiment.training, experiment.task, experiment.bound_model
    advance, mesh = advance_on(experiment)
    keys = seed_keys(training, key)
    initial = functools.partial(initial_state, model, task, training.transformation, keys, **training.state_options)
    return Program(init=lambda: replicated(initial(), mesh), advance=advance, apply=ApplyModel(model))


def advance_on(experiment: TrainableExperiment, devices: Sequence[Any] | None = None) -> tuple[Any, Mesh | None]:
    """`advance` of all seeds, jitted, and the mesh over which it spreads them. `devices`: those of a topology, which
    need not be there; None: those of this machine. On this machine, an experiment that is trained again, from another
    key or from where it stopped, is not compiled again."""
    training = experiment.training
    count = training.device_count(None if devices is None else len(devices))
    mesh = device_mesh(count, training.batch_size, devices)
    arguments = (experiment.bound_model, experiment.task, training, mesh)
    try:
        hash(arguments)
    except TypeError:  # A field of a user's class is a list, say.
        return _advance(*arguments), mesh
    return (_advance if devices is not None else _known_advance)(*arguments), mesh


def _advance(model: nn.Module, task: Task, training: Training, mesh: Mesh | None) -> Any:
    return make_advance(model, task, training.transformation, **training.step_options, mesh=mesh)


# Not for the devices of a topology: what is traced depends on their platform, which is not among the arguments.
_known_advance = functools.lru_cache(maxsize=4)(_advance)


def seed_keys(training: Training, key: jax.Array) -> jax.Array:
    """The key of each seed, [S]."""
    return jax.vmap(lambda seed: namespaced(key, seed))(np.arange(training.seeds))
