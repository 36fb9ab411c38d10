"""What things cost on this machine: prints tables, asserts nothing.

    python scripts/benchmark.py                              # every named configuration; takes many minutes on 2 cores
    python scripts/benchmark.py --configs quickstart copy    # those whose name contains one of these words
    python scripts/benchmark.py --quick                      # few steps and repetitions, to see that it runs
    python scripts/benchmark.py --json FILE                  # also as data

Tables: `train` (updates per second, share of a step spent drawing data, compile time, several seeds in one program
against one), `evaluate` (100 lengths), `memory` (the append-only scan against plain differentiation).

Every figure is the median of repeated timed calls after a warm-up. What is compared is timed in turns (A B A B) in one
process, since machines are shared and noisy. Repetitions of a training call start at the same optimiser step, so that
they see the same lengths; the lengths of a few steps are a sample of those of a run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from lenmem import configs
from lenmem.evaluation.lengths import length_curve
from lenmem.experiment import Experiment
from lenmem.models.lantm import LieAccessCell
from lenmem.nn.recurrence import scan_cell
from lenmem.tasks.base import namespaced
from lenmem.training.checkpoint import describe_environment
from lenmem.training.step import State, data_seed, initial_state, make_advance
from lenmem.types import Step

TABLES = ("train", "evaluate", "memory")
SCAN_STEPS = (128, 256, 512)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured."""

    steps: int
    """Optimiser steps of a timed call."""
    repeats: int
    """Timed calls of each kind."""
    lengths: int
    """Lengths of the evaluation."""


FULL, QUICK = Effort(50, 5, 100), Effort(3, 3, 20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Print what training and evaluation cost on this machine.")
    parser.add_argument("--configs", nargs="+", metavar="WORD", help="only configurations whose name contains a WORD")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="what is measured")
    parser.add_argument("--seeds", type=int, help="seeds in one program (default: the configuration's, at least 3)")
    parser.add_argument("--quick", action="store_true", help="few steps and repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    names = [name for name in configs.names() if not options.configs or any(word in name for word in options.configs)]
    if not names:
        parser.error(f"no configuration matches {' '.join(options.configs)}; there are {', '.join(configs.names())}")

    console = Console(width=None if sys.stdout.isatty() else 150)
    environment = describe_environment()
    console.print(header(environment, effort), highlight=False)
    measured: dict[str, Any] = {"environment": environment, "cpu_count": os.cpu_count(), **dataclasses.asdict(effort)}

    if "train" in options.tables:
        rows = measured["train"] = [
            training_cost(name, configs.load_config(name), effort, options.seeds) for name in progress(names, "train")
        ]
        console.print(as_table("training", rows))
    if "evaluate" in options.tables:
        name = "quickstart" if "quickstart" in names else names[0]
        rows = measured["evaluate"] = [evaluation_cost(name, configs.load_config(name), effort)]
        console.print(as_table(f"evaluation of {effort.lengths} lengths", rows))
    if "memory" in options.tables:
        rows = measured["memory"] = [scan_cost(steps, effort) for steps in progress(SCAN_STEPS, "scan")]
        console.print(as_table("gradient of a LANTM scan of T steps, 32 rows: append-only against plain", rows))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


def training_cost(name: str, experiment: Experiment, effort: Effort, seeds: int | None = None) -> dict[str, Any]:
    """Updates per second of a configuration with several seeds and with one, and what drawing its data takes."""
    seeds = seeds or max(3, experiment.training.seeds)
    several, several_compiled = _trainer(experiment, seeds, effort.steps)
    single, single_compiled = _trainer(experiment, 1, effort.steps)
    times = in_turns([several, _drawer(experiment, seeds, effort.steps), single], effort.repeats)
    return {
        "configuration": name,
        "seeds": seeds,
        "updates/s": effort.steps / times[0],
        "updates/s, 1 seed": effort.steps / times[2],
        "cost of seeds / 1": times[0] / times[2],
        "drawing %": 100 * times[1] / times[0],
        "compile s": several_compiled,
        "compile s, 1 seed": single_compiled,
    }


def evaluation_cost(name: str, experiment: Experiment, effort: Effort) -> dict[str, Any]:
    """Seconds for a curve: the first time, compilation included, and again."""
    task, training, evaluation = experiment.task, experiment.training, experiment.evaluation
    model = experiment.bound_model
    params = _fresh(experiment, training.seeds).members.params
    lengths = range(task.train_lengths[0], task.train_lengths[0] + effort.lengths)

    def curve() -> None:
        length_curve(model, params, task, lengths, evaluation.samples, jax.random.key(0))

    def cold() -> None:
        jax.clear_caches()
        curve()

    first = statistics.median(_seconds(cold) for _ in range(effort.repeats))
    again = statistics.median(_seconds(curve) for _ in range(effort.repeats))
    return {
        "configuration": name,
        "seeds": training.seeds,
        "lengths": f"{lengths[0]}-{lengths[-1]}",
        "samples": evaluation.samples,
        "first s": first,
        "again s": again,
    }


def scan_cost(steps: int, effort: Effort) -> dict[str, Any]:
    """Time and temporary memory of a gradient through T steps: the scan of an append-only memory, and JAX's own."""
    figures, calls = [], []
    for cell in (LieAccessCell(), Plain(LieAccessCell())):
        compiled, inputs = _gradient(cell, steps)
        analysis: Any = compiled.memory_analysis()
        figures.append(math.nan if analysis is None else analysis.temp_size_in_bytes / 2**20)
        calls.append(lambda compiled=compiled, inputs=inputs: jax.block_until_ready(compiled(*inputs)))
    times = in_turns(calls, effort.repeats)
    return {
        "T": steps,
        "append-only ms": 1000 * times[0],
        "plain ms": 1000 * times[1],
        "time, plain / append-only": times[1] / times[0],
        "append-only MiB": figures[0],
        "plain MiB": figures[1],
        "memory, plain / append-only": figures[1] / figures[0],
    }


class Plain(nn.Module):
    """A cell that does not say that its memory only grows, and is therefore differentiated as any other."""

    cell: nn.Module

    def start(self, batch_shape: tuple[int, ...], steps: int) -> Any:
        """That of the cell."""
        return self.cell.start(batch_shape, steps)  # pyright: ignore[reportAttributeAccessIssue]

    @nn.compact
    def __call__(self, carry: Any, step: Step) -> Any:
        """That of the cell."""
        return self.cell(carry, step)


class Scan(nn.Module):
    """The mean square of everything that a cell puts out."""

    cell: nn.Module

    @nn.compact
    def __call__(self, steps: Step) -> jax.Array:
        """Scalar."""
        length, rows = steps.valid.shape
        start = self.cell.start  # pyright: ignore[reportAttributeAccessIssue]
        _, outputs = scan_cell(self.cell, start((rows,), length // 2), steps)
        return sum((jnp.mean(jnp.square(x)) for x in jax.tree.leaves(outputs)), jnp.zeros(()))


def _gradient(cell: nn.Module, length: int, rows: int = 32, width: int = 14) -> tuple[Any, tuple[Any, Step]]:
    """The compiled gradient of `Scan` over steps of which the second half decodes, and its arguments."""
    inputs = jax.random.normal(jax.random.key(0), (length, rows, width))
    decoding = jnp.broadcast_to(jnp.arange(length)[:, None] >= length // 2, (length, rows))
    steps = Step(inputs, decoding, jnp.ones((length, rows), bool))
    module = Scan(cell)
    variables = module.init(jax.random.key(1), steps)
    gradient = jax.jit(jax.grad(lambda variables, steps: module.apply(variables, steps)))
    return gradient.lower(variables, steps).compile(), (variables, steps)


def _fresh(experiment: Experiment, seeds: int) -> State:
    training = experiment.training
    keys = jax.vmap(lambda i: namespaced(jax.random.key(training.seed), i))(np.arange(seeds))
    optimizer = training.optimizer.build(training.steps)
    return initial_state(experiment.bound_model, experiment.task, optimizer, keys, keep_best=False)


def _trainer(experiment: Experiment, seeds: int, steps: int) -> tuple[Callable[[], None], float]:
    """A call of `steps` optimiser steps, always the first ones, and the seconds that it took to compile."""
    training = experiment.training
    optimizer = training.optimizer.build(training.steps)
    state = _fresh(experiment, seeds)
    devices = training.device_count()
    advance = make_advance(experiment.bound_model, experiment.task, optimizer, training.batch_size, devices=devices)
    started = time.perf_counter()
    compiled = advance.lower(state, steps).compile()
    seconds = time.perf_counter() - started

    def call() -> None:
        nonlocal state
        state, _ = compiled(state._replace(step=jnp.zeros_like(state.step)))
        jax.block_until_ready(state)

    return call, seconds


def _drawer(experiment: Experiment, seeds: int, steps: int) -> Callable[[], None]:
    """A call that draws the batches of `_trainer`'s call, and does nothing else with them than to add them up."""
    task, batch_size = experiment.task, experiment.training.batch_size
    keys = _fresh(experiment, seeds).members.key

    def drawn(key_data: jax.Array, step: jax.Array) -> jax.Array:
        batch = task.source("train", batch_size, data_seed(key_data)).batch(step)
        return sum((jnp.sum(x, dtype=jnp.float32) for x in batch), jnp.zeros(()))

    def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.vmap(drawn, in_axes=(0, None))(keys, step), None

    compiled = jax.jit(lambda: jax.lax.scan(body, jnp.zeros(seeds), jnp.arange(steps))[0]).lower().compile()
    return lambda: jax.block_until_ready(compiled())


def in_turns(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Median seconds of each call: all are warmed up, then timed one after the other, `repeats` times."""
    for call in calls:
        call()
    times = [[_seconds(call) for call in calls] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def header(environment: Mapping[str, Any], effort: Effort) -> str:
    """Where the figures come from."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    commit = f"{environment['commit']}{'+' if environment['dirty'] else ''}"
    device = f"{environment['devices']} x {environment['device']} ({environment['backend']})"
    lines = [
        f"{device}, {os.cpu_count()} CPU cores{load}",
        f"{environment['platform']}, Python {environment['python']}",
        versions,
        f"commit {commit}, {environment['date']}",
        f"medians of {effort.repeats} calls, of {effort.steps} optimiser steps each in training",
    ]
    return "\n".join(lines)


def as_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows with the same columns."""
    table = Table(title=title, title_justify="left")
    for column, value in rows[0].items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right", overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def progress(items: Sequence[Any], what: str) -> Any:
    """The items, each named on stderr when its turn comes."""
    for item in items:
        print(f"{what} {item} ...", file=sys.stderr, flush=True)
        yield item


if __name__ == "__main__":
    main()
