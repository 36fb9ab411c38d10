"""Checkpoints that are whole or absent, and never silently wrong. The only module that knows Orbax.

    <directory>/<step>/manifest.json      what the caller says of the run, leaves and files with SHA-256
    <directory>/<step>/manifest.sha256    hash of manifest.json
    <directory>/<step>/state/             the leaves, by Orbax (OCDBT, zarr3)

A save is written aside, hashed, and moved into place by one rename: a process that dies on the way leaves the older
steps untouched. A restore checks every file against its hash before reading it and every leaf afterwards; what is
damaged is reported by leaf name and not returned.

The state is a pytree of arrays (NumPy or JAX; numbers as 0-d arrays). Of random keys the bits are saved. Leaves pass
through host memory as whole arrays, so that a state restores onto any number of devices; with several processes all of
them call `save` and `restore` with the same arguments on a shared file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from lenmem.keys import bits, typed
from lenmem.training import processes
from lenmem.types import PyTree

FORMAT = 1
_SAVING, _DELETING = ".saving-", ".deleting-"
_MANIFEST, _DIGEST, _STATE = "manifest.json", "manifest.sha256", "state"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, is missing, is damaged, or does not fit."""


def save(directory: str | os.PathLike, step: int, state: PyTree, manifest: Mapping[str, Any], *, keep: int = 2) -> None:
    """Write `state` and the JSON-able `manifest` as the checkpoint of `step`; returns when it is on disk.

    Afterwards the newest `keep` steps remain. Steps *after* `step` are removed too: whoever saves step 60 after going
    back to step 50 has left the old steps 70 and 80 behind. Raises `CheckpointError` (full disk, unwritable directory,
    a state that is not arrays); older checkpoints are then as they were.
    """
    root = Path(directory).absolute()
    if step < 0 or keep < 1:
        raise CheckpointError(f"step must not be negative and keep must be at least 1, got step={step}, keep={keep}")
    leaves = {name: _to_host(name, leaf) for name, leaf in _named(bits(state)).items()}
    try:
        text = json.dumps(manifest, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the manifest must be plain JSON data: {error}") from error
    described = {name: _describe(leaf) for name, leaf in leaves.items()}
    target, aside = root / str(step), root / f"{_SAVING}{step}"

    def prepare() -> bool:
        """Make room; False if this very checkpoint is already there."""
        root.mkdir(parents=True, exist_ok=True)
        _clear(root)
        if _holds(target, described, json.loads(text)):
            return False
        aside.mkdir()
        return True

    def commit() -> bool:
        """Describe what Orbax has written and move it into place."""
        body = {
            "format": FORMAT,
            "step": step,
            "manifest": json.loads(text),
            "leaves": described,
            "files": {path.relative_to(aside).as_posix(): _file_entry(path) for path in _files(aside)},
        }
        data = json.dumps(body, indent=1).encode()
        _write(aside / _MANIFEST, data)
        _write(aside / _DIGEST, _sha256(data).encode())
        _sync(aside)
        if target.exists():
            target.rename(root / f"{_DELETING}{step}")
        aside.rename(target)
        _sync(root)
        there = steps(root)
        older = [s for s in there if s <= step]
        for old in older[:-keep] + there[len(older) :]:
            (root / str(old)).rename(root / f"{_DELETING}{old}")
        _clear(root)
        return True

    try:
        if processes.on_first(prepare):
            stored = {name: leaf for name, leaf in leaves.items() if leaf.size}  # Orbax refuses empty arrays
            if stored:
                with _quiet_orbax() as ocp:
                    ocp.save(str(aside / _STATE), stored)
            processes.on_first(commit)
    except Exception as error:
        fallback = _fallback(root, step)
        if processes.is_first():
            with contextlib.suppress(OSError):
                _clear(root)
        raise CheckpointError(
            f"cannot write the checkpoint of step {step} to {root}: {_reason(error)}; {fallback}"
        ) from error


def restore(
    directory: str | os.PathLike, like: PyTree, step: int | None = None, *, partial: bool = False
) -> tuple[PyTree, dict[str, Any]]:
    """(state, manifest) of the checkpoint of `step`, or of the latest.

    `like` is a pytree of arrays or `jax.ShapeDtypeStruct`s that gives structure, shapes, dtypes and shardings (NumPy
    arrays come back as NumPy arrays). With `partial` it may be a part of the state, `{"params": ...}` say, which is
    all that is read and checked then. Raises `CheckpointError` for a damaged checkpoint, naming leaves and the newest
    other one that is intact, and for a state that does not fit `like`.
    """
    root = Path(directory).absolute()
    step = _pick(root, step)
    path = root / str(step)
    body = _read_body(path)
    wanted, described = _named(bits(like)), body["leaves"]
    _check_fit(path, wanted, described, partial)
    names = [name for name in described if name in wanted]
    damage = [] if partial else _damaged_files(path, body)
    stored = [name for name in names if described[name]["size"]]
    values: dict[str, np.ndarray] = {}
    failure = ""
    if not damage:
        try:
            values = _load(path, stored, described, len(stored) < sum(1 for leaf in described.values() if leaf["size"]))
        except Exception as error:
            failure = f": {_reason(error)}"
    values |= {name: _empty(described[name]) for name in names if not described[name]["size"]}
    bad = [name for name in names if name not in values or _describe(values[name]) != described[name]]
    if damage or bad:
        damage = damage or _damaged_files(path, body)
        if damage or failure:
            bad = _unreadable(path, described)
        if len(bad) > 1 and len(bad) == sum(1 for leaf in described.values() if leaf["size"]):
            leaves = f"every leaf ({_shortened(bad)})"
        else:
            leaves = f"leaf {_shortened(bad)}" if bad else "no leaf, but the bytes around them"
        where = f" in {_shortened(damage)}" if damage else failure
        raise CheckpointError(
            f"the checkpoint {path} is damaged: {leaves}{where}; nothing was loaded; {_fallback(root, step)}"
        )
    flat = [_place(values[name], leaf) for name, leaf in wanted.items()]
    return typed(jax.tree.unflatten(jax.tree.structure(like), flat), like), body["manifest"]


def read_manifest(directory: str | os.PathLike, step: int | None = None) -> dict[str, Any]:
    """The manifest that was given to `save`, checked against its hash, without reading the state."""
    root = Path(directory).absolute()
    return _read_body(root / str(_pick(root, step)))["manifest"]


def steps(directory: str | os.PathLike) -> list[int]:
    """Steps that have a checkpoint, ascending (its contents are not checked)."""
    root = Path(directory)
    if not root.is_dir():
        return []
    return sorted(int(path.name) for path in root.iterdir() if _is_step(path.name) and path.is_dir())


def latest(directory: str | os.PathLike) -> int | None:
    """The newest step that has a checkpoint."""
    return max(steps(directory), default=None)


def is_intact(directory: str | os.PathLike, step: int) -> bool:
    """Every file of the checkpoint of `step` is there and has its hash."""
    path = Path(directory).absolute() / str(step)
    try:
        return not _damaged_files(path, _read_body(path, advise=False))
    except (CheckpointError, OSError):
        return False


def prepare() -> None:
    """Import Orbax, which takes about a second, before the first save: a run that is stopped has little time for it."""
    with _quiet_orbax():
        pass


# --- leaves ---------------------------------------------------------------------------------------------------------


def _named(tree: PyTree) -> dict[str, Any]:
    """{path joined by "/": leaf}, in the order of the pytree."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        if name in named:
            raise CheckpointError(f"two leaves of the state have the same name {name!r}")
        named[name] = leaf
    return named


def _to_host(name: str, leaf: Any) -> np.ndarray:
    """The whole leaf as a NumPy array."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise CheckpointError(f"{name}: a state holds arrays only, got a {type(leaf).__name__}; use np.asarray")
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        leaf = leaf.addressable_data(0) if leaf.is_fully_replicated else multihost_utils.process_allgather(leaf, True)
    host = np.asarray(leaf, order="C")
    if not (jnp.issubdtype(host.dtype, np.number) or host.dtype == np.bool_):
        raise CheckpointError(f"{name}: an array of {host.dtype} cannot be saved; allowed are numbers and bools")
    return host.astype(host.dtype.newbyteorder("="), copy=False)


def _place(value: np.ndarray, like: Any) -> Any:
    """`value` where `like` is: NumPy, the default device, or a sharding."""
    if isinstance(like, np.ndarray | np.generic):
        return value
    sharding = like.sharding if getattr(like, "committed", True) else None
    if sharding is None:
        return jnp.array(value, copy=True)
    if sharding.is_fully_addressable:
        # Never share memory with NumPy: the train step donates its buffers.
        return jax.device_put(value, sharding, may_alias=False)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index].copy())


def _describe(value: np.ndarray) -> dict[str, Any]:
    return {
        "shape": list(value.shape),
        "dtype": value.dtype.name,
        "size": int(value.size),
        "sha256": _sha256(value.tobytes()),
    }


def _empty(leaf: Mapping[str, Any]) -> np.ndarray:
    return np.zeros(leaf["shape"], jnp.dtype(leaf["dtype"]))


def _check_fit(path: Path, wanted: Mapping[str, Any], described: Mapping[str, Any], partial: bool) -> None:
    """Names, shapes and dtypes of the checkpoint are those of `like`."""
    faults = [f"{name} is not in the checkpoint" for name in wanted if name not in described]
    if not partial:
        faults += [f"{name} is only in the checkpoint" for name in described if name not in wanted]
    for name in wanted:
        if name in described:
            leaf = wanted[name]
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                raise CheckpointError(f"{name}: `like` must hold arrays or ShapeDtypeStructs, got {leaf!r}")
            saved = (tuple(described[name]["shape"]), described[name]["dtype"])
            asked = (tuple(leaf.shape), leaf.dtype.name)
            if saved != asked:
                faults.append(f"{name} is {saved[1]}{list(saved[0])}, expected {asked[1]}{list(asked[0])}")
    if faults:
        raise CheckpointError(f"the checkpoint {path} does not fit: {_shortened(faults)}")


def _load(path: Path, names: list[str], described: Mapping[str, Any], partial: bool) -> dict[str, np.ndarray]:
    """The named leaves as NumPy arrays, by Orbax."""
    if not names:
        return {}
    abstract = {name: np.empty(described[name]["shape"], jnp.dtype(described[name]["dtype"])) for name in names}
    with _quiet_orbax(partial_load=partial) as ocp:
        return dict(ocp.load(str(path / _STATE), abstract))


def _unreadable(path: Path, described: Mapping[str, Any]) -> list[str]:
    """Names of the leaves of a damaged checkpoint that cannot be read back as they were written."""
    bad = []
    for name, leaf in described.items():
        if leaf["size"]:
            try:
                if _describe(_load(path, [name], described, partial=True)[name]) != leaf:
                    bad.append(name)
            except Exception:
                bad.append(name)
    return bad


# --- files ----------------------------------------------------------------------------------------------------------


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _pick(root: Path, step: int | None) -> int:
    found = steps(root)
    if step is None and found:
        return found[-1]
    if step in found:
        return step
    have = f"there are {', '.join(map(str, found))}" if found else "there is none"
    raise CheckpointError(f"no checkpoint{'' if step is None else f' of step {step}'} in {root}; {have}")


def _read_body(path: Path, advise: bool = True) -> dict[str, Any]:
    """The checked contents of manifest.json."""
    advice = f"; {_fallback(path.parent, int(path.name))}" if advise else ""
    try:
        data = (path / _MANIFEST).read_bytes()
        digest = (path / _DIGEST).read_bytes()
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {_reason(error)}{advice}") from error
    if _sha256(data).encode() != digest:
        raise CheckpointError(f"the checkpoint {path} is damaged: {_MANIFEST} does not match {_DIGEST}{advice}")
    try:
        body = json.loads(data)
        known = body["format"] == FORMAT and {"step", "manifest", "leaves", "files"} <= body.keys()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        known = False
        body = {}
    if not known:
        raise CheckpointError(f"{path / _MANIFEST} is not a manifest that this version of lenmem reads")
    return body


def _damaged_files(path: Path, body: Mapping[str, Any]) -> list[str]:
    """Files that are missing or changed, each with the reason."""
    damaged = []
    for name, entry in body["files"].items():
        file = path / name
        try:
            if file.stat().st_size != entry["bytes"]:
                damaged.append(f"{name} ({file.stat().st_size} bytes of {entry['bytes']})")
            elif _file_entry(file) != entry:
                damaged.append(f"{name} (changed)")
        except OSError as error:
            damaged.append(f"{name} ({error.strerror})")
    return damaged


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _file_entry(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": _sha256(data)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Make names in a directory survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _clear(root: Path) -> None:
    """Remove what an interrupted save or deletion has left."""
    for path in root.iterdir():
        if path.name.startswith((_SAVING, _DELETING)):
            shutil.rmtree(path)


def _holds(target: Path, described: Mapping[str, Any], manifest: Any) -> bool:
    """This very checkpoint is already there, intact."""
    if not target.is_dir() or not is_intact(target.parent, int(target.name)):
        return False
    body = _read_body(target)
    return body["leaves"] == described and body["manifest"] == manifest


def _fallback(root: Path, step: int) -> str:
    """What else there is to go back to."""
    for other in reversed(steps(root)):
        if other != step and is_intact(root, other):
            return f"the checkpoint of step {other} is intact"
    return "no other checkpoint is intact" if steps(root) else "there is no other checkpoint"


def _shortened(words: list[str], most: int = 8) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _reason(error: BaseException) -> str:
    """The system's words for what went wrong, else the first line of the message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    text = str(error).strip()
    code = re.search(r"os_error_code='(\d+)'", text)  # TensorStore's way to say ENOSPC and its like
    if code:
        return os.strerror(int(code[1]))
    return text.splitlines()[0][:300] if text else type(error).__name__


# --- Orbax ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet_orbax(partial_load: bool = False) -> Iterator[Any]:
    """Orbax without its warnings, imported where it is first needed: that takes a while.

    Directories are made at once, so that a failure leaves no coroutine behind.
    """
    from orbax.checkpoint import v1 as ocp

    logger = logging.getLogger("absl")
    level = logger.level
    context = ocp.Context()
    context.asynchronous.create_directories_asynchronously = False
    context.pytree.loading.partial_load = partial_load
    logger.setLevel(logging.CRITICAL)
    try:
        with context:
            yield ocp
    finally:
        logger.setLevel(level)
