"""One file to give away: parameters and what is known of them, as safetensors.

The file holds every parameter under its path joined by `/` and, as metadata, one JSON string. It can be opened by any
safetensors reader, and opening it runs nothing. It may also hold the whole state of a training, each leaf under
`.state/` and its path, so that the training can go on elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lenmem.leaves import check_fit, from_leaves, named_leaves
from lenmem.serialize import write_whole
from lenmem.types import PyTree

_KEY = "lenmem"
_STATE = ".state/"


def export_params(
    path: str | os.PathLike,
    params: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    state: PyTree = None,
) -> None:
    """Write nested dicts of arrays, and JSON-able `metadata` (the experiment as plain data).

    With `state`, any pytree of arrays, its leaves are written beside the parameters. The file appears whole or not at
    all; an existing one is replaced. Raises `ValueError` for parameters that are not nested dicts of arrays, and names
    that contain `/`.
    """
    path = Path(path)
    try:
        text = json.dumps(metadata, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be plain JSON data: {error}") from error
    leaves = {_STATE + name: np.asarray(leaf, order="C") for name, leaf in named_leaves(state).items()}
    data = safetensors.numpy.save(_flatten(params) | leaves, metadata={_KEY: text})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


def import_params(path: str | os.PathLike) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """(params, metadata) of a file written by `export_params`; a plain safetensors file has metadata {}."""
    path = Path(path)
    flat, metadata = _read(path, lambda name: not name.startswith(_STATE))
    params: dict[str, PyTree] = {}
    for name, value in flat.items():
        node = params
        *parents, last = name.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path}: {name!r} lies below another parameter")
        if last in node:
            raise ValueError(f"{path}: {name!r} is both a parameter and a group of parameters")
        node[last] = jnp.asarray(value)
    return params, metadata


def import_state(path: str | os.PathLike, like: PyTree) -> PyTree:
    """The state in a file written by `export_params`, as NumPy arrays in the structure of `like`, whose leaves give the
    shapes and dtypes. Raises `ValueError` where they are others, and where the file has no state."""
    path = Path(path)
    flat, _ = _read(path, lambda name: name.startswith(_STATE))
    if not flat:
        raise ValueError(f"{path} has parameters only, nothing to go on training with; export it --with-optimizer")
    leaves = {name.removeprefix(_STATE): leaf for name, leaf in flat.items()}
    check_fit(f"the state in {path}", leaves, named_leaves(like))
    return from_leaves(leaves, like)


def _read(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """({name: array} of the wanted names, metadata) of a file."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a safetensors file")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads((file.metadata() or {}).get(_KEY, "{}"))
            flat = {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: the metadata must be a JSON object, got {type(metadata).__name__}")
    return flat, metadata


def _flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """{path: array}. Empty groups are dropped."""
    if not isinstance(params, Mapping):
        raise ValueError(f"params must be nested dicts of arrays, got a {type(params).__name__}")
    flat: dict[str, np.ndarray] = {}
    for name, value in params.items():
        if not isinstance(name, str) or "/" in name or not name:
            raise ValueError(f'the parameter name {prefix}{name!r} must be a string without "/"')
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, jax.Array | np.ndarray | np.generic):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                raise ValueError(f"{prefix}{name}: export jax.random.key_data(key), not the key itself")
            flat[prefix + name] = np.asarray(value, order="C")
        else:
            raise ValueError(f"{prefix}{name}: parameters must be arrays, got a {type(value).__name__}")
    return flat
