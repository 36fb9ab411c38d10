"""Costs of training and evaluation on this machine: prints tables, asserts nothing.

    python scripts/benchmark.py                              # every named configuration; takes many minutes on 2 cores
    python scripts/benchmark.py --configs quickstart dnc     # these, and those whose name contains one of these words
    python scripts/benchmark.py --quick                      # few steps and repetitions, to check that it runs
    python scripts/benchmark.py --tables attention devices   # only these tables
    python scripts/benchmark.py --json FILE                  # also save the figures

Tables: `train` (updates per second, fraction of a step spent drawing data, compile time, several seeds in one program
against one), `evaluate` (100 lengths), `memory` (the append-only scan against plain differentiation), `attention`
(outer-product attention against softmax attention, and on a GPU against the kernels of fla-core), `geometric`
(geometric attention against softmax: weights of given logits, and attention by blocks and within a horizon; with
`--run RUN` also in a trained network), `lookup` (steps per second of the Neural Data Router on table lookup at its
published size, by batch and tokens), `recurrence` (linear recurrences in chunks against step by step), `suite` (the
Chomsky suite: training, and evaluation at the lengths 1 to 500 against one compilation for each length), `widths`
(steps per second on simple arithmetic, with one width and with several `Training.widths`), `dnc` (memory machines on
sorting at the published size: training, the time of each operation, and long sequences), `panm` (pointer-augmented
memory on copy at width 256 against the networks it is built on), `devices` (outer-product attention with the sequence
split over devices; virtual ones on a CPU).

Every figure is the median of repeated timed calls after a warm-up. Alternatives are timed in turn (A B A B) in one
process, since machines are shared and timings noisy. Repetitions of a training call start at the same optimiser step,
so they see the same lengths; the lengths of a few steps are a sample of those of a run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from lenmem import configs, models, ops, tasks
from lenmem.evaluation.lengths import length_curve
from lenmem.experiment import Experiment, Run, load
from lenmem.files import write_whole
from lenmem.keys import namespaced
from lenmem.models.lantm import LieAccessCell
from lenmem.nn.recurrence import scan_cell
from lenmem.parallel import pmap_outer_product_attention
from lenmem.tasks.base import draw
from lenmem.tasks.ndr import TableLookup
from lenmem.training.configuration import Training
from lenmem.training.environment import describe_environment
from lenmem.training.step import State, data_key, device_mesh, initial_state, make_advance, replicated
from lenmem.types import Step

RECURRENCE_LENGTHS = (2**9, 2**11, 2**13, 2**14)
SUITE_LENGTHS, SUITE_EXAMPLES = 500, 4
COMPILED_LENGTHS = (50, 150, 250, 350, 450)
"""Lengths whose separate compilation and evaluation are timed. The mean is used for all lengths."""
MACHINES = ("dnc", "dnc_stateless", "dnc_compression_regularized", "ntm", "lstm")
POINTERS = ("panm", "panm_paper", "panm_published", "lstm", "attention")
MACHINE_ROWS = 64
REPEATED = 100
SCAN_STEPS = (128, 256, 512)
HEADS, HEAD_WIDTH = 8, 64
"""Sizes in the attention tables; the batch is one row, since sequences are long."""
GPU_LENGTHS = (2**18, 2**20)
"""Further lengths of a full measurement on a GPU."""
GEOMETRIC_LENGTHS = (12, 256, 1024, 4096)
GEOMETRIC_LOGITS = 2**18
"""Number of logits of a batch of short sequences: at least that of all heads of one row."""
HORIZONS = {"near": 0.0, "far": -8.0}
"""Offsets of the logits: targets find their match among about ten keys, or among thousands."""
HORIZON_TOLERANCE = 1e-3
LONG_WAYS: dict[str, dict[str, Any]] = {"blocks of 64": {"block_size": 64}} | {
    f"tolerance {HORIZON_TOLERANCE:g}, {reach}": {"offset": offset, "tolerance": HORIZON_TOLERANCE}
    for reach, offset in HORIZONS.items()
}
"""Arguments of geometric attention for long sequences."""
LONG_GEOMETRIC = {"cpu": 2**14, "gpu": 2**16}
"""Columns of geometric attention with one head, whose N x N weights would take 1 GiB and 16 GiB."""
RUN_LENGTHS = (60, 250, 1000)
"""Lengths, in its task's unit, of the inputs for the network of `--run`."""
VIRTUAL_DEVICES = 8
CPU_PARAMETERS = 2_000_000
CPU_WORK = 3e8
"""Limit for a step of all seeds, in parameters times rows."""
LOOKUPS = ((64, 8), (64, 10), (64, 12), (512, 8), (512, 10), (512, 12))
"""Batch size, and tokens of an input including its begin and end."""
SOFTMAX_LENGTH = 2**16
"""The longest sequence of softmax attention."""
SCORES_LIMIT = 2**30
"""In bytes. Implementations of softmax attention that form larger scores (for all heads) are not measured."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """The amount of measurement."""

    steps: int
    """Optimiser steps per timed call."""
    repeats: int
    """Timed calls of each kind."""
    lengths: int
    """Lengths of the evaluation."""
    sequences: tuple[int, ...]
    """Sequence lengths of the attention; the last one is split over devices."""


FULL, QUICK = Effort(50, 5, 100, (2**10, 2**12, 2**14, 2**16)), Effort(3, 3, 20, (2**10, 2**11))


@dataclasses.dataclass(frozen=True)
class Asked:
    """The options of the command line."""

    effort: Effort
    quick: bool
    configs: tuple[str, ...]
    """The configurations to measure."""
    chosen: bool
    """Whether they were named; otherwise they are all configurations."""
    seeds: int | None
    run: Path | None
    say: Callable[[str], None]
    """Prints a line."""


class Figures(NamedTuple):
    """A table to print and save."""

    name: str
    """Name in the data of `--json`."""
    title: str
    rows: list[dict[str, Any]]


Benchmark = Callable[[Asked], Iterator[Figures]]
TABLES: dict[str, Benchmark] = {}
"""The names for `--tables`, in the order of measurement."""


def table(benchmark: Benchmark) -> Benchmark:
    """Registers a benchmark under the name of its function."""
    TABLES[benchmark.__name__] = benchmark
    return benchmark


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Print the costs of training and evaluation on this machine.")
    parser.add_argument(
        "--configs", nargs="+", metavar="WORD", help="only these configurations, or those whose name contains a WORD"
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="tables to measure")
    parser.add_argument("--seeds", type=int, help="seeds in one program (default: the configuration's, at least 3)")
    parser.add_argument(
        "--run", type=Path, help="a trained Neural Data Router, whose attention `geometric` also measures"
    )
    parser.add_argument("--quick", action="store_true", help="few steps and repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    every = configs.names()
    words = options.configs or [""]
    names = tuple(name for name in every if name in words or any(w in name for w in words if w not in every))
    if not names:
        parser.error(f"no configuration matches {' '.join(words)}; there are {', '.join(every)}")

    console = Console(width=None if sys.stdout.isatty() else 150)
    environment = describe_environment()
    say = functools.partial(console.print, highlight=False)
    say(header(environment, effort))
    measured: dict[str, Any] = {"environment": environment, "cpu_count": os.cpu_count(), **dataclasses.asdict(effort)}
    asked = Asked(effort, options.quick, names, options.configs is not None, options.seeds, options.run, say)
    for name, benchmark in TABLES.items():
        if name in options.tables:
            for figures in benchmark(asked):
                measured[figures.name] = figures.rows
                console.print(as_table(figures.title, figures.rows))
                if options.json:  # after each table: the measurement may be stopped
                    write_whole(options.json, (json.dumps(measured, indent=1) + "\n").encode())


# --- the tables -------------------------------------------------------------------------------------------------------


@table
def train(asked: Asked) -> Iterator[Figures]:
    """Training of named configurations."""
    large = [] if asked.chosen or jax.default_backend() != "cpu" else [n for n in asked.configs if too_large(n)]
    if large:
        asked.say(f"left out on a CPU unless --configs names them: {', '.join(large)}")
    names = progress([name for name in asked.configs if name not in large], "train")
    rows = [training_cost(name, configs.load_config(name), asked.effort, asked.seeds) for name in names]
    yield Figures("train", "training", rows)


@table
def evaluate(asked: Asked) -> Iterator[Figures]:
    """A length curve."""
    name = "quickstart" if "quickstart" in asked.configs else asked.configs[0]
    rows = [evaluation_cost(name, configs.load_config(name), asked.effort)]
    yield Figures("evaluate", f"evaluation of {asked.effort.lengths} lengths", rows)


@table
def memory(asked: Asked) -> Iterator[Figures]:
    """The append-only scan."""
    rows = [scan_cost(steps, asked.effort) for steps in progress(SCAN_STEPS, "scan")]
    yield Figures("memory", "gradient of a LANTM scan of T steps, 32 rows: append-only against plain", rows)


@table
def attention(asked: Asked) -> Iterator[Figures]:
    """Outer-product attention against softmax attention, and against fla-core if it is available."""
    gpu = jax.default_backend() == "gpu"
    sequences = [*asked.effort.sequences, *(GPU_LENGTHS if gpu and not asked.quick else ())]
    rows = [row for n in progress(sequences, "attention") for row in attention_cost(n, asked.effort)]
    title = f"attention of {HEADS} heads of width {HEAD_WIDTH}, one row, {attention_dtype().name}"
    yield Figures("attention", title, rows)
    missing = fla_missing()
    if missing:
        asked.say(f"fla-core is not measured: {missing}")
        return
    rows = [row for n in progress(sequences, "fla") for row in fla_cost(n, asked.effort)]
    yield Figures("fla", "time relative to the Triton kernels of fla-core, forward", rows)


@table
def geometric(asked: Asked) -> Iterator[Figures]:
    """Geometric attention against softmax, on long sequences, and in the network of `--run`."""
    lengths = GEOMETRIC_LENGTHS[:2] if asked.quick else GEOMETRIC_LENGTHS
    rows = [row for n in progress(lengths, "geometric") for row in geometric_cost(n, asked.effort)]
    title = f"geometric attention, {HEADS} heads of width {HEAD_WIDTH}, float32; times relative to softmax"
    yield Figures("geometric", title, rows)
    if not asked.quick:
        rows = long_geometric_cost(LONG_GEOMETRIC.get(jax.default_backend(), GEOMETRIC_LENGTHS[-1]))
        title = f"geometric attention, one head of width {HEAD_WIDTH}, one run of each"
        yield Figures("geometric, long", title, rows)
    if asked.run is not None:
        run = load(asked.run)
        rows = [row for n in progress(RUN_LENGTHS, "trained") for row in trained_cost(run, n, asked.effort)]
        title = f"the network of {asked.run} on one input, far longer than in training"
        yield Figures("geometric, trained", title, rows)


@table
def lookup(asked: Asked) -> Iterator[Figures]:
    """The Neural Data Router on table lookup."""
    rows = [lookup_cost(batch, tokens, asked.effort) for batch, tokens in progress(LOOKUPS, "lookup")]
    yield Figures("lookup", "training of the Neural Data Router of 666,000 parameters on table lookup", rows)


@table
def recurrence(asked: Asked) -> Iterator[Figures]:
    """Linear recurrences, in chunks and step by step."""
    lengths = RECURRENCE_LENGTHS[:2] if asked.quick else RECURRENCE_LENGTHS
    rows = [row for n in progress(lengths, "recurrence") for row in recurrence_cost(n, asked.effort)]
    yield Figures("recurrence", f"linear recurrences of {HEADS} heads of width {HEAD_WIDTH}, one row, float32", rows)


@table
def suite(asked: Asked) -> Iterator[Figures]:
    """The Chomsky suite: reversing bits with the networks of the paper's table, and one of today."""
    base = configs.load_config("chomsky/reverse_string")
    networks = configs.models_of("chomsky/reverse_string") | {"delta_net": models.make("delta_net")}
    ways = {name: dataclasses.replace(base, model=model) for name, model in networks.items()}
    yield Figures("suite", "training on reverse_string, batches of 32", training_speeds("model", ways, asked.effort))
    lengths = COMPILED_LENGTHS[:1] if asked.quick else COMPILED_LENGTHS
    rows = [suite_evaluation_cost(name, ways[name], lengths) for name in progress(list(ways), "evaluate")]
    yield Figures(
        "suite, evaluation", f"evaluation at the lengths 1 to {SUITE_LENGTHS}, {SUITE_EXAMPLES} examples each", rows
    )


@table
def widths(asked: Asked) -> Iterator[Figures]:
    """Simple arithmetic with one width and with several."""
    base = configs.load_config("ndr/arithmetic_small")
    ways = {n: dataclasses.replace(base, training=dataclasses.replace(base.training, widths=n)) for n in (1, 12)}
    rows = training_speeds("widths", ways, asked.effort, 16)  # of two pools of 8 batches
    yield Figures("widths", "training of ndr/arithmetic_small, inputs of 5 to 49 tokens, by widths compiled", rows)


@table
def dnc(asked: Asked) -> Iterator[Figures]:
    """Memory machines on sorting."""
    sort = tasks.make("dnc_sort", train_lengths=(15, 15))
    training = Training(batch_size=MACHINE_ROWS)
    machines = {name: Experiment(sort, models.make(name, hidden_size=128), training) for name in MACHINES}
    rows = training_speeds("model", machines, asked.effort)
    yield Figures("dnc", f"training on sorting, batches of {MACHINE_ROWS}, sequences of 15 in 31 steps", rows)
    rows = addressing_cost(asked.effort)
    yield Figures("dnc_parts", "a DNC's operations, value and gradient, 64 rows of 50 slots of 16, 4 heads", rows)
    lengths = (50, 100) if asked.quick else (250, 500, 1000)
    rows = [long_cost(length) for length in progress(lengths, "long")]
    yield Figures("dnc_long", "a DNC with 500 slots on long sequences, 64 rows", rows)


@table
def panm(asked: Asked) -> Iterator[Figures]:
    """Pointer-augmented memory on copy."""
    copy = tasks.make("panm_copy", train_lengths=(9, 9))
    training = Training(batch_size=128)
    networks = {name: Experiment(copy, models.make(name, hidden_size=256), training) for name in POINTERS}
    rows = training_speeds("model", networks, asked.effort)
    yield Figures("panm", "training on copy, batches of 128, sequences of 9, width 256", rows)


@table
def devices(asked: Asked) -> Iterator[Figures]:
    """Outer-product attention with the sequence split over devices."""
    rows = devices_cost(asked.effort, asked.quick)
    title = f"attention of {asked.effort.sequences[-1]} positions split over devices by pmap"
    yield Figures("devices", title, rows)


# --- what they are measured with --------------------------------------------------------------------------------------


def too_large(name: str) -> bool:
    """Whether a configuration is too large for a CPU, or its data is missing."""
    experiment = configs.load_config(name)
    try:
        params = _fresh(experiment, 1, abstract=True).members.params
    except ValueError:
        return True
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    rows = experiment.training.batch_size * max(3, experiment.training.seeds)
    return size > CPU_PARAMETERS or size * rows > CPU_WORK


def training_cost(name: str, experiment: Experiment, effort: Effort, seeds: int | None = None) -> dict[str, Any]:
    """Updates per second of a configuration with several seeds and with one, and the time for drawing its data."""
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
    """Seconds for a curve: the first time, including compilation, and again."""
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
    """Time and temporary memory of a gradient through T steps: append-only scan against JAX's own."""
    figures, calls = [], []
    for cell in (LieAccessCell(), Plain(LieAccessCell())):
        compiled, inputs = _gradient(cell, steps)
        figures.append(_temporary(compiled))
        calls.append(_call(compiled, inputs))
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
    """A cell that hides the append-only property of its memory, so that it is differentiated like any other cell."""

    cell: nn.Module

    def start(self, batch_shape: tuple[int, ...], steps: int) -> Any:
        """The state of the wrapped cell."""
        return self.cell.start(batch_shape, steps)  # pyright: ignore[reportAttributeAccessIssue]

    @nn.compact
    def __call__(self, carry: Any, step: Step) -> Any:
        """The step of the wrapped cell."""
        return self.cell(carry, step)


class Scan(nn.Module):
    """The mean square of all outputs of a cell."""

    cell: nn.Module

    @nn.compact
    def __call__(self, steps: Step) -> jax.Array:
        """Scalar."""
        length, rows = steps.valid.shape
        start = self.cell.start  # pyright: ignore[reportAttributeAccessIssue]
        _, outputs = scan_cell(self.cell, start((rows,), length // 2), steps)
        return sum((jnp.mean(jnp.square(x)) for x in jax.tree.leaves(outputs)), jnp.zeros(()))


def attention_dtype() -> np.dtype:
    """bfloat16 on accelerators, float32 on CPU."""
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


def attention_cost(length: int, effort: Effort) -> list[dict[str, Any]]:
    """Tokens per second and temporary memory of each kind of attention, forward and with its gradient.

    `% of matmul`: floating-point operations of the forward pass per second, in percent of those of a large matrix
    product measured in the same turns. Softmax is skipped if its scores do not fit.
    """
    arguments = attention_inputs(length)
    itemsize = 4 + arguments[0].dtype.itemsize
    kinds: dict[str, Callable[..., Any]] = {
        "outer product": ops.normalized_outer_product_attention,
        "outer product, causal": lambda *qkv: ops.normalized_outer_product_attention(*qkv, causal=True),
        "linear (elu + 1)": ops.linear_attention,
        "softmax": softmax_attention,
    }
    forms_scores = jax.default_backend() != "gpu"
    if length > SOFTMAX_LENGTH or (forms_scores and HEADS * length**2 * itemsize > SCORES_LIMIT):
        del kinds["softmax"]
    # Needed by the algorithms, without normalisations and exponentials: 2 for a multiplication and an addition.
    squares = 4 * length * HEADS * HEAD_WIDTH**2
    operations = {
        "outer product": squares,
        "outer product, causal": 2 * squares,  # The default chunk is as long as a head is wide.
        "linear (elu + 1)": squares,
        "softmax": 4 * HEADS * HEAD_WIDTH * length**2,
    }
    forward = {kind: jax.jit(function).lower(*arguments).compile() for kind, function in kinds.items()}
    backward = {
        kind: jax.jit(jax.grad(lambda *qkv, f=function: jnp.sum(f(*qkv).astype(jnp.float32)), (0, 1, 2)))
        .lower(*arguments)
        .compile()
        for kind, function in kinds.items()
    }
    product, product_operations = _matrix_product(arguments[0].dtype)
    calls = [product, *(_call(compiled, arguments) for compiled in (*forward.values(), *backward.values()))]
    product_seconds, *times = in_turns(calls, effort.repeats)
    rows = []
    for i, kind in enumerate(kinds):
        rows.append(
            {
                "S": length,
                "attention": kind,
                "tokens/s": length / times[i],
                "tokens/s, gradient": length / times[len(kinds) + i],
                "MiB": _temporary(forward[kind]),
                "MiB, gradient": _temporary(backward[kind]),
                "% of matmul": 100 * (operations[kind] / times[i]) / (product_operations / product_seconds),
            }
        )
    return rows


def attention_inputs(length: int) -> list[jax.Array]:
    """Queries, keys and values [1, heads, S, d]."""
    shape = (1, HEADS, length, HEAD_WIDTH)
    return [jax.random.normal(jax.random.key(i), shape, attention_dtype()) for i in range(3)]


def softmax_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """`jax.nn.dot_product_attention`, heads first.

    For bfloat16 on a GPU it is the fused kernel of cuDNN, which does not form scores. cuDNN has none for float32.
    """
    fused = jax.default_backend() == "gpu" and query.dtype == jnp.bfloat16
    implementation = "cudnn" if fused else None
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    return jnp.swapaxes(jax.nn.dot_product_attention(query, key, value, implementation=implementation), 1, 2)


def recurrence_cost(length: int, effort: Effort) -> list[dict[str, Any]]:
    """Tokens per second of linear recurrences, forward and with the gradient, in chunks and step by step."""
    shape = (1, HEADS, length, HEAD_WIDTH)
    query, key, value = (jax.random.normal(jax.random.key(i), shape) for i in range(3))
    half = jnp.full(shape[:-1], 0.5)
    arguments = (query, ops.unit(key), value, half, half, -0.01 * half)

    def chunked(query, key, value, write, erase, log_decay):
        return ops.linear_recurrence(query, key, value, write, erase, log_decay)[1]

    def stepwise(query, key, value, write, erase, log_decay):
        def step(state, inputs):
            query, *inputs = inputs
            state = ops.linear_recurrence_step(state, *inputs)
            return state, jnp.einsum("...vk,...k->...v", state, query)

        sequences = (query, key, value, write, erase, log_decay)
        times = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), sequences)
        return jax.lax.scan(step, jnp.zeros((1, HEADS, HEAD_WIDTH, HEAD_WIDTH)), times)[1]

    forms = {"delta rule": (True, False), "delta rule with decay": (True, True), "decay alone": (False, True)}
    rows = []
    for name, (erases, decays) in forms.items():
        given = (*arguments[:4], half if erases else None, arguments[5] if decays else None)
        calls = []
        for function in (chunked, stepwise):
            total = jax.grad(lambda *given, f=function: jnp.sum(f(*given)), (0, 1, 2))
            calls += [_call(jax.jit(f).lower(*given).compile(), given) for f in (function, total)]
        times = in_turns(calls, effort.repeats)
        rows.append(
            {
                "S": length,
                "recurrence": name,
                "tokens/s": length / times[0],
                "tokens/s, gradient": length / times[1],
                "times step by step": times[2] / times[0],
                "times step by step, gradient": times[3] / times[1],
            }
        )
    return rows


def suite_evaluation_cost(name: str, experiment: Experiment, compiled_lengths: Sequence[int]) -> dict[str, Any]:
    """Seconds to evaluate one network at every length, with our padded widths and with a program for each length.

    The second is the cost of code with exact shapes, such as that of the paper; it is estimated from a few lengths.
    """
    model, task = experiment.bound_model, experiment.task
    params = _fresh(experiment, 1).members.params
    started = time.perf_counter()
    length_curve(model, params, task, range(1, SUITE_LENGTHS + 1), SUITE_EXAMPLES, jax.random.key(0))
    ours = time.perf_counter() - started
    one = jax.tree.map(lambda x: x[0], params)
    drawn = jax.jit(functools.partial(draw, task), static_argnums=2)
    batches = [
        jax.block_until_ready(drawn(jax.random.key(0), jnp.full(SUITE_EXAMPLES, n), n)) for n in compiled_lengths
    ]
    started = time.perf_counter()
    for batch in batches:
        call = jax.jit(lambda p, b: model.apply({"params": p}, b.inputs, b.input_mask, b.target_mask))
        jax.block_until_ready(call(one, batch))
    each = (time.perf_counter() - started) / len(compiled_lengths)
    exact = each * SUITE_LENGTHS
    return {"model": name, "s": ours, "s, a program for each length": exact, "times": exact / ours}


def geometric_cost(length: int, effort: Effort) -> list[dict[str, Any]]:
    """Time and temporary memory of geometric attention and of softmax, forward and with its gradient.

    `weights`: only from logits to weights. `attention`: from queries, keys and values; by blocks of targets, and within
    the horizon of a tolerance, with near or far matches. Short sequences come in batches.
    """
    batch = max(1, GEOMETRIC_LOGITS // (HEADS * length**2))
    shape = (batch, HEADS, length)
    vectors = [jax.random.normal(jax.random.key(i), (*shape, HEAD_WIDTH)) for i in range(3)]
    logits = [jax.random.normal(jax.random.key(3), (*shape, length))]
    kinds: dict[str, tuple[Callable[..., Any], list[jax.Array]]] = {
        "weights, softmax": (jax.nn.softmax, logits),
        "weights, geometric": (ops.geometric_attention_weights, logits),
        "attention, softmax": (softmax_attention, vectors),
        "attention, geometric": (ops.geometric_attention, vectors),
    }
    if length > 64:
        for way, options in LONG_WAYS.items():
            kinds[f"attention, {way}"] = functools.partial(ops.geometric_attention, **options), vectors
    forward, backward = {}, {}
    for kind, (function, arguments) in kinds.items():

        def gradient(*arguments: jax.Array, f: Callable[..., Any] = function) -> Any:
            result, pull = jax.vjp(f, *arguments)
            return pull(result)  # a cotangent that is not constant

        forward[kind] = jax.jit(function).lower(*arguments).compile()
        backward[kind] = jax.jit(gradient).lower(*arguments).compile()
    calls = [_call(compiled[kind], kinds[kind][1]) for compiled in (forward, backward) for kind in kinds]
    times = in_turns(calls, effort.repeats)
    forward_times, backward_times = (
        dict(zip(kinds, part, strict=True)) for part in (times[: len(kinds)], times[len(kinds) :])
    )
    rows = []
    for kind in kinds:
        softmax = f"{kind.split(',')[0]}, softmax"
        rows.append(
            {
                "N": length,
                "batch": batch,
                "kind": kind,
                "ms": 1000 * forward_times[kind],
                "ms, gradient": 1000 * backward_times[kind],
                "/ softmax": forward_times[kind] / forward_times[softmax],
                "/ softmax, gradient": backward_times[kind] / backward_times[softmax],
                "MiB": _temporary(forward[kind]),
                "MiB, gradient": _temporary(backward[kind]),
            }
        )
    return rows


def long_geometric_cost(length: int) -> list[dict[str, Any]]:
    """Time and temporary memory of a long sequence's geometric attention, forward and with its gradient."""
    vectors = [jax.random.normal(jax.random.key(i), (length, HEAD_WIDTH)) for i in range(3)]
    kinds = LONG_WAYS | {"blocks of 256": {"block_size": 256}}
    rows = []
    for kind in progress([*kinds], f"geometric {length}"):
        function = functools.partial(ops.geometric_attention, **kinds[kind])
        gradient = jax.grad(lambda *x, f=function: jnp.sum(f(*x) ** 2), (0, 1, 2))
        forward, backward = (jax.jit(f).lower(*vectors).compile() for f in (function, gradient))
        rows.append(
            {
                "N": length,
                "kind": kind,
                "s": _seconds(_call(forward, vectors)),
                "s, gradient": _seconds(_call(backward, vectors)),
                "MiB": _temporary(forward),
                "MiB, gradient": _temporary(backward),
            }
        )
    return rows


def trained_cost(run: Run, length: int, effort: Effort) -> list[dict[str, Any]]:
    """Time of a trained network's forward pass, and the difference of its outputs from those of full attention."""
    task, model = run.experiment.task, run.experiment.bound_model
    example = task.sample(jax.random.key(0), length, length)
    inputs = [x[None] for x in (example.inputs, example.input_mask, example.target_mask)]
    ways = {"everything": {}, "blocks of 64": {"block_size": 64}, "tolerance": {"tolerance": HORIZON_TOLERANCE}}
    variables = {"params": run.seed_params(0)}
    compiled = {way: jax.jit(model.clone(**how).apply).lower(variables, *inputs).compile() for way, how in ways.items()}
    outputs = {way: call(variables, *inputs) for way, call in compiled.items()}
    times = in_turns([_call(call, [variables, *inputs]) for call in compiled.values()], effort.repeats)
    return [
        {
            "N": inputs[0].shape[1],
            "kind": way,
            "ms": 1000 * seconds,
            "/ everything": seconds / times[0],
            "largest difference": float(jnp.max(jnp.abs(outputs[way] - outputs["everything"]))),
        }
        for way, seconds in zip(ways, times, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class LongLookup(TableLookup):
    """Table lookup whose training inputs are padded to more functions than they contain."""

    room: int = 5

    @property
    def train_lengths(self) -> tuple[int, int]:
        """1 .. room."""
        return 1, self.room


def lookup_cost(batch_size: int, tokens: int, effort: Effort) -> dict[str, Any]:
    """Training steps per second with inputs of `tokens` columns."""
    published = configs.load_config("ndr/ctl")
    training = dataclasses.replace(published.training, batch_size=batch_size)
    experiment = dataclasses.replace(published, task=LongLookup(room=tokens - 3), training=training)
    steps = max(2, 32 * effort.steps // batch_size)
    call, seconds = _trainer(experiment, 1, steps)
    (time_of_call,) = in_turns([call], effort.repeats)
    return {"batch": batch_size, "tokens": tokens, "steps/s": steps / time_of_call, "compile s": seconds}


def training_speeds(
    column: str, experiments: Mapping[Any, Experiment], effort: Effort, steps: int | None = None
) -> list[dict[str, Any]]:
    """Training steps per second of one seed of each experiment, timed in turn; `column` names their keys."""
    steps = steps or effort.steps
    trainers = [_trainer(experiments[name], 1, steps) for name in progress([*experiments], "compile")]
    times = in_turns([call for call, _ in trainers], effort.repeats)
    return [
        {column: name, "steps/s": steps / seconds, "compile s": compiled}
        for name, seconds, (_, compiled) in zip(experiments, times, trainers, strict=True)
    ]


def addressing_cost(effort: Effort) -> list[dict[str, Any]]:
    """Microseconds of each operation of a DNC's step, with its gradient, and of its controller's matrix product."""
    rows, slots, width, heads, hidden = MACHINE_ROWS, 50, 16, 4, 128
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def values(*shape: int) -> jax.Array:
        return jax.random.uniform(next(keys), (rows, *shape)) / slots

    memory, link, weights, reads = values(slots, width), values(slots, slots), values(slots), values(heads, slots)
    inputs, kernel = values(hidden + heads * width + 2), jax.random.normal(next(keys), (hidden + 66, 4 * hidden))
    parts: dict[str, tuple[Callable[..., Any], tuple[jax.Array, ...]]] = {
        "content_weights": (ops.content_weights, (memory, values(heads, width), values(heads))),
        "update_usage": (ops.update_usage, (values(slots), weights, reads, values(heads))),
        "allocation_weights": (ops.allocation_weights, (values(slots),)),
        "erase_and_write": (ops.erase_and_write, (memory, values(1, slots), values(1, width), values(1, width))),
        "update_temporal_link": (ops.update_temporal_link, (link, values(slots), weights)),
        "directional_weights": (ops.directional_weights, (link, reads)),
        "reading": (lambda reads, memory: reads @ memory, (reads, memory)),
        "gates of the LSTM": (jnp.matmul, (inputs, kernel)),
    }
    times = in_turns([_many_gradients(function, arguments) for function, arguments in parts.values()], effort.repeats)
    return [{"operation": name, "us": 1e6 * seconds / REPEATED} for name, seconds in zip(parts, times, strict=True)]


def _many_gradients(function: Callable[..., Any], arguments: tuple[jax.Array, ...]) -> Callable[[], Any]:
    """A call that takes the gradient of `function` `REPEATED` times in one program."""

    def size(arguments: tuple[jax.Array, ...]) -> jax.Array:
        return sum((jnp.vdot(x, x) for x in jax.tree.leaves(function(*arguments))), jnp.zeros(()))

    def body(arguments: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
        return jax.tree.map(lambda x, g: x - 1e-9 * g, arguments, jax.grad(size)(arguments)), None

    def run(arguments: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return jax.lax.scan(body, arguments, None, length=REPEATED)[0]

    return _call(jax.jit(run).lower(arguments).compile(), (arguments,))


def long_cost(length: int) -> dict[str, Any]:
    """Seconds and temporary memory for answering sequences of this length with ten times the slots of training."""
    task = tasks.make("dnc_sort")
    model = models.make("dnc", task.spec, slots=500)
    batch = draw(task, jax.random.key(0), jnp.full((MACHINE_ROWS,), length), length)
    inputs = (batch.inputs, batch.input_mask, batch.target_mask)
    params = jax.jit(model.init)(jax.random.key(1), *inputs)
    compiled = jax.jit(model.apply).lower(params, *inputs).compile()
    (seconds,) = in_turns([_call(compiled, (params, *inputs))], 1)
    steps = 2 * length + 1
    return {
        "length": length,
        "seconds": seconds,
        "ms/step": 1e3 * seconds / steps,
        "temporary MiB": _temporary(compiled),
    }


def fla_missing() -> str | None:
    """The reason why the kernels of fla-core cannot be measured here, or None."""
    if jax.default_backend() != "gpu":
        return "its kernels need a GPU"
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("fla.ops.linear_attn")
    except ImportError as error:
        return f"{error} (pip install torch fla-core)"
    return None if torch.cuda.is_available() else "torch sees no GPU"


def fla_cost(length: int, effort: Effort) -> list[dict[str, Any]]:
    """Forward times of causal attention and of the delta rule, ours and those of fla-core, timed in turn.

    The kernels of fla-core are called with unit queries and keys; ours normalise them.
    """
    torch: Any = importlib.import_module("torch")
    chunk_linear_attn = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn
    chunk_delta_rule = importlib.import_module("fla.ops.delta_rule").chunk_delta_rule
    query, key, value = attention_inputs(length)
    half = jnp.full(key.shape[:-1], 0.5, key.dtype)

    def delta(query: jax.Array, key: jax.Array, value: jax.Array, half: jax.Array) -> jax.Array | None:
        return ops.nam_scan(ops.unit(key), value, half, half, queries=ops.unit(query))[1]

    def causal(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
        return ops.normalized_outer_product_attention(query, key, value, causal=True)

    shape = (1, length, HEADS, HEAD_WIDTH)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    beta = torch.full(shape[:-1], 0.5, dtype=torch.bfloat16, device="cuda")

    def theirs(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], None]:
        def call() -> None:
            with torch.no_grad():
                function(*arguments, scale=1.0, **options)
            torch.cuda.synchronize()

        return call

    pairs = {
        "outer product, causal": (
            _call(jax.jit(causal).lower(query, key, value).compile(), (query, key, value)),
            theirs(chunk_linear_attn, q, k, v, normalize=False),
        ),
        "delta rule": (
            _call(jax.jit(delta).lower(query, key, value, half).compile(), (query, key, value, half)),
            theirs(chunk_delta_rule, q, k, v, beta),
        ),
    }
    rows = []
    for name, calls in pairs.items():
        ours, fla = in_turns(calls, effort.repeats)
        rows.append({"S": length, "kernel": name, "ms": 1000 * ours, "fla ms": 1000 * fla, "ours / fla": ours / fla})
    return rows


def devices_cost(effort: Effort, quick: bool) -> list[dict[str, Any]]:
    """Times with the sequence over 1, 2, 4, ... devices. With a single CPU device: in a process with virtual ones."""
    if jax.default_backend() == "cpu" and jax.device_count() == 1:
        return _on_virtual_devices(quick)
    length = effort.sequences[-1]
    arguments = attention_inputs(length)
    counts = [2**i for i in range(jax.local_device_count().bit_length())]

    def call(count: int, causal: bool) -> Callable[[], Any]:
        devices = jax.local_devices()[:count]
        return lambda: jax.block_until_ready(pmap_outer_product_attention(*arguments, causal=causal, devices=devices))

    times = in_turns([call(count, causal) for count in counts for causal in (False, True)], effort.repeats)
    return [
        {
            "devices": count,
            "tokens/s": length / times[2 * i],
            "speed-up": times[0] / times[2 * i],
            "tokens/s, causal": length / times[2 * i + 1],
            "speed-up, causal": times[1] / times[2 * i + 1],
        }
        for i, count in enumerate(counts)
    ]


def _on_virtual_devices(quick: bool) -> list[dict[str, Any]]:
    """The rows of `devices_cost`, measured by this script in a process where the CPU counts as several devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={VIRTUAL_DEVICES}"
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--tables", "devices", "--json", str(figures), *["--quick"] * quick]
        subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, check=True, stdout=subprocess.DEVNULL)
        return json.loads(figures.read_text())["devices"]


def _matrix_product(dtype: Any) -> tuple[Callable[[], Any], int]:
    """A call of a large square matrix product, and its floating-point operations."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    return _call(jax.jit(jnp.matmul).lower(matrix, matrix).compile(), (matrix, matrix)), 2 * size**3


def _call(compiled: Any, arguments: Sequence[Any]) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(compiled(*arguments))


def _temporary(compiled: Any) -> float:
    """MiB of temporary memory of a compiled program."""
    analysis = compiled.memory_analysis()
    return math.nan if analysis is None else analysis.temp_size_in_bytes / 2**20


def _gradient(cell: nn.Module, length: int, rows: int = 32, width: int = 14) -> tuple[Any, tuple[Any, Step]]:
    """The compiled gradient of `Scan` over steps whose second half decodes, and its arguments."""
    inputs = jax.random.normal(jax.random.key(0), (length, rows, width))
    decoding = jnp.broadcast_to(jnp.arange(length)[:, None] >= length // 2, (length, rows))
    steps = Step(inputs, decoding, jnp.ones((length, rows), bool))
    module = Scan(cell)
    variables = module.init(jax.random.key(1), steps)
    gradient = jax.jit(jax.grad(lambda variables, steps: module.apply(variables, steps)))
    return gradient.lower(variables, steps).compile(), (variables, steps)


def _fresh(experiment: Experiment, seeds: int, *, abstract: bool = False) -> State:
    training = experiment.training
    keys = jax.vmap(lambda i: namespaced(jax.random.key(training.seed), i))(np.arange(seeds))
    optimizer = training.transformation
    return initial_state(experiment.bound_model, experiment.task, optimizer, keys, keep_best=False, abstract=abstract)


def _trainer(experiment: Experiment, seeds: int, steps: int) -> tuple[Callable[[], None], float]:
    """A call of `steps` optimiser steps, always the first ones, and the seconds for compiling it."""
    training = dataclasses.replace(experiment.training, seeds=seeds)
    optimizer = training.transformation
    mesh = device_mesh(training.device_count(), training.batch_size)
    state = replicated(_fresh(experiment, seeds), mesh)
    advance = make_advance(experiment.bound_model, experiment.task, optimizer, **training.step_options, mesh=mesh)
    started = time.perf_counter()
    compiled = advance.lower(state, steps).compile()
    seconds = time.perf_counter() - started

    def call() -> None:
        nonlocal state
        state, _ = compiled(state._replace(step=jnp.zeros_like(state.step)))
        jax.block_until_ready(state)

    return call, seconds


def _drawer(experiment: Experiment, seeds: int, steps: int) -> Callable[[], None]:
    """A call that only draws the batches of `_trainer`'s call and sums them."""
    task, batch_size = experiment.task, experiment.training.batch_size
    keys = _fresh(experiment, seeds).members.key

    def drawn(key: jax.Array, step: jax.Array) -> jax.Array:
        batch = task.source("train", batch_size).batch(data_key(key), step)
        return sum((jnp.sum(x, dtype=jnp.float32) for x in batch), jnp.zeros(()))

    def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.vmap(drawn, in_axes=(0, None))(keys, step), None

    compiled = jax.jit(lambda: jax.lax.scan(body, jnp.zeros(seeds), jnp.arange(steps))[0]).lower().compile()
    return lambda: jax.block_until_ready(compiled())


def in_turns(
    calls: Sequence[Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each call: all are warmed up, then timed one after another, `repeats` times."""
    for call in calls:
        call()
    times = [[_seconds(call, clock) for call in calls] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    call()
    return clock() - started


def header(environment: Mapping[str, Any], effort: Effort) -> str:
    """A description of the machine and the measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    commit = f"{environment['commit']}{'+' if environment['dirty'] else ''}"
    device = f"{environment['devices']} x {environment['device']} ({environment['backend']})"
    lines = [
        f"{device}, {os.cpu_count()} CPU cores{load}",
        f"{environment['platform']}, Python {environment['python']}",
        versions,
        f"commit {commit}, {environment['date']}",
        f"medians of {effort.repeats} calls, with {effort.steps} optimiser steps each in training",
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
    """Yields the items, and prints each one's name on stderr first."""
    for item in items:
        print(f"{what} {item} ...", file=sys.stderr, flush=True)
        yield item


if __name__ == "__main__":
    main()
