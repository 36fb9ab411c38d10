"""Reads JSON files, writes files atomically and makes directories.

This module needs only the standard library, since the build of the wheel uses it too.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """The contents of a JSON file. NaN, which old records have for diverged seeds, and infinity are read as None.

    Raises ValueError if the file is damaged.
    """
    try:
        return json.loads(path.read_text(), parse_constant=lambda _: None)
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None


def json_number(value: float) -> float | None:
    """A number for strict JSON, which has neither NaN nor infinity: None, or the largest float."""
    if math.isnan(value):
        return None
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else float(value)


def write_json(path: Path, data: Any) -> None:
    """Writes plain data as strict JSON, atomically."""
    write_whole(path, as_json(data))


def as_json(data: Any) -> bytes:
    """Plain data as a file of strict JSON. Raises ValueError for NaN and infinity."""
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: under a name of this process, followed by a rename."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_replaceable(path: Path, mark: str) -> None:
    """Raises ValueError if a file exists that does not contain `mark`, as what lenmem generates does."""
    if path.exists() and mark not in path.read_text(errors="replace"):
        raise ValueError(f"{path} would be replaced, but lenmem did not write it; choose another directory")


def make_directory(path: Path) -> None:
    """Makes a directory and its parents, unless it exists. Raises ValueError if a file has the name of one of them.

    A link that leads nowhere counts as a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(place for place in (path, *path.parents) if os.path.lexists(place) and not place.is_dir())
        raise ValueError(f"{path} cannot be made a directory: {file} is a file") from None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file; False if there is none."""
    import fcntl  # absent on Windows, as `lenmem.training` says

    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
