"""The computation of a training, apart from how it is run, logged and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from lenmem.evaluation.metrics import Apply, ApplyModel
from lenmem.keys import namespaced
from lenmem.training.configuration import TrainableExperiment, Training
from lenmem.training.step import Record, State, device_mesh, initial_state, make_advance, replicated, whole
from lenmem.types import PyTree


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
    optimizer = training.transformation
    mesh = device_mesh(training.device_count(), training.batch_size)
    keys = seed_keys(training, key)
    return Program(
        init=lambda: replicated(initial_state(model, task, optimizer, keys, **training.state_options), mesh),
        advance=make_advance(model, task, optimizer, **training.step_options, mesh=mesh),
        apply=ApplyModel(model),
    )


def lowered(experiment: TrainableExperiment, devices: Sequence[Any]) -> jax.stages.Lowered:
    """`advance` of all seeds, lowered for these devices, which need not be there. Nothing is computed."""
    training, task, model = experiment.training, experiment.task, experiment.bound_model
    optimizer = training.transformation
    mesh = device_mesh(training.device_count(len(devices)), training.batch_size, devices)
    keys = seed_keys(training, jax.random.key(training.seed))
    state = initial_state(model, task, optimizer, keys, abstract=True, **training.state_options)
    advance = make_advance(model, task, optimizer, **training.step_options, mesh=mesh)
    return advance.lower(placed(state, whole(mesh) or SingleDeviceSharding(devices[0])), training.log_every)


def placed(shapes: PyTree, sharding: Sharding) -> PyTree:
    """The same shapes, of arrays with this sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


def seed_keys(training: Training, key: jax.Array) -> jax.Array:
    """The key of each seed, [S]."""
    return jax.vmap(lambda seed: namespaced(key, seed))(np.arange(training.seeds))
