"""An on-disk cache of generated arrays."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lenmem import progress

_DIGEST = "sha256"


def cache_directory() -> Path:
    """The cache directory: `$LENMEM_CACHE`, else `lenmem` in the user's cache directory."""
    own = os.environ.get("LENMEM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lenmem"


def cached(name: str, settings: Mapping[str, Any], build: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays that `build` makes from `settings` (plain JSON data that includes a version of `build`).

    They are stored in one file whose name contains a hash of the settings. The file contains its own hash: a file that
    is missing, truncated or altered is built again. It is written under another name and renamed, so several processes
    may ask at once and none sees a partial file.

    Raises:
        ValueError: if the directory is not writable.
    """
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = cache_directory() / f"{name}-{key[:16]}.npz"
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {entry: file[entry] for entry in file.files}
        if arrays.pop(_DIGEST).tobytes() == _digest(arrays):
            return arrays
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zlib.error, zipfile.BadZipFile):
        pass
    with progress.track(f"making the data of {name}, once"):
        arrays = build()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by `tempfile`, whose files can be read by their owner only: a cache may be shared.
        with open(path.parent / f".{name}-{secrets.token_hex(8)}", "xb") as file:
            try:
                contents = {**arrays, _DIGEST: np.frombuffer(_digest(arrays), np.uint8)}
                np.savez(file, **contents)  # NumPy before 2.2 would store `allow_pickle` as an array
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error}); set LENMEM_CACHE to a writable directory") from None
    return arrays


def _digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.digest()
