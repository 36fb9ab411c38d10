"""Metrics of trained parameters, per example and averaged over a stream of batches.

Parameters always have a leading axis S, one entry per training seed. One compiled program measures all seeds on the
*same* batches: the batch is closed over, not mapped. Control flow that depends only on the batch (such as skipping
padded steps with `lax.cond`) then stays control flow; if it were mapped, both branches would be computed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import progress
from lenmem.errors import parameters_fit
from lenmem.reuse import reused
from lenmem.seeds import over_seeds
from lenmem.tasks.base import Source, Split, Task, slot_losses
from lenmem.types import Batch, PyTree, at_least_float32

PARTS = 20
"""Number of calls a computation is divided into when its progress is reported."""
SMALLER_IS_BETTER = ("loss", "perplexity")
"""Metrics whose smallest value is the best. All others are fractions."""
Apply = Callable[..., jax.Array]
"""`(params, inputs, input_mask, target_mask, targets=None) -> outputs`: the network of one seed. Traced under the axis
`lenmem.seeds.SEEDS`. Targets are given only if a task asks for it (`Task.forced`)."""
Metrics = Callable[..., dict[str, jax.Array]]
"""`(outputs, batch) -> metric -> float[B]`. If it has a true attribute `forced`, there is a third argument: the outputs
of the network under teacher forcing."""


@dataclasses.dataclass(frozen=True)
class ApplyModel:
    """The `Apply` of a Linen module. Equal modules have equal `ApplyModel`s, so they share compiled programs."""

    model: nn.Module

    def __call__(self, params: PyTree, inputs: Any, input_mask: Any, target_mask: Any, targets: Any = None) -> Any:
        """The model call for evaluation, without noise; with `targets`, under teacher forcing."""
        with parameters_fit():
            asked = (inputs, input_mask, target_mask)
            outputs: Any = self.model.apply({"params": params}, *asked, targets=targets, train=False)
        return at_least_float32(outputs)


@dataclasses.dataclass(frozen=True)
class TaskMetrics:
    """The `Metrics` of a task; with `loss` also the batch's loss, repeated for every example."""

    task: Task
    loss: bool = False

    @property
    def forced(self) -> bool:
        """As `Task.forced`."""
        return self.task.forced

    def __call__(
        self, outputs: jax.Array, batch: Batch, forced_outputs: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """The task's metrics of the answers to a batch, and of the outputs under teacher forcing."""
        metrics = self.task.metrics(outputs, batch)
        if forced_outputs is not None:
            metrics = metrics | nats_and_slots(forced_outputs, batch)
        if self.loss:
            judged = outputs if forced_outputs is None else forced_outputs
            metrics = metrics | {"loss": jnp.broadcast_to(self.task.loss(judged, batch), outputs.shape[:1])}
        return metrics


NATS, SLOTS = "nats", "slots"


def nats_and_slots(outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """-log p of the whole answer, and its number of slots: float[B] each.

    Over any examples, sum(nats) / sum(slots) is the mean loss of a slot, and exp of it the perplexity.
    """
    losses = slot_losses("tokens", outputs, batch.targets)
    nats = jnp.sum(jnp.where(batch.score_mask, losses, 0), axis=-1)
    return {NATS: nats, SLOTS: jnp.sum(batch.score_mask, axis=-1).astype(nats.dtype)}


def is_share(metric: str) -> bool:
    """Whether a metric, possibly named with its split, is a fraction."""
    return not any(name in metric for name in SMALLER_IS_BETTER)


def with_perplexity(means: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means over the same examples, with the perplexity exp(mean nats / mean slots) in place of nats and slots.

    A network that is sure of wrong answers may have an infinite one. It is replaced by the largest float, since JSON
    has no infinity.
    """
    if NATS not in means:
        return means
    rest = {name: value for name, value in means.items() if name not in (NATS, SLOTS)}
    with np.errstate(over="ignore"):
        perplexity = np.exp(np.asarray(means[NATS] / means[SLOTS], np.float64))
    return rest | {"perplexity": np.nan_to_num(perplexity, nan=np.nan)}


def evaluate(
    apply: Apply, params: PyTree, metrics: Metrics, source: Source, key: jax.Array, batches: int, *, start: int = 0
) -> dict[str, np.ndarray]:
    """Mean of the metrics over batches `start .. start + batches - 1` of a stream.

    `apply`, `metrics` and `source` are compiled once for equal values, if they are hashable.

    Args:
        apply: the network; `ApplyModel(model)` for a Linen module with a bound spec.
        params: its parameters with a leading seed axis S on every leaf.
        metrics: `TaskMetrics(task)` for those of a task.
        source: the stream.
        key: random key of the stream.
        batches: number of batches, at least 1.
        start: number of the first batch.

    Returns:
        metric -> float[S]. Seeds with non-finite parameters are NaN: their outputs still have an argmax, and a
        constant answer can be right.
    """
    if batches < 1:
        raise ValueError(f"batches must be at least 1, got {batches}")
    values = example_metrics(apply, params, metrics, source, key, np.arange(start, start + batches))
    return with_perplexity({name: per_example.mean(axis=(0, 2)) for name, per_example in values.items()})


def score(
    model: nn.Module,
    params: PyTree,
    task: Task,
    samples: int = 3200,
    batch_size: int = 64,
    seed: int = 0,
    *,
    split: Split = "test",
) -> dict[str, np.ndarray]:
    """Mean of `task.metrics` over `samples` examples of `task.source(split, batch_size)`, drawn from `seed`; over each
    once if the split has fewer.

    Returns metric -> float[S]. The lengths are drawn as in the split, unlike in `length_curve`. Raises ValueError for
    `samples` or `batch_size` below 1, and for parameters without a common axis of seeds.
    """
    if samples < 1 or batch_size < 1:
        raise ValueError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}")
    samples = min(samples, task.examples_of(split) or samples)
    batch_size = min(batch_size, samples)
    source, numbers = task.source(split, batch_size), np.arange(-(-samples // batch_size))
    values = example_metrics(ApplyModel(model), params, TaskMetrics(task), source, jax.random.key(seed), numbers)
    examples = {name: per_seed(per_example)[:, :samples] for name, per_example in values.items()}
    return with_perplexity({name: of_seed.mean(axis=1) for name, of_seed in examples.items()})


def per_seed(values: np.ndarray) -> np.ndarray:
    """[items, S, B] -> [S, items * B], in the order of drawing."""
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


def example_metrics(
    apply: Apply, params: PyTree, metrics: Metrics, source: Source, key: jax.Array, items: PyTree
) -> dict[str, np.ndarray]:
    """Metrics of every example of the batches `source.batch(key, item)`, as NumPy: metric -> float64[items, S, B]."""
    with progress.track("scoring") as at:
        parts = dispatch_parts(apply, params, metrics, source, key, items)
        return fetch_parts(parts, len(jax.tree.leaves(items)[0]), at)


def dispatch_parts(
    apply: Apply, params: PyTree, metrics: Metrics, source: Source, key: jax.Array, items: PyTree
) -> list[dict[str, jax.Array]]:
    """`example_metrics` without waiting for the results, so the next program can compile while this one runs.

    If progress is reported, the items are divided into up to `PARTS` calls of one program. All calls have the same
    number of items: the last item is repeated at the end, and `fetch_parts` drops the repeats. The program is compiled
    once for equal `apply`, `metrics` and `source` (`lenmem.reuse`).
    """
    seeds(params)
    program, count = _known_program(apply, metrics, source), len(jax.tree.leaves(items)[0])
    if not progress.wanted():
        return [program(params, key, items)]
    size = -(-count // PARTS)
    numbers = np.minimum(np.arange(-(-count // size) * size), count - 1).reshape(-1, size)
    return [program(params, key, jax.tree.map(lambda x, part=part: np.asarray(x)[part], items)) for part in numbers]


def fetch_parts(parts: list[dict[str, jax.Array]], count: int, at: progress.At) -> dict[str, np.ndarray]:
    """`fetch` of `count` items; calls `at` with the fraction that is done."""
    fetched = []
    for number, part in enumerate(parts, 1):
        fetched.append(fetch(part))
        at(number / len(parts))
    return {name: np.concatenate([part[name] for part in fetched])[:count] for name in fetched[0]}


def lowered_metrics(
    apply: Apply, params: PyTree, metrics: Metrics, source: Source, key: jax.Array, items: PyTree
) -> jax.stages.Lowered:
    """The program of `dispatch_parts`, lowered for the devices of its arrays, which may be shapes with a sharding."""
    return jax.jit(functools.partial(_metrics, apply, metrics, source)).lower(params, key, items)


def fetch(values: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Waits for the metrics of a program. Returns float64, in which means of many float32 values are accurate.

    A compiled program returns its metrics in alphabetical order; the two metrics that every task has are put first.
    """
    first = [name for name in ("token_accuracy", "exact_match") if name in values]
    names = first + [name for name in values if name not in first]
    return {name: np.asarray(values[name], dtype=np.float64) for name in names}


def seeds(params: PyTree) -> int:
    """S, the common leading axis of all parameters. ValueError if there is none."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(params)]
    leading = {shape[0] if shape else None for shape in shapes}
    if len(leading) != 1 or None in leading:
        raise ValueError(
            "every parameter needs the same leading axis of seeds (a single seed: jax.tree.map(lambda x: x[None], "
            f"params)); got leading axes {sorted(leading, key=str)}"
        )
    return shapes[0][0]


def _metrics(
    apply: Apply, metrics: Metrics, source: Source, params: PyTree, key: jax.Array, items: PyTree
) -> dict[str, jax.Array]:
    alive = functools.reduce(
        jnp.logical_and,
        [jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(params)],
    )

    def of_item(item: PyTree) -> dict[str, jax.Array]:
        batch = source.batch(key, item)

        def of_seed(params: PyTree) -> dict[str, jax.Array]:
            asked = batch.inputs, batch.input_mask, batch.target_mask
            if getattr(metrics, "forced", False):
                return metrics(apply(params, *asked), batch, apply(params, *asked, batch.targets))
            return metrics(apply(params, *asked), batch)

        of_seeds = over_seeds(of_seed)(params)
        return {name: jnp.where(alive[:, None], value, jnp.nan) for name, value in of_seeds.items()}

    return jax.lax.map(of_item, items)


def _program(apply: Apply, metrics: Metrics, source: Source) -> Callable[..., dict[str, jax.Array]]:
    """(parameters, key, items) -> metrics, jitted for a program that runs once or a few times.

    On a CPU compiling takes longer than running. LLVM's lowest optimisation level compiles in two thirds of the time,
    and the program runs as fast, since most time goes into matrix products that XLA does not compile.
    """
    chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")  # by the user, or by the tests
    options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" and not chosen else None
    return jax.jit(functools.partial(_metrics, apply, metrics, source), compiler_options=options)


_known_program = reused(_program, 64)
