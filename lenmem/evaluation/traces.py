"""Traces of a model: everything it sows in the `traces` collection, as NumPy arrays with the examples first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from lenmem.errors import parameters_fit
from lenmem.reuse import reused
from lenmem.types import Batch, PyTree, Spec


def collect(model: nn.Module, params: PyTree, batch: Batch, *, required: bool = True) -> dict[str, np.ndarray]:
    """Runs a model on a batch and returns its traces.

    Args:
        model: a Linen module with the model interface and a bound spec.
        params: the parameters of *one* seed (without the seed axis; `jax.tree.map(lambda x: x[s], params)`).
        batch: the examples.
        required: whether a model without traces is a ValueError; False: the result is empty.

    Returns:
        name -> array[B, ...], usually [B, T, ...]. Names are those given to `sow`; if two modules use the same name,
        both are named by their path (`encoder/layer_0/weights`). A value sown repeatedly is numbered (`weights_0`).
    """
    ((_, traces),) = observed(model, params, [batch])
    if not traces and required:
        raise ValueError(f'{type(model).__name__} sows no traces; values appear here through self.sow("traces", ...)')
    return traces


def observed(
    model: nn.Module, params: PyTree, batches: Iterable[Batch]
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """(outputs, traces) of a model on each batch; batches of one shape share one compiled program. See `collect`."""

    # Specs compare equal if only `shapes` differs, but the interface may depend on it.
    arguments = model, getattr(getattr(model, "spec", None), "shapes", None)
    program = _known_program(*arguments)
    axes: dict[Any, dict[str, tuple[int, ...]]] = {}
    for batch in batches:
        outputs, traces = program(params, batch)
        # Scans stack time before the batch, and layers may stack before that. The batch axis is the one that grows.
        shapes = tuple(jax.tree.map(np.shape, jax.tree.leaves(batch)))
        if shapes not in axes:
            larger = jax.eval_shape(program, params, jax.tree.map(lambda x: np.concatenate([x, x]), batch))[1]
            axes[shapes] = {name: value.shape for name, value in larger.items()}
        moved = {name: _batch_major(np.asarray(value), axes[shapes][name]) for name, value in traces.items()}
        yield np.asarray(outputs), moved


def _program(model: nn.Module, shapes: Any) -> Callable[[PyTree, Batch], tuple[jax.Array, PyTree]]:
    """(parameters, batch) -> (outputs, traces), jitted. `shapes` is part of the key of the cache."""

    def run(params: PyTree, batch: Batch) -> tuple[jax.Array, PyTree]:
        with parameters_fit():
            outputs, variables = model.apply(
                {"params": params},
                batch.inputs,
                batch.input_mask,
                batch.target_mask,
                targets=None,
                train=False,
                mutable=["traces"],
            )
        return outputs, _flatten(dict(variables).get("traces", {}))

    return jax.jit(run)


# Other parameters, steps and examples of a network are observed by the same program.
_known_program = reused(_program, 4)


def _flatten(tree: Any) -> dict[str, jax.Array]:
    """Flattens {module: {name: (value, ...)}} to {name: value}."""
    values = {}
    leaves: dict[tuple[str, ...], Any] = dict(traverse_util.flatten_dict(tree))
    for path, sown in leaves.items():
        for i, value in enumerate(sown):
            values[(*path[:-1], path[-1] if len(sown) == 1 else f"{path[-1]}_{i}")] = value
    short = [path[-1] for path in values]
    return {path[-1] if short.count(path[-1]) == 1 else "/".join(path): value for path, value in values.items()}


def _batch_major(value: np.ndarray, larger: tuple[int, ...]) -> np.ndarray:
    """Moves the axis in which the shapes differ to the front."""
    (axes,) = np.nonzero(np.not_equal(value.shape, larger))
    return np.moveaxis(value, axes[0], 0) if axes.size else value


def require_traces(traces: Mapping[str, np.ndarray], names: Sequence[str], user: str) -> None:
    """Raises ValueError, naming the traces that there are, if `user`, such as "a picture of a tape", lacks one."""
    for name in names:
        if name not in traces:
            raise ValueError(f"{user} needs the trace {name!r}; this model has {', '.join(sorted(traces))}")


def column_names(spec: Spec, batch: Batch, example: int, names: Callable[[int], str] = str) -> list[str]:
    """Names of an encoder's columns: the tokens, `begin` and `end`, `?` for an answer slot.

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
    if spec.single_answer:
        return ["begin", *read, "end"]
    return read + ["?"] * int(np.sum(batch.target_mask[example]))


def token_names(vocabulary: int) -> Callable[[int], str]:
    """Names of the packed token ids of a `Transducer`: numbers, then `begin`, `delimiter` and nothing for a blank."""
    special = {vocabulary: "begin", vocabulary + 1: "delimiter", vocabulary + 2: ""}
    return lambda token: special.get(int(token), str(int(token)))


def pca(points: np.ndarray, k: int) -> np.ndarray:
    """Coordinates along the first k principal axes: float[n, d] -> float[n, k], by SVD of the centred points.

    The sign of an axis is chosen so that its component with the largest absolute value is positive. If the points have
    fewer than k axes, the rest is 0. ValueError for other shapes, and for k below 1.
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
