"""Finding and loading configurations: Python files that define `experiment = Experiment(...)`.

Named configurations (`lantm/copy`) are in `configs/` of the repository and are part of the wheel.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.linen as nn

from lenmem import models
from lenmem.errors import choices, nearest
from lenmem.experiment import Experiment
from lenmem.training import Optimizer

_PACKAGE = Path(__file__).parent
ROOT = _PACKAGE / "_configs" if (_PACKAGE / "_configs").is_dir() else _PACKAGE.parent / "configs"
"""The directory of named configurations."""


def names() -> tuple[str, ...]:
    """The names of all configurations."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in ROOT.rglob("*.py"))
    return tuple(sorted(path.as_posix() for path in paths if not any(part.startswith("_") for part in path.parts)))


def is_search(name: str) -> bool:
    """Whether a configuration is a grid or a sweep, whose rows are searches for settings."""
    return name.rpartition("/")[2].startswith(("grid", "sweep"))


def find(name: str | os.PathLike[str], tasks: Iterable[str] = ()) -> Path:
    """The file of a configuration, by name or path. Raises ValueError with the nearest name if there is none.

    `tasks` are further names for this suggestion, if a task is allowed too.
    """
    text = os.fspath(name)
    direct = Path(text)
    if direct.suffix == ".py" and direct.is_file():
        return direct
    bare = text.removesuffix(".py").removeprefix("configs/")
    if bare in names():
        return ROOT / f"{bare}.py"
    if direct.suffix == ".py":
        raise ValueError(f"there is no file {text}.{nearest(bare, names())}")
    meant = [*tasks, *names()]
    hint = choices(bare, meant, listed="lenmem list")
    what = "task or configuration" if len(meant) > len(names()) else "configuration"
    raise ValueError(f"there is no {what} {text!r}.{hint}; or give a .py file")


class _SourceOnly(importlib.machinery.SourceFileLoader):
    """Ignores cached bytecode, which is stale if a file is edited twice within a second without changing its size."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def module_of(name: str | os.PathLike[str]) -> ModuleType:
    """Runs a configuration file and returns its module.

    It may import its neighbours, as in `from ._recipe import ...` or, if no package has that name, `import mycell`.
    """
    path = find(name).resolve()
    if ROOT.resolve() not in path.parents and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    package = f"_lenmem_configs_{zlib.crc32(os.fsencode(path.parent)):08x}"  # the same in every process
    if package not in sys.modules:
        parent = ModuleType(package)
        parent.__path__ = [str(path.parent)]
        sys.modules[package] = parent
    loader = _SourceOnly(f"{package}.{path.stem}", str(path))
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses and inspect look there for the module of a class
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[loader.name]
        if isinstance(error, (ValueError, OSError)):
            raise
        raise ValueError(_what_failed(path, error, vars(module))) from error
    return module


def own_modules(names: Iterable[str]) -> list[ModuleType]:
    """The Python modules passed as `--modules`, by file *.py or by module name. They are executed."""
    modules = []
    for name in names:
        file = name if name.endswith(".py") else f"{name}.py"
        if file == name or Path(file).is_file():
            modules.append(module_of(file))
            continue
        try:
            modules.append(importlib.import_module(name))
        except ImportError as error:
            raise ValueError(
                f"--modules takes files *.py or names of Python modules, got {name!r} ({error})"
            ) from error
    return modules


def _what_failed(path: Path, error: Exception, names: dict[str, Any]) -> str:
    """The line and the error of a configuration; for a misspelled field, also the nearest one."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = ""
    if wrong := re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text):
        kind = names.get(wrong[1])
        hint = "." + nearest(wrong[2], getattr(kind, "__dataclass_fields__", ()))
    return f"{path}, line {line}: {type(error).__name__}: {text}{hint}"


def _mapping(name: str | os.PathLike[str], field: str) -> dict[str, Any]:
    """A dict that a configuration may define; empty if it has none. An imported module of that name does not count."""
    value = getattr(module_of(name), field, {})
    if isinstance(value, ModuleType):
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{find(name)}: `{field}` must be a dict, got a {type(value).__name__}")
    return dict(value)


def optimizers_of(name: str | os.PathLike[str]) -> dict[str, Optimizer]:
    """The `optimizers` of a configuration, by model name, for other models on its task.

    Empty if the configuration does not define them. Raises ValueError for an unknown model.
    """
    optimizers: dict[str, Optimizer] = _mapping(name, "optimizers")
    for model in optimizers:
        models.fields_of(model)  # raises for an unknown one
    return optimizers


def sweep_of(name: str | os.PathLike[str]) -> dict[str, tuple[Any, ...]]:
    """The `over` of a configuration: path of a field -> its values for `lenmem sweep`; empty if it defines none."""
    over = _mapping(name, "over")
    for path, values in over.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ValueError(f"{find(name)}: over[{path!r}] must be a tuple of values, got {values!r}")
    return over


def models_of(name: str | os.PathLike[str]) -> dict[str, nn.Module]:
    """The `models` of a configuration, by their names in it: further networks for `lenmem compare`.

    Empty if the configuration does not define them. Raises ValueError for a value that is not a network.
    """
    named: dict[str, nn.Module] = _mapping(name, "models")
    for label, model in named.items():
        if not isinstance(model, nn.Module):
            raise ValueError(f"{find(name)} has a {type(model).__name__} as model {label!r}; it must be a Linen module")
    return named


def load_config(name: str | os.PathLike[str]) -> Experiment:
    """The `experiment` of a configuration."""
    experiment: Any = getattr(module_of(name), "experiment", None)
    if not isinstance(experiment, Experiment):
        got = "it has none" if experiment is None else f"got {type(experiment).__name__}"
        raise ValueError(f"{find(name)} must define `experiment = Experiment(...)`, {got}")
    return experiment
