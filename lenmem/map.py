"""The map: many networks on many tasks, each trained for the same time with the same number of parameters.

A cell is one network on one task. It is trained with each of a few learning rates for a short time; the rate with the
lowest loss on new examples of the training lengths is kept, and with it some seeds are trained for longer. Time is that
of the processor, without compilation, so other work on the machine changes little. During a training the rate rises for
a tenth of the time and falls to zero along a cosine.

The outcome of a cell is its reach: the longest measured length up to which the median exact match of the seeds stays at
95%, relative to the longest training length. A cell below 95% at a training length has not learnt its task and has no
reach, so nothing is said about its generalisation.

    results/map/<task>/<network>.json    a record for each cell
    results/map/README.md, map.png       the table and its picture
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lenmem import models, tasks
from lenmem.errors import choices
from lenmem.evaluation.lengths import Evaluation, LengthCurve
from lenmem.evaluation.metrics import ApplyModel, TaskMetrics, evaluate
from lenmem.experiment import Experiment
from lenmem.fields import PositiveFloat, PositiveInt, check_fields
from lenmem.keys import namespaced
from lenmem.runs import measure
from lenmem.serialize import to_plain, write_json, write_whole
from lenmem.tasks.base import Task
from lenmem.training.environment import describe_environment
from lenmem.training.optimizer import Cosine
from lenmem.training.step import State, initial_parameters, initial_state, make_advance
from lenmem.types import PyTree
from lenmem.workers import LENMEM, Job, run_jobs

LEARNT = 0.95
"""The exact match that counts as right."""
BEYOND = (9 / 8, 5 / 4, 3 / 2, 7 / 4, 2, 5 / 2, 3, 4)
"""The measured lengths beyond training, relative to the longest training length."""
STEPS_AT_ONCE = 10
"""Optimiser steps between two looks at the clock."""
TOLERANCE = 0.1
"""How far the number of parameters may be from the budget's."""
OVERHEAD_SECONDS = 40.0
"""For the estimate: what compiling and measuring a cell takes."""

NETWORKS: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 16},
    "gru": {"embedding_size": 16},
    "elman": {},
    "stack_rnn_vector": {"slots": 80},
    "stack_lstm": {"slots": 80},
    "tape_rnn": {"slots": 80},
    "attention": {"embedding_size": 16},
    "pointer_network": {"embedding_size": 16},
    "neural_stack": {"embedding_size": 16, "width": 16},
    "ntm": {},
    "dnc": {"slots": 64},
    "dnc_compression_regularized": {"slots": 64},
    "lantm": {"read_gate_bias": 0.0, "forget_bias": 0.0},
    "slantm": {"read_gate_bias": 0.0, "forget_bias": 0.0},
    "nam_tm": {"tapes": 2, "input_dropout": 0.0},
    "lsam": {"heads": 2},
    "panm": {"embedding_size": 16, "mlp_size": 32, "heads": 2},
    "panm_beyond": {"embedding_size": 16, "mlp_size": 32, "heads": 2},
    "transformer": {"layers": 2, "heads": 2},
    "transformer_rotary": {"layers": 2, "heads": 2},
    "transformer_alibi": {"layers": 2, "heads": 2},
    "transformer_xl": {"layers": 2, "heads": 2},
    "transformer_randomized": {"layers": 2, "heads": 2},
    "transformer_stick_breaking": {"layers": 2, "heads": 2},
    "transformer_forgetting": {"layers": 2, "heads": 2},
    "looped_transformer": {"heads": 2},
    "nam_transformer": {"layers": 2, "heads": 2},
    "universal_transformer": {"heads": 2},
    "ndr": {"steps": 8},
    "delta_net": {"heads": 2},
    "delta_net_negative": {"heads": 2},
    "gated_delta_net": {"heads": 2},
    "delta_product": {"heads": 2},
    "mamba2": {"heads": 2, "state_size": 32},
    "mlstm": {"heads": 2},
    "slstm": {"heads": 2},
}
"""The networks of the map: the name of a model -> fields that differ from its defaults. Dropout is off, and
`hidden_size` follows from the number of parameters, with a `feedforward_size` of twice as much."""

_SHORT: dict[str, Any] = {"train_lengths": (1, 16), "test_lengths": (17, 64)}
_PAIRS: dict[str, Any] = {"train_lengths": (1, 8), "test_lengths": (9, 32)}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "copy": ("copy", {"vocabulary": 16, **_SHORT}),
    "reverse": ("reverse", {"vocabulary": 16, **_SHORT}),
    "odd first": ("odd_first", {"vocabulary": 16, **_SHORT}),
    "priority sort": ("priority_sort", {"vocabulary": 16, "unary": False, **_SHORT}),
    "id sort": ("panm_id_sort", {"train_lengths": (1, 16), "scored_lengths": (17, 64)}),
    "table lookup": ("ctl", {}),
    "dyck": ("dyck", {"longest": 16}),
    "parity": ("parity_check", _SHORT),
    "cycle": ("cycle_navigation", _SHORT),
    "arithmetic": ("modular_arithmetic_brackets", _SHORT),
    "stack": ("stack_manipulation", _SHORT),
    "S5 words": ("word_problem", {"group": "S5", **_SHORT}),
    "recall": (
        "associative_recall",
        {"vocabulary": 128, "spacing": 4, "train_lengths": (1, 8), "test_lengths": (9, 32)},
    ),
    "addition": ("binary_addition", {"train_lengths": (3, 16), "test_lengths": (17, 64)}),
}
"""The tasks of the map: heading -> (name of the task, fields that differ from its defaults)."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every cell of a map is given."""

    parameters: PositiveInt = 50_000
    """Number of parameters of each network, up to a tenth more or less."""
    seconds: PositiveFloat = 60.0
    """Processor time of the training of each seed."""
    search_seconds: PositiveFloat = 15.0
    """Processor time of the training at each learning rate that is tried."""
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    """The learning rates that are tried."""
    seeds: PositiveInt = 3
    """Number of seeds."""
    batch_size: PositiveInt = 32
    """Examples per optimiser step."""
    samples: PositiveInt = 64
    """Examples per length of the curve."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates must be one or more positive learning rates, got {self.rates}")

    @property
    def cell_seconds(self) -> float:
        """Estimated time of a cell."""
        return self.seeds * self.seconds + len(self.rates) * self.search_seconds + OVERHEAD_SECONDS

    @property
    def options(self) -> list[str]:
        """The options of `lenmem map` that give this budget."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--budget.{field.name.replace('_', '-')}", *map(str, values)]
        return words


QUICK = Budget(parameters=20_000, seconds=4.0, search_seconds=1.0, rates=(3e-3, 1e-2))
"""The budget of `lenmem map --quick`."""
QUICK_NETWORKS = ("lstm", "lantm", "transformer_alibi")
QUICK_TASKS = ("copy", "reverse", "parity")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A network on a task, before its size is known."""

    task: str
    """Heading in `TASKS`, or the name of a task."""
    network: str
    """Name of a model."""

    @property
    def name(self) -> str:
        """What is said when it starts."""
        return f"{self.network} on {self.task}"

    def path(self, results: Path) -> Path:
        """Its record."""
        return results / self.task.replace(" ", "_") / f"{self.network}.json"

    def arguments(self, budget: Budget, results: Path) -> tuple[str, ...]:
        """The arguments of lenmem that train this cell alone."""
        where = ("--workers", "0", "--results", os.fspath(results))
        return ("map", "--networks", self.network, "--tasks", self.task, *where, *budget.options)

    @property
    def refusal(self) -> str | None:
        """None, or why the network cannot take the task."""
        return models.supports(models.make(self.network, **fields_of(self.network)), task_of(self.task).spec)


def cells(networks: Iterable[str] = (), headings: Iterable[str] = ()) -> list[Cell]:
    """The cells of these networks and tasks, task by task; none given: those of the map.

    Every model and every task with its default lengths has a place, too. ValueError for an unknown name.
    """
    networks, headings = tuple(networks) or tuple(NETWORKS), tuple(headings) or tuple(TASKS)
    for names, known in ((networks, (*NETWORKS, *models.names())), (headings, (*TASKS, *tasks.names()))):
        for name in names:
            if name not in known:
                raise ValueError(f"the map has no {name!r}.{choices(name, known, listed='lenmem list')}")
    return [Cell(heading, network) for heading in headings for network in networks]


def fields_of(network: str) -> dict[str, Any]:
    """The fields of a network that differ from the model's defaults, apart from its size."""
    fields = {"dropout": 0.0, **NETWORKS.get(network, {})}
    return {name: value for name, value in fields.items() if name in models.fields_of(network)}


@functools.cache
def task_of(heading: str) -> Task:
    """The task with this heading."""
    name, fields = TASKS.get(heading, (heading, {}))
    return tasks.make(name, **fields)


def curve_lengths(task: Task) -> tuple[int, ...]:
    """The measured lengths: four of training and those `BEYOND`; all that there are, if the task is not endless."""
    if not task.endless:
        return task.curve_lengths
    longest = task.train_lengths[1]
    trained = (max(task.train_lengths[0], math.ceil(longest * i / 4)) for i in range(1, 5))
    return tuple(dict.fromkeys((*trained, *(round(longest * factor) for factor in BEYOND))))


def sized(network: str, task: Task, parameters: int) -> tuple[nn.Module, int]:
    """The network whose number of parameters for a task is nearest to the one wanted, and that number.

    ValueError if it is more than a tenth away. Sizes are multiples of twice the number of heads.
    """
    start = models.make(network, task.spec, **fields_of(network))
    unit = 2 * getattr(start, "heads", 1)

    def at(units: int) -> nn.Module:
        wide: dict[str, Any] = {"hidden_size": units * unit, "feedforward_size": 2 * units * unit}
        # A network without feed-forward networks, None, stays one.
        return start.clone(**{name: value for name, value in wide.items() if getattr(start, name, None) is not None})

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
        # The rate is a part of the state, where it can follow the clock.
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
        spent, steps = 0.0, 0
        while spent < seconds:
            started = time.process_time()
            # Time goes on in thousandths, since a schedule counts updates.
            rate = jnp.asarray(rates, jnp.float32) * schedule(round(1000 * spent / seconds), 1000)
            members = state.members
            members = members._replace(optimizer_state=optax.tree.set(members.optimizer_state, learning_rate=rate))
            state, _ = jax.block_until_ready(program(state._replace(members=members)))
            steps += STEPS_AT_ONCE
            spent += time.process_time() - started
        alive = np.asarray(state.members.alive)
        params = jax.tree.map(np.asarray, state.members.params)
        return jax.tree.map(lambda x: np.where(alive.reshape(-1, *[1] * (x.ndim - 1)), x, np.nan), params), steps


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
        "budget": _plain(budget),
        "cell": _settings(cell),
        "model": to_plain(model),
        "parameters": parameters,
        "losses": [None if math.isnan(loss) else loss for loss in losses.tolist()],
        "rate": rate,
        "steps": steps,
        "final_loss": [None if math.isnan(loss) else loss for loss in _losses(experiment, params, budget).tolist()],
        "curve": curve.to_dict(),
        "environment": environment,
    }
    path = cell.path(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    say(f"{cell.name}: {described(record)}")
    return record


def _losses(experiment: Experiment, params: PyTree, budget: Budget) -> np.ndarray:
    """float[S]: the losses on new examples of the training lengths; NaN for those that diverged."""
    source = experiment.task.source("validation", budget.batch_size)
    metrics = TaskMetrics(experiment.task, loss=True)
    return evaluate(ApplyModel(experiment.bound_model), params, metrics, source, jax.random.key(1), 8)["loss"]


def _plain(budget: Budget) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(budget)))


def _settings(cell: Cell) -> dict[str, Any]:
    """What a cell trains, apart from the budget."""
    return json.loads(json.dumps({"task": to_plain(task_of(cell.task)), "network": fields_of(cell.network)}))


def read(cell: Cell, budget: Budget | None, results: Path) -> dict[str, Any] | None:
    """The record of a cell with its present settings; None if there is none.

    ValueError if it was made with another budget, since cells of two budgets cannot be compared. `budget` None: any.
    """
    path = cell.path(results)
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    if budget is not None and record["budget"] != _plain(budget):
        different = [name for name, value in _plain(budget).items() if record["budget"].get(name) != value]
        raise ValueError(
            f"{path} was made with another budget ({', '.join(different)}); give another directory with --results"
        )
    return record if record["cell"] == _settings(cell) else None


def reach_of(curve: LengthCurve) -> float | None:
    """The reach of a cell, relative to the longest training length; None if it has not learnt its training lengths."""
    medians = np.median(np.nan_to_num(curve.values["exact_match"]), axis=0)
    longest = curve.train_lengths[1]
    failed = curve.lengths[medians < LEARNT]
    first = failed.min(initial=curve.lengths.max() + 1)
    if first <= longest:
        return None
    return float(curve.lengths[curve.lengths < first].max() / longest)


def trained_accuracy(curve: LengthCurve) -> float:
    """The lowest median exact match at a training length."""
    trained = curve.lengths <= curve.train_lengths[1]
    return float(np.median(np.nan_to_num(curve.values["exact_match"][:, trained]), axis=0).min())


def described(record: Mapping[str, Any]) -> str:
    """The outcome of a cell in one line."""
    curve = LengthCurve.from_dict(record["curve"])
    reach, longest = reach_of(curve), curve.train_lengths[1]
    how = f"{record['steps']} steps at rate {record['rate']:g}"
    if any(loss is None for loss in record["final_loss"]):
        how += f", {sum(loss is None for loss in record['final_loss'])} of {curve.seeds} seeds diverged"
    if reach is None:
        lowest = trained_accuracy(curve)
        return f"not learnt in {how}: exact match {100 * lowest:.0f}% at a length of up to {longest} {curve.unit}"
    end = f"up to {round(reach * longest)} {curve.unit}, {reach:.3g} times the longest of training"
    return f"{end}, after {how}"


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

    The output of a cell goes to a log beside its record.
    """
    possible = [cell for cell in chosen if cell.refusal is None]
    waiting = [cell for cell in possible if read(cell, budget, results) is None]
    refused = len(chosen) - len(possible)
    jobs = [Job(cell.name, cell.arguments(budget, results), cell.path(results).with_suffix(".log")) for cell in waiting]
    done = f"{len(possible) - len(waiting)} of {len(possible)} cells are there"
    return run_jobs(
        jobs,
        workers=workers,
        say=say,
        seconds=dict.fromkeys((job.name for job in jobs), budget.cell_seconds),
        heading=f"{done}{f', {refused} are not possible' if refused else ''}; ",
        command=command,
    )


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """A map: a row for each network and a column for each task."""

    networks: tuple[str, ...]
    tasks: tuple[str, ...]
    records: Mapping[Cell, Mapping[str, Any]]
    """The cells that were trained."""
    refusals: Mapping[Cell, str]
    """The cells that are not possible, with the reason."""

    def curve(self, cell: Cell) -> LengthCurve | None:
        """The curve of a cell, if it was trained."""
        return LengthCurve.from_dict(self.records[cell]["curve"]) if cell in self.records else None

    def text(self, cell: Cell) -> str:
        """`2.5x`; `(31%)`: not learnt; `-`: not possible; nothing: not trained."""
        if cell in self.refusals:
            return "-"
        curve = self.curve(cell)
        if curve is None:
            return ""
        reach = reach_of(curve)
        return f"({100 * trained_accuracy(curve):.0f}%)" if reach is None else f"{reach:.3g}x"

    def rows(self) -> list[tuple[str, list[str]]]:
        """Each network with the texts of its cells."""
        return [(network, [self.text(Cell(task, network)) for task in self.tasks]) for network in self.networks]

    def lines(self) -> list[str]:
        """What is to be said of each cell."""
        trained = [f"{cell.name}: {described(record)}" for cell, record in self.records.items()]
        return trained + [f"{cell.name}: not possible, {reason}" for cell, reason in self.refusals.items()]


def outcomes(chosen: Sequence[Cell], results: Path) -> Outcomes:
    """The map of these cells, as far as they were trained."""
    refusals = {cell: reason for cell in chosen if (reason := cell.refusal)}
    records = {cell: record for cell in chosen if cell not in refusals and (record := read(cell, None, results))}
    return Outcomes(
        tuple(dict.fromkeys(cell.network for cell in chosen)),
        tuple(dict.fromkeys(cell.task for cell in chosen)),
        records,
        refusals,
    )


def save_map(found: Outcomes, results: Path) -> None:
    """Writes `README.md`, the table with what is to be said of each cell, and `map.png`."""
    from lenmem.evaluation.plots import plot_reach

    results.mkdir(parents=True, exist_ok=True)
    write_whole(results / "README.md", markdown(found).encode())
    rows = [[found.curve(Cell(task, network)) for task in found.tasks] for network in found.networks]
    reach = [[np.nan if curve is None else reach_of(curve) or 0.0 for curve in row] for row in rows]
    texts = [texts for _, texts in found.rows()]
    plot_reach(found.networks, found.tasks, np.array(reach), results / "map.png", texts=texts)


def markdown(found: Outcomes) -> str:
    """The map as a page."""
    record = next(iter(found.records.values()), None)
    lines = ["# The map", "", "Generated by `lenmem map` from the records beside it; do not edit.", ""]
    if record is not None:
        budget = Budget(**(record["budget"] | {"rates": tuple(record["budget"]["rates"])}))
        lines += [
            f"Every network has about {budget.parameters:,} parameters and is trained for {budget.seconds:g} s of",
            f"processor time for each of {budget.seeds} seeds, at the best of the rates "
            f"{', '.join(f'{rate:g}' for rate in budget.rates)}, chosen by trainings of",
            f"{budget.search_seconds:g} s and their loss at the training lengths.",
            "",
        ]
    lines += [
        "A cell shows how far the network generalises: the longest measured length, relative to the longest of",
        f"training, up to which the median exact match stays at {100 * LEARNT:.0f}%. In brackets, for a network that",
        "did not learn its training lengths: the lowest exact match there. `-`: the network cannot take the task.",
        "",
        "![The map](map.png)",
        "",
        "| network | " + " | ".join(found.tasks) + " |",
        "| --- |" + " ---: |" * len(found.tasks),
    ]
    lines += [f"| {network} | " + " | ".join(texts) + " |" for network, texts in found.rows()]
    lines += ["", "## Each cell", "", *(f"* {line}" for line in found.lines())]
    return "\n".join(lines) + "\n"
