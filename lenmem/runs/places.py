"""Finding runs: by a path, a name under `runs/`, a file or a name of the zoo."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from lenmem.experiment import SUFFIX, Run, load
from lenmem.training.run_directory import holds_run
from lenmem.zoo import shelf


def open_run(directory: str | Path, step: int | None = None, modules: Iterable[type | ModuleType] = ()) -> Run:
    """`lenmem.load` for the path of a run, a name under `runs/`, a file, or a name of the zoo."""
    return load(find_run(directory), step=step, modules=modules)


def is_run(name: str) -> bool:
    """Whether a word of the command line names a trained network: a run, a file, or a name of the zoo."""
    return shelf.is_name(name) or name.endswith(SUFFIX) or holds_run(find_run(name))


def find_run(directory: str | Path) -> Path:
    """The path of a run from its path or its name under `runs/`. Other names, as those of the zoo, are unchanged."""
    path = Path(directory)
    return Path("runs") / path if not path.is_dir() and (Path("runs") / path).is_dir() else path
