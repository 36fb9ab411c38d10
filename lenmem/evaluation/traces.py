"""What a model did, step by step: everything it sows in the `traces` collection, as NumPy arrays by example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from lenmem.errors import parameters_fit
from lenmem.types import Batch, PyTree, Spec


def collect(model: nn.Module, params: PyTree, batch: Batch, *, required: bool = True) -> dict[str, np.ndarray]:
    """Run a model on a batch and return its traces.

    Args:
        model: a Linen module with the model call, its spec bound.
        params: the parameters of *one* seed (without the seed axis; `jax.tree.map(lambda x: x[s], params)`).
        batch: the examples.
        required: a model that sows nothing is a ValueError; False: it has no traces.

    Returns:
        name -> array[B, ...], usually [B, T, ...]. Names are those of `sow`; where two modules use the same one, both
        are named by their path (`encoder/layer_0/weights`), and a value sown repeatedly is numbered (`weights_0`).

    """

    def run(batch: Batch) -> PyTree:
        with parameters_fit():
            _, variables = model.apply(
                {"params": params},
                batch.inputs,
                batch.input_mask,
                batch.target_mask,
                targets=None,
                train=False,
                mutable=["traces"],
            )
        return _flatten(dict(variables).get("traces", {}))

    traces = jax.jit(run)(batch)
    if not traces and not required:
        return {}
    if not traces:
        raise ValueError(f'{type(model).__name__} sows no traces; values appear here through self.sow("traces", ...)')

    # Scans stack time before the batch, layers may stack before that. The batch axis is the one that grows with it.
    larger = jax.eval_shape(run, jax.tree.map(lambda x: np.concatenate([x, x]), batch))
    return {name: _batch_major(np.asarray(value), larger[name].shape) for name, value in traces.items()}


def _flatten(tree: Any) -> dict[str, jax.Array]:
    """Nested {module: {name: (value, ...)}} to {name: value}."""
    values = {}
    leaves: dict[tuple[str, ...], Any] = dict(traverse_util.flatten_dict(tree))
    for path, sown in leaves.items():
        for i, value in enumerate(sown):
            values[(*path[:-1], path[-1] if len(sown) == 1 else f"{path[-1]}_{i}")] = value
    short = [path[-1] for path in values]
    return {path[-1] if short.count(path[-1]) == 1 else "/".join(path): value for path, value in values.items()}


def _batch_major(value: np.ndarray, larger: tuple[int, ...]) -> np.ndarray:
    """Move the axis in which the shapes differ to the front."""
    (axes,) = np.nonzero(np.not_equal(value.shape, larger))
    return np.moveaxis(value, axes[0], 0) if axes.size else value


class Memory(NamedTuple):
    """What one example left in a Lie-access memory, and where it was read: W writes and R reads in key space."""

    keys: np.ndarray
    """float[W, d]: the keys written, in order of time."""
    strengths: np.ndarray
    """float[W] in [0, 1]: the strength of each write."""
    tokens: np.ndarray | None
    """int[W]: the token eaten at each write; None for inputs without tokens."""
    reads: np.ndarray
    """float[R, d]: the read head at the steps that answer."""


def memory_of(traces: Mapping[str, np.ndarray], example: int) -> Memory:
    """The writes (steps that are valid and not decoding) and reads (valid and decoding) of one example.

    Needs the traces `write_head`, `read_head`, `decoding` and `valid`; writes without `write_strength` are of full
    strength. Raises ValueError where one is missing or the example does not exist.
    """
    for name in ("write_head", "read_head", "decoding", "valid"):
        if name not in traces:
            raise ValueError(
                f"a picture of Lie-access memory needs the trace {name!r}; this model has {', '.join(sorted(traces))}"
            )
    examples = traces["valid"].shape[0]
    if not 0 <= example < examples:
        raise ValueError(f"example must lie between 0 and {examples - 1}, got {example}")
    valid, decoding = traces["valid"][example], traces["decoding"][example]
    writes = valid & ~decoding
    keys = traces["write_head"][example][writes]
    strengths = traces["write_strength"][example][writes] if "write_strength" in traces else np.ones(len(keys))
    return Memory(
        keys=keys,
        strengths=strengths,
        tokens=traces["token"][example][writes] if "token" in traces else None,
        reads=traces["read_head"][example][valid & decoding],
    )


class Tape(NamedTuple):
    """Where the heads of a tape machine were in one example: steps x cells, the cells counted from where they began."""

    write: np.ndarray
    """float[T, cells]: the write head."""
    read: np.ndarray
    """float[T, cells]: the read head."""
    jump: np.ndarray | None
    """float[T, cells]: where a jump would have led at each step; None for a machine that cannot jump."""
    cells: np.ndarray
    """int[cells]: number of each cell, 0 for the one in which the heads began."""


def tape_of(traces: Mapping[str, np.ndarray], example: int, *, layer: int = 0, tape: int = 0) -> Tape:
    """The heads of one tape of one layer of a NAM Turing machine, cut to the cells where they ever were.

    Needs the traces `read_position` and `write_position` [B, T, tapes, cells] of at least one layer. Raises ValueError
    where they are missing, or the example, layer or tape does not exist.
    """
    layers = sorted(name.removesuffix("read_position") for name in traces if name.endswith("read_position"))
    if not layers:
        raise ValueError(
            f"a picture of a tape needs the trace 'read_position'; this model has {', '.join(sorted(traces))}"
        )
    shape = traces[f"{layers[0]}read_position"].shape
    for name, got, count in (("example", example, shape[0]), ("layer", layer, len(layers)), ("tape", tape, shape[2])):
        if not 0 <= got < count:
            raise ValueError(f"{name} must lie between 0 and {count - 1}, got {got}")
    heads = {
        name: np.asarray(traces[layers[layer] + name][example, :, tape], np.float64)
        for name in ("write_position", "read_position", "jump_target")
        if layers[layer] + name in traces
    }
    visited = np.nonzero(np.any([np.abs(head).max(axis=0) > 0.01 for head in heads.values()], axis=0))[0]
    cells = np.arange(visited[0], visited[-1] + 1)
    start = int(np.argmax(heads["read_position"][0]))
    write, read, jump = (
        heads[name][:, cells] if name in heads else None for name in ("write_position", "read_position", "jump_target")
    )
    assert write is not None and read is not None
    return Tape(write, read, jump, cells - start)


class DataFlow(NamedTuple):
    """What the columns of an encoder with one layer did in each of its steps, in one example: T steps, R heads."""

    attention: np.ndarray
    """float[T, R, N, N]: where each column (second last axis) looked (last axis)."""
    gates: np.ndarray | None
    """float[T, N]: how far each column was rewritten, the mean over its units; None for layers without a gate."""
    halting: np.ndarray | None
    """float[T, N]: the weight of each step in what is read of a column; None without adaptive computation time."""

    @property
    def steps_used(self) -> np.ndarray:
        """int[N]: steps until each column halted; all steps without adaptive computation time."""
        if self.halting is None:
            return np.full(self.attention.shape[-1], len(self.attention))
        return np.sum(self.halting > 0, axis=0)


def data_flow_of(traces: Mapping[str, np.ndarray], example: int) -> DataFlow:
    """The data flow of one example, cut to its real columns.

    Needs the traces `attention` [B, T, R, N, N] and `column` bool[B, N]. Raises ValueError where one is missing or the
    example does not exist.
    """
    attention = traces.get("attention")
    if attention is None or attention.ndim != 5 or "column" not in traces:
        raise ValueError(
            "a picture of data flow needs the traces 'attention' of every step and 'column'; this model has "
            f"{', '.join(sorted(traces))}"
        )
    if not 0 <= example < len(attention):
        raise ValueError(f"example must lie between 0 and {len(attention) - 1}, got {example}")
    real = np.nonzero(traces["column"][example])[0]

    def of_columns(name: str) -> np.ndarray | None:
        return np.asarray(traces[name][example][:, real], np.float64) if name in traces else None

    weights = np.asarray(attention[example], np.float64)[..., real, :][..., real]
    return DataFlow(weights, of_columns("gate"), of_columns("halting"))


def column_names(spec: Spec, batch: Batch, example: int, names: Callable[[int], str] = str) -> list[str]:
    """What the columns of an encoder read: the tokens, `begin` and `end`, `?` for an answer slot.

    `names` maps a token id to its name. Inputs without tokens are numbered.
    """
    inputs = np.asarray(batch.inputs[example])[np.asarray(batch.input_mask[example])]
    if spec.takes_tokens:
        read = [names(int(token)) for token in inputs]
    elif spec.vocabulary:
        read = [names(int(row[: spec.vocabulary].argmax())) for row in inputs]
    else:
        read = [str(i) for i in range(len(inputs))]
    if spec.alignment == "aligned":
        return read
    if spec.shapes is not None and spec.shapes(16)[1] == 1:
        return ["begin", *read, "end"]
    return read + ["?"] * int(np.sum(batch.target_mask[example]))


def token_names(vocabulary: int) -> Callable[[int], str]:
    """Names of the packed token ids of a `Transducer`: numbers, then `begin`, `delimiter` and nothing for a blank."""
    special = {vocabulary: "begin", vocabulary + 1: "delimiter", vocabulary + 2: ""}
    return lambda token: special.get(int(token), str(int(token)))


def pca(points: np.ndarray, k: int) -> np.ndarray:
    """Coordinates along the first k principal axes: float[n, d] -> float[n, k], by SVD of the centred points.

    The sign of an axis is chosen such that its largest component in absolute value is positive. Where the points have
    fewer than k axes, the rest is 0.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or not len(points):
        raise ValueError(f"points must have shape [n, d] with n at least 1, got {points.shape}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:k]
    axes = axes * np.where(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1) < 0, -1.0, 1.0)
    projected = centred @ axes.T
    return np.pad(projected, ((0, 0), (0, k - projected.shape[1])))
