"""Parameters of a BERT from a directory in Hugging Face's format: `config.json` and `model.safetensors`.

Names may begin with `bert.` or not; of a layer norm they may end in `weight` and `bias`, or, in older files, in `gamma`
and `beta`. Other tensors, such as those of a pooler or of the masked language model, are left out. Nothing is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from lenmem.errors import choices, readable
from lenmem.types import PyTree

CONFIG, TENSORS = "config.json", "model.safetensors"
FIELDS = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feedforward_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "epsilon": "layer_norm_eps",
}
"""Our fields -> theirs."""
DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}
"""What older files leave out."""


class Entry(NamedTuple):
    """One of our parameters, and the tensor in which it is stored."""

    path: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    """Shape of the tensor."""
    own_shape: tuple[int, ...]
    """Shape of the parameter: for linear maps, that of the transposed tensor."""
    transposed: bool = False


def fields_in(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The sizes in `config.json`, as fields of `BertSpans`: `make("bert_span", weights=d, **fields_in(d))`.

    Raises ValueError, with the file, if it is missing or describes a BERT that lenmem does not support.
    """
    config, _ = _config(directory)
    return {ours: config.get(theirs, DEFAULTS.get(theirs)) for ours, theirs in FIELDS.items()}


def _config(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], Path]:
    """The contents of `config.json`, checked, and the file."""
    path = Path(directory) / CONFIG
    try:
        with readable(path, f"a directory with {CONFIG} and {TENSORS}"):
            config = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: it is not JSON ({error.msg})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: got {json.dumps(config)[:60]}; expected an object")
    kinds = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for name, wanted in kinds.items():
        if config.get(name, wanted) != wanted:
            raise ValueError(f"{path} has {name} {config[name]!r}; lenmem supports only {wanted!r}")
    missing = [name for name in FIELDS.values() if name not in config and name not in DEFAULTS]
    if missing:
        raise ValueError(f"{path}: there is no {missing[0]!r}; it has {', '.join(sorted(config)) or 'nothing'}")
    return config, path


def rows_in(directory: str | os.PathLike[str]) -> int:
    """The number of ids of pieces, `vocab_size` in `config.json`. Raises ValueError as `fields_in`."""
    config, path = _config(directory)
    size = config.get("vocab_size")
    if not isinstance(size, int):
        raise ValueError(f"{path}: vocab_size is {size!r}; expected a whole number")
    return size


def read(directory: str | os.PathLike[str], model: Any) -> PyTree:
    """The parameters of a `Bert`, nested dicts of float32 arrays.

    Raises ValueError, with the file and the tensor, if one is missing, damaged, or of another shape.
    """
    found = fields_in(directory)
    for name, value in found.items():
        if value != getattr(model, name):
            ours = f"the model has {name} {getattr(model, name)}"
            raise ValueError(f"{Path(directory) / CONFIG} has {FIELDS[name]} {value}, but {ours}")
    path = Path(directory) / TENSORS
    params: dict[str, Any] = {}
    try:
        with readable(path), safetensors.safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            prefix = "bert." if any(name.startswith("bert.") for name in names) else ""
            for entry in entries(model):
                tensor = _tensor(file, names, prefix + entry.name, entry.shape, path)
                node = params
                for part in entry.path[:-1]:
                    node = node.setdefault(part, {})
                node[entry.path[-1]] = np.ascontiguousarray(tensor.T if entry.transposed else tensor).reshape(
                    entry.own_shape
                )
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error})") from None
    return params


def _tensor(file: Any, names: set[str], name: str, shape: tuple[int, ...], path: Path) -> np.ndarray:
    """A tensor by its name, or by its older one, as float32."""
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    there = next((known for known in (name, old) if known in names), None)
    if there is None:
        raise ValueError(f"{path} has no tensor {name}.{choices(name, sorted(names))}")
    try:
        tensor = np.asarray(file.get_tensor(there))
    except TypeError as error:  # a number type that NumPy lacks
        raise ValueError(f"{path}: tensor {there} cannot be read ({error}); expected float32") from None
    if tensor.shape != shape:
        raise ValueError(f"{path}: tensor {there} has shape {list(tensor.shape)}; the model needs {list(shape)}")
    if not np.issubdtype(tensor.dtype, np.floating) and tensor.dtype.name != "bfloat16":
        raise ValueError(f"{path}: tensor {there} has numbers of type {tensor.dtype}; expected float32")
    tensor = tensor.astype(np.float32)
    if not np.isfinite(tensor).all():
        raise ValueError(f"{path}: tensor {there} has numbers that are not finite")
    return tensor


def entries(model: Any) -> Iterator[Entry]:
    """All parameters of a `Bert` and the names of their tensors, without a prefix."""
    wide, heads, hidden = model.hidden_size, model.heads, model.feedforward_size
    split = (heads, wide // heads)

    def linear(
        path: tuple[str, ...], name: str, shape: tuple[int, int], own: tuple[int, ...] = (), bias: tuple[int, ...] = ()
    ) -> Iterator[Entry]:
        """x W + b from shape[1] to shape[0] features; a tensor is [out, in]."""
        yield Entry((*path, "kernel"), f"{name}.weight", shape, own or shape[::-1], True)
        yield Entry((*path, "bias"), f"{name}.bias", shape[:1], bias or shape[:1])

    def norm(path: tuple[str, ...], name: str) -> Iterator[Entry]:
        yield Entry((*path, "scale"), f"{name}.LayerNorm.weight", (wide,), (wide,))
        yield Entry((*path, "bias"), f"{name}.LayerNorm.bias", (wide,), (wide,))

    tables = {
        "word_embeddings": (("pieces",), model.vocabulary),
        "token_type_embeddings": (("segments",), model.segments),
        "position_embeddings": (("encoder", "positions"), model.max_positions),
    }
    for name, (path, rows) in tables.items():
        yield Entry((*path, "embedding"), f"embeddings.{name}.weight", (rows, wide), (rows, wide))
    yield from norm(("encoder", "norm"), "embeddings")
    for number in range(model.layers):
        at, theirs = ("encoder", f"layer_{number}"), f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            sizes = (wide, wide), (wide, *split), split
            yield from linear((*at, "attention", name), f"{theirs}.attention.self.{name}", *sizes)
        yield from linear((*at, "attention", "out"), f"{theirs}.attention.output.dense", (wide, wide), (*split, wide))
        yield from norm((*at, "attention_norm"), f"{theirs}.attention.output")
        yield from linear((*at, "feedforward_in"), f"{theirs}.intermediate.dense", (hidden, wide))
        yield from linear((*at, "feedforward_out"), f"{theirs}.output.dense", (wide, hidden))
        yield from norm((*at, "feedforward_norm"), f"{theirs}.output")
