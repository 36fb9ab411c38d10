"""Parameters and their metadata in one safetensors file, for sharing.

The file contains every parameter under its path joined by `/` and, as metadata, one JSON string. Any safetensors reader
can open it, and opening it executes no code. It may also contain the complete state of a training, each leaf under
`.state/` and its path, so that the training can be continued elsewhere.
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

from lenmem.files import make_directory, write_whole
from lenmem.leaves import check_fit, from_leaves, named_leaves
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
    """Writes nested dicts of arrays, and JSON `metadata` (the experiment as plain data).

    `state` is any pytree of arrays, whose leaves are written to the same file. The file is written atomically; an
    existing file is replaced. Raises `ValueError` for parameters that are not nested dicts of arrays, and for names
    that contain `/`.
    """
    path = Path(path)
    try:
        text = json.dumps(metadata, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be plain JSON data: {error}") from error
    leaves = {_STATE + name: np.asarray(leaf, order="C") for name, leaf in named_leaves(state).items()}
    data = safetensors.numpy.save(_flatten(params) | leaves, metadata={_KEY: text})
    make_directory(path.parent)
    try:
        write_whole(path, data)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


def import_params(path: str | os.PathLike) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """(params, metadata) of a file that `export_params` wrote. The metadata of other safetensors files is {}."""
    path = Path(path)
    flat, metadata = _read(path, lambda name: not name.startswith(_STATE))
    params: dict[str, PyTree] = {}
    for name, value in flat.items():
        node = params
        *parents, last = name.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path}: {name!r} is below another parameter")
        if last in node:
            raise ValueError(f"{path}: {name!r} is both a parameter and a group of parameters")
        node[last] = jnp.asarray(value)
    return params, metadata


def import_state(path: str | os.PathLike, like: PyTree) -> PyTree:
    """The state in a file that `export_params` wrote, as NumPy arrays in the structure of `like`. Raises `ValueError`
    if names, shapes or dtypes differ from those of `like`, or if the file has no state."""
    path = Path(path)
    flat, _ = _read(path, lambda name: name.startswith(_STATE))
    if not flat:
        raise ValueError(f"{path} has parameters only, so its training cannot continue; export it --with-optimizer")
    leaves = {name.removeprefix(_STATE): leaf for name, leaf in flat.items()}
    check_fit(f"the state in {path}", leaves, named_leaves(like))
    return from_leaves(leaves, like)


def _read(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """({name: array}, metadata) of a file, for the wanted names."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a safetensors file")
    if not path.exists():
        raise ValueError(f"there is no file {path}")
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
    """{path: array}. Empty groups are omitted."""
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
