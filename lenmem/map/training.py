"""Training a cell for a given time, and all cells in processes."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lenmem import models
from lenmem.evaluation.lengths import Evaluation
from lenmem.evaluation.metrics import ApplyModel, TaskMetrics, evaluate
from lenmem.experiment import Experiment
from lenmem.files import json_number, make_directory, write_json
from lenmem.keys import namespaced
from lenmem.map.cells import (
    STEPS_AT_ONCE,
    TOLERANCE,
    Budget,
    Cell,
    curve_lengths,
    fields_of,
    plain_budget,
    settings_of,
    task_of,
)
from lenmem.map.outcomes import check_page, described, read
from lenmem.runs import measure, without_dead
from lenmem.serialize import to_plain
from lenmem.tasks.base import Task
from lenmem.training.environment import describe_environment
from lenmem.training.optimizer import Cosine
from lenmem.training.step import State, initial_parameters, initial_state, make_advance
from lenmem.types import PyTree
from lenmem.workers import LENMEM, Job, run_jobs


def sized(network: str, task: Task, parameters: int) -> tuple[nn.Module, int]:
    """The network whose number of parameters for a task is nearest to the one wanted, and that number.

    ValueError if it is more than a tenth away. Sizes are multiples of twice the number of heads.
    """
    start = models.make(network, task.spec, **fields_of(network))
    unit = 2 * getattr(start, "heads", 1)
    sizes: dict[str, Any] = {"hidden_size": unit, "feedforward_size": 2 * unit}
    # None: there are no feed-forward networks; it stays None.
    sizes = {name: size for name, size in sizes.items() if getattr(start, name, None) is not None}
    if not sizes:
        raise ValueError(f"{network} has no field that sets its size")

    def at(units: int) -> nn.Module:
        return start.clone(**{name: units * size for name, size in sizes.items()})

    @functools.cache
    def count(units: int) -> int:
        shapes = jax.eval_shape(lambda: initial_parameters(at(units), task, jax.random.key(0)))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

    high = 1
    while count(high) < parameters:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < parameters else (low, middle)
    nearest = min((units for units in (low, high) if units), key=lambda units: abs(count(units) - parameters))
    found = count(nearest)
    if abs(found - parameters) > TOLERANCE * parameters:
        raise ValueError(f"{network} can have {found} parameters for this task, not {parameters}")
    return at(nearest), found


class Trainer:
    """Trains networks of an experiment for a given time, each with a learning rate of its own."""

    def __init__(self, experiment: Experiment, batch_size: int) -> None:
        self.model, self.task = experiment.bound_model, experiment.task
        # The rate is in the state, so that it can be set from the elapsed time.
        adam = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam)
        self.advance = make_advance(self.model, self.task, self.optimizer, batch_size)
        self.compiled: dict[int, Callable[[PyTree], tuple[PyTree, PyTree]]] = {}

    def initial(self, keys: jax.Array) -> State:
        """The state before the first step, of seeds with these keys."""
        return initial_state(self.model, self.task, self.optimizer, keys, keep_best=False)

    def fit(self, keys: jax.Array, rates: Sequence[float], seconds: float) -> tuple[PyTree, int]:
        """(parameters [S, ...], NaN for those that diverged; number of steps) after `seconds` of processor time."""
        state = self.initial(keys)
        if len(keys) not in self.compiled:
            self.compiled[len(keys)] = self.advance.lower(state, STEPS_AT_ONCE).compile()
        program, schedule = self.compiled[len(keys)], Cosine(warmup=0.1)

        def rates_at(part: float) -> jax.Array:
            # A schedule counts updates, so the elapsed time is given as updates out of 1000.
            return jnp.asarray(rates, jnp.float32) * schedule(round(1000 * part), 1000)

        rates_at(0.0)  # compiles its operations before the clock starts
        spent, steps = 0.0, 0
        while spent < seconds:
            started = time.process_time()
            rate, members = rates_at(spent / seconds), state.members
            members = members._replace(optimizer_state=optax.tree.set(members.optimizer_state, learning_rate=rate))
            state, _ = jax.block_until_ready(program(state._replace(members=members)))
            steps += STEPS_AT_ONCE
            spent += time.process_time() - started
        return without_dead(state.members.params, np.asarray(state.members.alive)), steps


def run_cell(cell: Cell, budget: Budget, results: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Trains and measures a cell; writes and returns its record. ValueError if the network cannot take the task."""
    task = task_of(cell.task)
    model, parameters = sized(cell.network, task, budget.parameters)
    evaluation = Evaluation(lengths=curve_lengths(task), samples=budget.samples)
    experiment = Experiment(task, model, evaluation=evaluation)
    environment = describe_environment()
    trainer, key = Trainer(experiment, budget.batch_size), jax.random.key(0)
    seeds = jax.vmap(lambda seed: namespaced(key, "seed", seed))(jnp.arange(budget.seeds))
    alike = jnp.repeat(seeds[:1], len(budget.rates), axis=0)
    tried, _ = trainer.fit(alike, budget.rates, len(budget.rates) * budget.search_seconds)
    losses = _losses(experiment, tried, budget)
    rate = budget.rates[int(np.argmin(np.where(np.isnan(losses), np.inf, losses)))]
    say(f"{cell.name}: {parameters} parameters, rate {rate:g}")
    params, steps = trainer.fit(seeds, (rate,) * budget.seeds, budget.seeds * budget.seconds)
    curve = measure(experiment, params, label=cell.network)
    record = {
        "task": cell.task,
        "network": cell.network,
        "budget": plain_budget(budget),
        "cell": settings_of(cell),
        "model": to_plain(model),
        "parameters": parameters,
        "losses": list(map(json_number, losses.tolist())),
        "rate": rate,
        "steps": steps,
        "final_loss": list(map(json_number, _losses(experiment, params, budget).tolist())),
        "curve": curve.to_dict(),
        "environment": environment,
    }
    path = cell.path(results)
    make_directory(path.parent)
    write_json(path, record)
    say(f"{cell.name}: {described(record)}")
    return record


def _losses(experiment: Experiment, params: PyTree, budget: Budget) -> np.ndarray:
    """float[S]: the losses on new examples of the training lengths; NaN for those that diverged."""
    source = experiment.task.source("validation", budget.batch_size)
    metrics = TaskMetrics(experiment.task, loss=True)
    return evaluate(ApplyModel(experiment.bound_model), params, metrics, source, jax.random.key(1), 8)["loss"]


def run_map(
    chosen: Sequence[Cell],
    budget: Budget,
    results: Path,
    *,
    workers: int = 2,
    say: Callable[[str], None] = print,
    command: Sequence[str] = LENMEM,
) -> list[Job]:
    """Trains the cells without a record, each in a process with one thread; returns the jobs that failed.

    The output of a cell goes to a log beside its record. Without `workers` the cells are trained here, one by one.
    """
    check_page(results)
    possible = [cell for cell in chosen if cell.refusal is None]
    waiting = [cell for cell in possible if read(cell, budget, results) is None]
    refused = len(chosen) - len(possible)
    jobs = [Job(cell.name, cell.arguments(budget, results), cell.path(results).with_suffix(".log")) for cell in waiting]
    if workers == 0:
        return [job for job, cell in zip(jobs, waiting, strict=True) if not _trained_here(cell, budget, results, say)]
    done = f"{len(possible) - len(waiting)} of {len(possible)} cells are there"
    return run_jobs(
        jobs,
        workers=workers,
        say=say,
        seconds=dict.fromkeys((job.name for job in jobs), budget.cell_seconds),
        heading=f"{done}{f', {refused} are not possible' if refused else ''}; ",
        command=command,
    )


def _trained_here(cell: Cell, budget: Budget, results: Path, say: Callable[[str], None]) -> bool:
    """Whether a cell could be trained in this process."""
    try:
        run_cell(cell, budget, results, say)
    except ValueError as error:
        say(f"FAILED {cell.name}: {error}")
        return False
    return True
