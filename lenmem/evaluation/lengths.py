"""Accuracy by length, the central measurement of the library.

Lengths are grouped into buckets with one static capacity each, a power of two. A bucket is one compiled program that
runs over its lengths one after another; the length itself is traced. A curve of 100 lengths compiles four programs.
"""

from __future__ import annotations

import csv
import dataclasses
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from lenmem import progress, tasks
from lenmem.evaluation.metrics import (
    Apply,
    ApplyModel,
    TaskMetrics,
    dispatch_parts,
    fetch_parts,
    lowered_metrics,
    per_seed,
    score,
    seeds,
    with_perplexity,
)
from lenmem.fields import PositiveInt, Seed, check_fields
from lenmem.files import json_number
from lenmem.keys import namespaced
from lenmem.tasks.base import Task, occurs
from lenmem.types import Batch, PyTree

__all__ = ["Evaluation", "LengthCurve", "length_curve", "score"]

_FULL_BATCH_WIDTH = 257
"""Up to this many inputs or answers, 256 symbols and an end, batches have full size; beyond it they shrink in
proportion, to bound memory."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Settings for the evaluation of a trained model."""

    lengths: tuple[int, ...] | None = None
    """Lengths of the curve. None: the task's `curve_lengths`, usually every length from training to test."""
    samples: PositiveInt = 64
    """Examples per length of the curve."""
    seed: Seed = 0
    """Seed of the examples."""
    test_examples: PositiveInt = 3200
    """Examples of the `test` split for the score."""
    batch_size: PositiveInt = 64
    """Number of examples evaluated at a time."""
    smallest_capacity: PositiveInt = 16
    """Up to this length all lengths of a curve share one compiled program. Larger: fewer programs, more padding."""

    def __post_init__(self) -> None:
        check_fields(self, "samples", "seed", "test_examples", "batch_size", "smallest_capacity")
        if self.lengths is not None:
            checked_lengths(self.lengths)

    def lengths_for(self, task: Task) -> tuple[int, ...]:
        """The given lengths, or those of the task's `curve_lengths` that occur, as small sets of rows may lack some.
        ValueError if the task has no examples of a given length, or of any."""
        if self.lengths is None:
            lengths = tuple(length for length in task.curve_lengths if occurs(task, length))
            if not lengths:
                raise ValueError(
                    f"no length to measure: train_lengths is {task.train_lengths}, test_lengths {task.test_lengths}; "
                    "lengths of tests are longer, or give evaluation.lengths"
                )
            return lengths
        for length in self.lengths:
            task.check_length(length)
        return self.lengths


@dataclasses.dataclass(eq=False)
class LengthCurve:
    """Metrics by length, for every seed."""

    label: str
    """Name of the curve, for legends and tables."""
    lengths: np.ndarray
    """int[L], ascending and without repetition."""
    values: dict[str, np.ndarray]
    """metric -> float[S, L]; NaN for seeds whose parameters are not finite."""
    train_lengths: tuple[int, int]
    """Smallest and largest training length, both included."""
    samples: int
    """Number of examples per length."""
    test_lengths: tuple[int, int] | None = None
    """Smallest and largest length of the task's out-of-range test, if known."""
    ceiling: np.ndarray | None = None
    """float[L]: the best possible token accuracy, if inputs do not determine answers; None: 1."""
    task: str = ""
    """Name of the task; empty if unknown."""
    unit: str = ""
    """The unit of a length (tokens, digits, depth); empty if unknown."""

    @property
    def seeds(self) -> int:
        """Number of seeds S."""
        return next(iter(self.values.values())).shape[0]

    @property
    def trained(self) -> np.ndarray:
        """bool[L]: whether a length is one of training."""
        return (self.train_lengths[0] <= self.lengths) & (self.lengths <= self.train_lengths[1])

    @property
    def beyond(self) -> np.ndarray:
        """bool[L]: whether a length is longer than those of training."""
        return self.lengths > self.train_lengths[1]

    def at(self, length: int) -> dict[str, np.ndarray]:
        """metric -> float[S] at one length. ValueError if it was not measured."""
        (index,) = np.nonzero(self.lengths == length)
        if not index.size:
            raise ValueError(f"length {length} was not measured; measured were {_ranges(self.lengths)}")
        return {name: values[:, index[0]] for name, values in self.values.items()}

    def mean_beyond(self, metric: str = "token_accuracy") -> np.ndarray:
        """float[S]: the mean of a metric over all lengths from the first above those of training to the longest.

        It is interpolated between measured lengths, so that a sparse grid gives the same weights as a full one. Up to
        500 it is the score of the Chomsky-hierarchy tasks. ValueError if no longer length was measured.
        """
        from lenmem.evaluation.statistics import mean_over_lengths

        beyond = self.lengths[self.beyond]
        if not beyond.size:
            raise ValueError(
                f"no length above {self.train_lengths[1]} was measured; measured were {_ranges(self.lengths)}"
            )
        first = max(self.train_lengths[1] + 1, int(self.lengths.min()))
        return mean_over_lengths(self.lengths, self.values[metric], first=first, last=int(beyond.max()))

    @classmethod
    def merged(cls, curves: Sequence[LengthCurve]) -> LengthCurve:
        """One curve of all lengths and of the metrics that all curves have. In all else the first curve counts."""
        lengths, order = np.unique(np.concatenate([curve.lengths for curve in curves]), return_index=True)
        values = {
            name: np.concatenate([curve.values[name] for curve in curves], axis=1)[:, order]
            for name in curves[0].values
            if all(name in curve.values for curve in curves)
        }
        ceilings = [np.ones(len(curve.lengths)) if curve.ceiling is None else curve.ceiling for curve in curves]
        ceiling = np.concatenate(ceilings)[order]
        ceiling = ceiling if np.any(ceiling < 1) else None
        return dataclasses.replace(curves[0], lengths=lengths, values=values, ceiling=ceiling)

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one line per length: the medians over seeds, then the lowest and highest, as `<metric>_low/_high`."""
        from lenmem.evaluation.statistics import summarise

        summaries = {name: summarise(values) for name, values in self.values.items()}
        header = ["length", *summaries, *(f"{name}_{end}" for name in summaries for end in ("low", "high"))]
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            for i, length in enumerate(self.lengths):
                medians = [summary.median[i] for summary in summaries.values()]
                ends = [end[i] for summary in summaries.values() for end in (summary.low, summary.high)]
                writer.writerow([int(length), *(f"{value:.6g}" for value in medians + ends)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, with the values of every seed. NaN becomes None, since strict JSON has no NaN."""
        return {
            "label": self.label,
            "lengths": self.lengths.tolist(),
            "values": {
                name: [list(map(json_number, row)) for row in np.asarray(values).tolist()]
                for name, values in self.values.items()
            },
            "train_lengths": list(self.train_lengths),
            "test_lengths": None if self.test_lengths is None else list(self.test_lengths),
            "samples": self.samples,
            "task": self.task,
            "unit": self.unit,
        } | ({} if self.ceiling is None else {"ceiling": self.ceiling.tolist()})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LengthCurve:
        """The inverse of `to_dict`."""
        test_lengths = data.get("test_lengths")
        return cls(
            label=data["label"],
            lengths=np.asarray(data["lengths"], dtype=np.int64),
            values={name: np.asarray(values, dtype=np.float64) for name, values in data["values"].items()},
            train_lengths=(data["train_lengths"][0], data["train_lengths"][1]),
            samples=data["samples"],
            test_lengths=None if test_lengths is None else (test_lengths[0], test_lengths[1]),
            ceiling=np.asarray(data["ceiling"]) if "ceiling" in data else None,
            task=data.get("task", ""),
            unit=data.get("unit", ""),
        )


def length_curve(
    model: nn.Module | Apply,
    params: PyTree,
    task: Task,
    lengths: Iterable[int],
    samples: int,
    key: jax.Array,
    *,
    label: str = "",
    batch_size: int = 64,
    smallest_capacity: int = 16,
) -> LengthCurve:
    """Evaluates a model at every given length, with all seeds at once and on the same examples.

    Example i of a length is drawn from `key` namespaced by ("curve", length, i) only: it does not depend on the other
    lengths, on the number of samples, on the bucket or on `batch_size`.

    Args:
        model: a Linen module with the model interface and a bound spec; or the network as an `Apply`.
        params: its parameters with a leading seed axis S on every leaf.
        task: the source of examples and metrics.
        lengths: lengths in the task's unit, each at least 1, in any order; repetitions count once.
        samples: examples per length, at least 1.
        key: random key of the examples.
        label: name of the curve.
        batch_size: examples evaluated at a time (fewer with more than 257 inputs or answers, in proportion).
        smallest_capacity: up to this length all lengths share one compiled program.

    Returns:
        the curve, ascending in length.

    Raises ValueError for lengths that the task does not have, for numbers below 1, and for parameters without a common
    axis of seeds.
    """
    apply = ApplyModel(model) if isinstance(model, nn.Module) else model
    lengths = checked_lengths(lengths)
    if samples < 1 or batch_size < 1:
        raise ValueError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}")
    seeds(params)
    for length in lengths:
        task.check_length(length)

    buckets: dict[int, list[int]] = {}
    for length in lengths:
        buckets.setdefault(_capacity(length, lengths[-1], smallest_capacity), []).append(length)

    columns: dict[str, list[np.ndarray]] = {}
    with progress.track(f"measuring {label}".rstrip()) as at:
        # Dispatch everything, then fetch: a bucket runs while the next one compiles.
        running, cost = [], sum(capacity * len(members) for capacity, members in buckets.items())
        for capacity, members in buckets.items():
            source, items = _examples(task, capacity, members, samples, batch_size)
            parts = dispatch_parts(apply, params, TaskMetrics(task), source, key, items)
            running.append((members, parts, len(items[0]), capacity * len(members) / cost))

        done = 0.0
        for members, parts, count, share in running:
            fetched = fetch_parts(parts, count, lambda part, done=done, share=share: at(done + part * share))
            done += share
            means = {}
            for name, value in fetched.items():
                examples = per_seed(value).reshape(value.shape[1], len(members), -1)[:, :, :samples]
                means[name] = examples.mean(axis=-1)
            for name, value in with_perplexity(means).items():
                columns.setdefault(name, []).append(value)
    ceiling = np.array([task.ceiling_at(length) for length in lengths])
    return LengthCurve(
        label=label,
        lengths=np.asarray(lengths),
        values={name: np.concatenate(parts, axis=1) for name, parts in columns.items()},
        train_lengths=task.train_lengths,
        samples=samples,
        test_lengths=task.test_lengths,
        ceiling=ceiling if (ceiling < 1).any() else None,
        task=tasks.name_of(task),
        unit=task.unit,
    )


def lowered(
    apply: Apply, params: PyTree, task: Task, length: int, samples: int, key: jax.Array, *, batch_size: int = 64
) -> jax.stages.Lowered:
    """The program of `length_curve` for this length as the longest one, lowered for the devices of its arrays.

    `params` and `key` may be shapes with a sharding.
    """
    source, items = _examples(task, length, [length], samples, batch_size)
    return lowered_metrics(apply, params, TaskMetrics(task), source, key, items)


def _examples(
    task: Task, capacity: int, lengths: Sequence[int], samples: int, batch_size: int
) -> tuple[_AtLength, tuple[np.ndarray, np.ndarray]]:
    """A source of the examples of a bucket, and the items to draw from it."""
    most = max(1, min(batch_size, batch_size * _FULL_BATCH_WIDTH // max(task.shapes(capacity))))
    batches = -(-samples // most)
    rows = -(-samples // batches)
    items = (np.repeat(lengths, batches), np.tile(np.arange(batches) * rows, len(lengths)))
    return _AtLength(task, capacity, rows), items


def checked_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths as ascending integers, each once. Raises ValueError for others than 1 to 2^31 - 1."""
    try:
        checked = sorted({operator.index(length) for length in lengths})
    except TypeError as error:
        raise ValueError(f"lengths must be integers, got {lengths!r}") from error
    if not checked:
        raise ValueError("lengths is empty; give at least one length")
    if checked[0] < 1:
        raise ValueError(f"lengths must be at least 1, got {checked[0]}")
    if checked[-1] >= 2**31:
        raise ValueError(f"lengths must be below 2^31, got {checked[-1]}")
    return tuple(checked)


@dataclasses.dataclass(frozen=True)
class _AtLength:
    """A source of `rows` examples of a length, starting at number `first`."""

    task: Task
    capacity: int
    rows: int

    def batch(self, key: jax.Array, step: tuple[jax.Array, jax.Array]) -> Batch:
        """The examples of a length; a step is (length, first)."""
        length, first = step
        key = namespaced(key, "curve", length)
        numbers = first + jax.numpy.arange(self.rows)
        return jax.vmap(lambda i: self.task.sample(jax.random.fold_in(key, i), length, self.capacity))(numbers)


def _capacity(length: int, longest: int, smallest: int) -> int:
    """The next power of two, at least `smallest` and at most the longest length asked for.

    Sizes may grow exponentially with the length (depth of a tree), so no more than the longest length is allocated.
    """
    return min(max(smallest, 1 << (length - 1).bit_length()), longest)


def _ranges(lengths: np.ndarray) -> str:
    """[1, 2, 3, 7] -> '1-3, 7'."""
    breaks = np.flatnonzero(np.diff(lengths) != 1) + 1
    return ", ".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in np.split(lengths, breaks) if len(run)
    )
