"""Configurations as plain data: frozen dataclasses and Linen modules to JSON and back, without running anything.

`to_plain` writes an object as `{"class": "lenmem.models.lantm.LANTM", "hidden_size": 50, ...}` (`class` is a Python
keyword, so no field can have that name). `from_plain` builds it again. It is safe for untrusted files: a class path is
looked up only inside `lenmem`, among the modules of `flax.linen`, and in the `modules` that the caller passes, only
dataclasses are built, and nothing is unpickled, evaluated or imported from elsewhere.

    None, bool, int, float, str     unchanged; inf and nan as {"class": "float", "value": "inf"}
    tuple, list                     a JSON list, read as a tuple
    dict with string keys           a JSON object without "class"
    dtype (jnp.bfloat16, ...)       {"class": "dtype", "name": "bfloat16"}
    activation function             {"class": "function", "name": "relu"}, from a short list
    Optax transformation            {"class": "transformation"}, read as `FORGOTTEN`, which cannot train
    dataclass, Linen module         {"class": path, field: value, ...}, every field

Omitted are fields outside `__init__`; a Linen module's `parent`, `spec` (an experiment sets it) and, if it is None,
`name`; and functions that are the default of their field, such as initialisers.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lenmem.errors import choices

FUNCTIONS: Mapping[str, Callable] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
    "leaky_relu": jax.nn.leaky_relu,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softmax": jax.nn.softmax,
}
"""The functions that are allowed as field values. Any other function must be a frozen dataclass with `__call__`."""

DTYPES = (
    *("bfloat16", "float16", "float32", "float64", "bool", "complex64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_DEPTH = 64


def _forgotten(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "this run was trained with an optax.GradientTransformation, which is not saved; to go on training, pass the "
        "same one again: lenmem.load(run, optimizer=...), Training(optimizer=...), or its configuration: lenmem train "
        "CONFIG.py --resume RUN"
    )


FORGOTTEN = optax.GradientTransformation(_forgotten, _forgotten)
"""The placeholder for a saved Optax transformation, which consists of functions and cannot be saved."""
_OWN = "lenmem."
MOVED = {
    "lenmem.training.optimizer.Linear": "lenmem.training.optimizer.LinearDecay",
    "lenmem.training.loop.Training": "lenmem.training.configuration.Training",
    "lenmem.nn.nam.Shift": "lenmem.models.tapes.Shift",
    "lenmem.nn.nam.Jump": "lenmem.models.tapes.Jump",
    "lenmem.nn.transformer_decoder.PostNormEncoder": "lenmem.nn.transformer.TransformerEncoder",
}
"""Path of a class of lenmem in older runs -> its present path."""
CHANGED: Mapping[str, tuple[Mapping[str, str | None], Mapping[str, Any]]] = {
    "lenmem.evaluation.lengths.Evaluation": ({"scored": "test_examples"}, {}),
    "lenmem.models.looped.LoopedTransformer": ({"column": None}, {}),
    "lenmem.models.nam_baselines.UniversalEncoder": ({"steps": "layers"}, {}),
    "lenmem.nn.transformer_decoder.PostNormEncoder": (
        {"shared_layers": "shared_weights"},
        {"initialization": "glorot"},
    ),
}
"""Path of a class in older runs -> (old names of fields -> present names, None if the field is gone; values
of fields that were added since)."""


def class_path(kind: type) -> str:
    """The name under which a class is saved: module and qualified name."""
    return f"{kind.__module__}.{kind.__qualname__}"


_LINEN = {
    class_path(kind): kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)
}


def is_foreign(kind: type) -> bool:
    """Whether a class is part neither of lenmem nor of flax.linen."""
    return not class_path(kind).startswith(_OWN) and class_path(kind) not in _LINEN


def to_plain(value: Any) -> Any:
    """`value` as JSON data. Raises `ValueError`, with the name of the field, for values that cannot be saved.

    A module in two places, which share its parameters, cannot be saved either, since it would be read as two.
    """
    return _to_plain(value, type(value).__name__, 0, {})


def from_plain(data: Any, modules: Iterable[type | ModuleType] = ()) -> Any:
    """The object that `to_plain` wrote.

    `modules` are further classes that may be built, or Python modules with such classes. If the module of a class has
    changed, the class is found by its name, provided that only one of the passed classes has this name. Raises
    `ValueError` for an unknown class or field, for missing fields, and for data that `to_plain` does not write.
    """
    return _from_plain(data, _collect(modules), 0)


def classes_in(value: Any) -> set[type]:
    """The dataclasses in a value for `to_plain`. Those outside of lenmem must be passed to `from_plain`."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return set[type]().union(*map(classes_in, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return set()
    return {type(value)}.union(*(classes_in(getattr(value, field.name)) for field in _fields(type(value))))


def _to_plain(value: Any, where: str, depth: int, modules: dict[int, str]) -> Any:
    """`modules`: the place of each module so far, by its id."""
    if depth > _DEPTH:
        raise ValueError(f"{where}: nested more than {_DEPTH} deep")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, optax.GradientTransformation):
        return {"class": "transformation"}
    if value is None or isinstance(value, bool | int | str):
        if type(value) not in (type(None), bool, int, str):
            raise ValueError(f"{where}: {value!r} is a {type(value).__name__}; use a plain int or str")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"class": "float", "value": repr(float(value))}
    if isinstance(value, tuple | list):
        if hasattr(value, "_fields"):
            raise ValueError(f"{where}: the named tuple {type(value).__name__} would come back as a plain tuple")
        return [_to_plain(item, f"{where}[{i}]", depth + 1, modules) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if "class" in value or not all(isinstance(key, str) for key in value):
            raise ValueError(f'{where}: a dict needs string keys other than "class", got {list(value)}')
        return {key: _to_plain(item, f"{where}[{key!r}]", depth + 1, modules) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, nn.Module) and (first := modules.setdefault(id(value), where)) != where:
            raise ValueError(
                f"{where.partition('.')[0]} has one module in two places, {first} and {where}, which share its "
                "parameters; this cannot be saved as data. Make the module once, in the class of the network"
            )
        plain: dict[str, Any] = {"class": class_path(type(value))}
        for field in _fields(type(value)):
            item = getattr(value, field.name)
            if (field.name == "name" and isinstance(value, nn.Module) and item is None) or _is_default(field, item):
                continue
            plain[field.name] = _to_plain(item, f"{where}.{field.name}", depth + 1, modules)
        return plain
    dtype = _dtype_name(value)
    if dtype is not None:
        return {"class": "dtype", "name": dtype}
    for name, function in FUNCTIONS.items():
        if value is function:
            return {"class": "function", "name": name}
    if callable(value):
        raise ValueError(
            f"{where}: {value!r} cannot be saved as data; allowed are {', '.join(FUNCTIONS)} of jax.nn, or a frozen "
            "dataclass with __call__ (registered by passing it as modules=[...] when loading)"
        )
    raise ValueError(
        f"{where}: a {type(value).__name__} cannot be saved as data; allowed are None, bool, int, float, str, tuples, "
        "dicts, dtypes, dataclasses and Linen modules"
    )


def _from_plain(data: Any, known: dict[str, type], depth: int) -> Any:
    if depth > _DEPTH:
        raise ValueError(f"saved data is nested more than {_DEPTH} deep")
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list | tuple):
        return tuple(_from_plain(item, known, depth + 1) for item in data)
    if not isinstance(data, Mapping):
        raise ValueError(f"saved data must be JSON, got a {type(data).__name__}")
    if "class" not in data:
        return {key: _from_plain(item, known, depth + 1) for key, item in data.items()}
    path = data["class"]
    rest = {key: item for key, item in data.items() if key != "class"}
    if isinstance(path, str) and path in CHANGED:
        names, more = CHANGED[path]
        kept = {names.get(key, key): item for key, item in rest.items()}
        rest = {**more, **{key: item for key, item in kept.items() if key is not None}}
    if isinstance(path, str) and path in _SPECIAL:
        return _SPECIAL[path](rest)
    kind = _resolve(path, known)
    allowed = {field.name: field for field in _fields(kind)}
    for key in rest:
        if key not in allowed:
            raise ValueError(f"{path} has no field {key!r}.{choices(key, allowed)}")
    required = [
        field.name
        for field in allowed.values()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in rest]
    if missing:
        raise ValueError(f"{path} needs {', '.join(missing)}, which the saved data lacks")
    arguments = {key: _from_plain(item, known, depth + 1) for key, item in rest.items()}
    try:
        return kind(**arguments)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be built from {arguments}: {error}") from error


def _float(rest: dict[str, Any]) -> float:
    if rest.get("value") not in ("inf", "-inf", "nan") or len(rest) != 1:
        raise ValueError(f'a saved float must be "inf", "-inf" or "nan", got {rest}')
    return float(rest["value"])


def _dtype(rest: dict[str, Any]) -> Any:
    if rest.get("name") not in DTYPES or len(rest) != 1:
        raise ValueError(f"a saved dtype must be one of {', '.join(DTYPES)}, got {rest}")
    return getattr(jnp, rest["name"])


def _transformation(rest: dict[str, Any]) -> optax.GradientTransformation:
    if rest:
        raise ValueError(f"a saved transformation has no fields, got {rest}")
    return FORGOTTEN


def _function(rest: dict[str, Any]) -> Callable:
    if rest.get("name") not in tuple(FUNCTIONS) or len(rest) != 1:
        raise ValueError(f"a saved function must be one of {', '.join(FUNCTIONS)}, got {rest}")
    return FUNCTIONS[rest["name"]]


_SPECIAL: dict[Any, Callable[[dict[str, Any]], Any]] = {
    "float": _float,
    "dtype": _dtype,
    "function": _function,
    "transformation": _transformation,
}


def _fields(kind: type) -> list[dataclasses.Field]:
    """The fields that are saved."""
    skipped = ("parent", "spec") if issubclass(kind, nn.Module) else ()
    return [field for field in dataclasses.fields(kind) if field.init and field.name not in skipped]


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    """Whether the value is a function, such as an initialiser, that is the default of its field. Other defaults are
    saved."""
    return callable(value) and not dataclasses.is_dataclass(value) and value is field.default


def _dtype_name(value: Any) -> str | None:
    """The name of a dtype (jnp.float32, np.float32 or an np.dtype); None for other values."""
    scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    if not (scalar_type or isinstance(value, np.dtype) or type(value) is type(jnp.float32)):
        return None
    try:
        name = np.dtype(value).name
    except TypeError:
        return None
    return name if name in DTYPES else None


def _collect(modules: Iterable[type | ModuleType]) -> dict[str, type]:
    """The passed classes, and the dataclasses of passed Python modules and of neighbours they import, by path."""
    known: dict[str, type] = {}
    for item in modules:
        if isinstance(item, ModuleType):
            named = [value for module in (item, *_neighbours(item)) for value in vars(module).values()]
            kinds = [value for value in named if isinstance(value, type) and dataclasses.is_dataclass(value)]
        elif isinstance(item, type) and dataclasses.is_dataclass(item):
            kinds = [item]
        else:
            raise ValueError(f"modules must be Linen modules, dataclasses or Python modules, got {item!r}")
        known.update({class_path(kind): kind for kind in kinds})
    return known


def _neighbours(module: ModuleType) -> list[ModuleType]:
    """The modules in a module's names whose files lie beside its own."""

    def folder(module: ModuleType) -> str | None:
        file = getattr(module, "__file__", None)
        return os.path.dirname(os.path.abspath(file)) if file else None

    held = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    return [other for other in held if folder(module) is not None and folder(other) == folder(module)]


def _resolve(path: Any, known: dict[str, type]) -> type:
    """The dataclass with a class path. Imports only modules of lenmem."""
    if not isinstance(path, str):
        raise ValueError(f"a saved class must be a string, got {path!r}")
    path = MOVED.get(path, path)
    if kind := known.get(path) or _LINEN.get(path):
        return kind
    namesakes = {kind for known_path, kind in known.items() if known_path.rpartition(".")[2] == path.rpartition(".")[2]}
    if path.startswith(_OWN):
        return _resolve_own(path)
    if len(namesakes) == 1:
        return namesakes.pop()
    shown = re.sub(r"^_lenmem_configs_\w+\.", "", path)  # a class in a configuration is shown by its file
    module, _, name = shown.rpartition(".")
    file = f"{module}.py" if shown != path else "FILE.py" if module in ("", "__main__") else module
    raise ValueError(
        f"{shown!r} is not part of lenmem; if you trust it, pass what defines it: --modules {file} on the command "
        f"line, modules=[{name}] in Python"
    )


def _resolve_own(path: str) -> type:
    """A public dataclass that is defined at the top level of a public module of lenmem.

    A package may be in place of the module now; it exports the classes, so that old paths remain valid.
    """
    module_name, _, name = path.rpartition(".")
    parts = path.split(".")
    # Names with underscores would reach `lenmem.__main__` and the configs of the wheel, whose import runs code.
    if all(part.isidentifier() and not part.startswith("_") for part in parts):
        try:
            kind = getattr(importlib.import_module(module_name), name, None)
        except ImportError:
            kind = None
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and class_path(kind).startswith(f"{module_name}."):
            return kind
    raise ValueError(f"{path!r} is not a dataclass or Linen module of this version of lenmem")
