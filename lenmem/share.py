"""One file to give away: parameters and what is known of them, as safetensors.

The file holds every parameter under its path joined by `/` and, as metadata, one JSON string. It can be opened by any
safetensors reader, and opening it runs nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lenmem.types import PyTree

_KEY = "lenmem"


def export_params(path: str | os.PathLike, params: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write nested dicts of arrays, and JSON-able `metadata` (the experiment as plain data), to one file.

    The file appears whole or not at all; an existing one is replaced. Raises `ValueError` for parameters that are not
    nested dicts of arrays, or names that contain `/`.
    """
    path = Path(path)
    try:
        text = json.dumps(metadata, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be plain JSON data: {error}") from error
    data = safetensors.numpy.save(_flatten(params), metadata={_KEY: text})
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            partial = Path(file.name)
            file.write(data)
        partial.replace(path)
    except OSError as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


def import_params(path: str | os.PathLike) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """(params, metadata) of a file written by `export_params`; a plain safetensors file has metadata {}."""
    path = Path(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads((file.metadata() or {}).get(_KEY, "{}"))
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: the metadata must be a JSON object, got {type(metadata).__name__}")
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
