"""The networks, the tasks and the budget of the map."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lenmem import models, tasks
from lenmem.errors import choices, nearest
from lenmem.evaluation.lengths import Evaluation
from lenmem.fields import PositiveFloat, PositiveInt, check_fields
from lenmem.serialize import to_plain
from lenmem.tasks.base import Task, occurring

BEYOND = (9 / 8, 5 / 4, 3 / 2, 7 / 4, 2, 5 / 2, 3, 4)
"""The measured lengths beyond training, relative to the longest training length."""
STEPS_AT_ONCE = 10
"""Optimiser steps between two looks at the clock."""
TOLERANCE = 0.1
"""Largest relative difference of a network's number of parameters from the budget's."""
OVERHEAD_SECONDS = 40.0
"""Estimated time for compiling and measuring a cell."""


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
    "nam_tm": {"tapes": 2, "input_dropout": 0.0, "normalize_heads": True},
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
    "delta_product": {"heads": 2, "head_size": None},
    "mamba2": {"heads": 2, "state_size": 32},
    "mlstm": {"heads": 2},
    "slstm": {"heads": 2},
}
"""The networks of the map: the name of a model -> fields that differ from its defaults. Dropout is off, and
`hidden_size` follows from the number of parameters, with a `feedforward_size` of twice as much. NAM-TM normalises its
heads, as the authors' later code does "to avoid nan": without it, all seeds diverged on parity."""


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
    "recall": ("associative_recall", {"vocabulary": 128, "spacing": 4, **_PAIRS}),
    "addition": ("binary_addition", {"train_lengths": (3, 16), "test_lengths": (17, 64)}),
}
"""The tasks of the map: heading -> (name of the task, fields that differ from its defaults)."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """The budget of every cell of a map."""

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
        """Its name in messages."""
        return f"{self.network} on {self.task}"

    def path(self, results: Path) -> Path:
        """Its record. Names of tasks have folders of their own: `odd_first` is another task than `odd first`."""
        folder = self.task.replace(" ", "_") if self.task in TASKS else f"task-{self.task}"
        return results / folder / f"{self.network}.json"

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
    for name in networks:
        if name not in (known := (*NETWORKS, *models.names())):
            raise ValueError(f"the map has no network {name!r}.{choices(name, known, listed='lenmem list')}")
    for name in headings:
        if name not in (known := (*TASKS, *tasks.names())):
            headings_of_the_map = f"the headings {', '.join(map(repr, TASKS))}, and tasks: lenmem list"
            raise ValueError(f"the map has no {name!r}.{nearest(name, known)} Allowed are {headings_of_the_map}")
    return [Cell(heading, network) for heading in dict.fromkeys(headings) for network in dict.fromkeys(networks)]


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
        return Evaluation().lengths_for(task)
    longest = task.train_lengths[1]
    trained = (max(task.train_lengths[0], math.ceil(longest * i / 4)) for i in range(1, 5))
    return tuple(occurring(task, (*trained, *(round(longest * factor) for factor in BEYOND))))


def plain_budget(budget: Budget) -> dict[str, Any]:
    """A budget as JSON data."""
    return json.loads(json.dumps(dataclasses.asdict(budget)))


def settings_of(cell: Cell) -> dict[str, Any]:
    """What a cell trains, apart from the budget."""
    return json.loads(json.dumps({"task": to_plain(task_of(cell.task)), "network": fields_of(cell.network)}))
