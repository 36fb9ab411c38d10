"""Checkpoints that are written atomically and verified when they are read. The only module that imports Orbax.

    <directory>/<step>/state/          the leaves, by Orbax (OCDBT, zarr3)
    <directory>/<step>/optimizer/      the leaves of the optimiser, so that the others can be read without them
    <directory>/<step>/about/metadata  JSON: the caller's manifest; item, shape and dtype of every leaf
    <directory>/<step>/SHA256SUMS      the hash of every other file, for `sha256sum --check`

Orbax's `CheckpointManager` writes the steps, in the background and from every process that has a part of the state, and
removes old ones. This module adds hashes, checks and clear error messages. The hashes are written before a step gets
its final name, so every step has them.

The state is a tree of NumPy or JAX arrays. With several processes, all of them call the functions that write or
restore, with the same arguments, on a shared file system.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.errors import first_line
from lenmem.leaves import check_fit, from_leaves, named_leaves, shortened
from lenmem.training import processes
from lenmem.types import PyTree

_STATE, _OPTIMIZER, _ABOUT, _SUMS, _DELETING = "state", "optimizer", "about", "SHA256SUMS", ".deleting"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, is missing, is damaged, or does not fit."""


# --- writing --------------------------------------------------------------------------------------------------------


class Writer:
    """Writes checkpoints to a directory and deletes all but the newest `keep` (None: none are deleted).

    At the end of the `with` block everything is on disk. Raises `CheckpointError` for a full disk, an unwritable
    directory, a path with [, * or ? and a state that is not numeric; older checkpoints are then unchanged.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int | None = None) -> None:
        self.root, self.keep = Path(directory).absolute(), keep
        if glob.has_magic(str(self.root)):
            raise CheckpointError(f"Orbax cannot write to {self.root}: a path with [, * or ? is a pattern to it")
        self.step = -1
        self.manager: Any = None
        self.stack = ExitStack()
        self.orbax, self.sealed = _orbax()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        with self.stack:
            self.wait()

    def save(self, step: int, state: PyTree, manifest: Mapping[str, Any]) -> None:
        """Starts to write `state` and `manifest`, which is JSON data, as the checkpoint of `step`.

        Returns as soon as the buffers of the state may be reused. An existing, intact checkpoint is not written again.
        """
        items, leaves = _itemised(state)
        try:
            about = json.loads(json.dumps({"manifest": manifest, "leaves": leaves}, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the manifest must be plain JSON data: {error}") from error
        self.wait()
        self.step = step
        with self._explained():
            self.manager = self.manager or self._open()
            if step in self.manager.all_steps():
                if processes.on_first(lambda: is_intact(self.root, step)):
                    return
                self.manager.delete(step)
            parts = {item: self.orbax.args.StandardSave(named) for item, named in items.items()}
            parts[_ABOUT] = self.orbax.args.JsonSave(about)
            self.manager.save(step, args=self.orbax.args.Composite(**parts), force=True)

    def wait(self) -> None:
        """Waits until everything is on disk."""
        if self.manager is not None:
            with self._explained():
                self.manager.wait_until_finished()
                processes.on_first(self._clear)

    def _open(self) -> Any:
        """Orbax's manager of the directory."""
        processes.on_first(self._clear)
        self.stack.enter_context(_quiet())
        options = self.orbax.CheckpointManagerOptions(
            max_to_keep=self.keep,
            temporary_path_class=self.sealed,
            todelete_subdir=_DELETING,  # Emptied by `_clear`: a removal that is cut short leaves no half of a step.
            lightweight_initialize=True,
            async_options=self.orbax.AsyncOptions(create_directories_asynchronously=False),  # Fails here, not later.
        )
        return self.stack.enter_context(self.orbax.CheckpointManager(self.root, options=options))

    def _clear(self) -> int:
        """Removes deleted checkpoints, and the remains of saves that were killed."""
        self.root.mkdir(parents=True, exist_ok=True)
        for path in [self.root / _DELETING, *self.root.glob("*.orbax-checkpoint-tmp")]:
            if path.is_dir():
                shutil.rmtree(path)
        return 0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors to one line, with the remaining checkpoints."""
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                self._clear()
            self.manager = None
            failed = f"cannot write the checkpoint of step {self.step} to {self.root}: {_reason(error)}"
            raise CheckpointError(f"{failed}; {_fallback(self.root, self.step)}") from error


def save(
    directory: str | os.PathLike[str], step: int, state: PyTree, manifest: Mapping[str, Any], *, keep: int | None = None
) -> None:
    """Writes one checkpoint like a `Writer`; returns when it is on disk."""
    with Writer(directory, keep) as writer:
        writer.save(step, state, manifest)


def _one_copy(leaf: Any) -> Any:
    """One device's copy of an array that is replicated on all devices of this process. Otherwise Orbax would compile a
    program that cuts the array, so that each device writes a part."""
    if isinstance(leaf, jax.Array) and leaf.is_fully_addressable and leaf.is_fully_replicated:
        return leaf.addressable_data(0)
    return leaf


def _itemised(state: PyTree) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """({item: {name: leaf}} for Orbax, {name: item, shape and dtype} of every leaf)."""
    items: dict[str, dict[str, Any]] = {}
    leaves = {}
    for name, leaf in named_leaves(state).items():
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if not (jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_):
            raise CheckpointError(f"{name}: an array of {leaf.dtype} cannot be saved; allowed are numbers and bools")
        item = _OPTIMIZER if "optimizer_state" in name.split("/") else _STATE
        leaves[name] = {"item": item, "shape": leaf.shape, "dtype": leaf.dtype.name}
        if leaf.size:  # Orbax refuses empty arrays.
            items.setdefault(item, {})[name] = _one_copy(leaf)
    return items, leaves


# --- reading --------------------------------------------------------------------------------------------------------


def restore(
    directory: str | os.PathLike[str], like: PyTree, step: int | None = None, *, partial: bool = False
) -> tuple[PyTree, dict[str, Any]]:
    """(state, manifest) of the checkpoint of `step`, or of the latest.

    `like` is a tree of arrays or `jax.ShapeDtypeStruct`s with the structure, shapes and dtypes. A leaf is restored with
    its sharding in `like`, or as a NumPy array if it has none. With `partial`, `like` may be a part of the state, such
    as `{"params": ...}`; items without any of these leaves are neither read nor checked. Raises `CheckpointError` for a
    damaged checkpoint, naming the newest intact one, and for a state that does not fit `like`.
    """
    root = Path(directory).absolute()
    path = root / str(_pick(root, step))
    manifest, saved, item_of = _about(path)
    wanted = named_leaves(like)
    try:
        check_fit(f"the checkpoint {path}", saved, wanted, partial=partial)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    items = {item_of[name] for name in wanted}
    _check(path, items if partial else None)
    values = {name: _empty(leaf) for name, leaf in wanted.items() if not leaf.size}
    for item in items:
        stored = {name: leaf for name, leaf in wanted.items() if leaf.size and item_of[name] == item}
        try:
            values |= _load(path / item, stored)
        except Exception as error:
            raise CheckpointError(f"the checkpoint {path} cannot be read: {_reason(error)}") from error
    return from_leaves(values, like), manifest


def read_manifest(directory: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """The manifest that was passed to `save`, checked against its hash, without reading the state."""
    root = Path(directory).absolute()
    return _about(root / str(_pick(root, step)))[0]


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """Steps with a checkpoint, ascending. The contents of the checkpoints are not checked."""
    root = Path(directory)
    names = [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def latest(directory: str | os.PathLike[str]) -> int | None:
    """The newest step with a checkpoint."""
    return max(steps(directory), default=None)


def is_intact(directory: str | os.PathLike[str], step: int) -> bool:
    """Whether all files of the checkpoint of `step` exist and have the right hash."""
    return not _damage(Path(directory).absolute() / str(step))


def _load(path: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of an item, restored like these arrays."""
    orbax, _ = _orbax()

    def placed(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            return orbax.RestoreArgs(restore_type=np.ndarray)
        return orbax.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

    how = {name: placed(leaf) for name, leaf in leaves.items()}
    args = orbax.args.PyTreeRestore(item=dict(leaves), restore_args=how, partial_restore=True)
    with _quiet(), orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as reader:
        return dict(reader.restore(path, args=args))


def _empty(leaf: Any) -> Any:
    zeros, sharding = np.zeros(leaf.shape, leaf.dtype), getattr(leaf, "sharding", None)
    return zeros if sharding is None else jax.device_put(zeros, sharding)


def _pick(root: Path, step: int | None) -> int:
    found = steps(root)
    if step is None and found:
        return found[-1]
    if step in found:
        return step
    have = f"there are {', '.join(map(str, found))}" if found else "there is none"
    raise CheckpointError(f"no checkpoint{'' if step is None else f' of step {step}'} in {root}; {have}")


def _about(path: Path) -> tuple[dict[str, Any], dict[str, jax.ShapeDtypeStruct], dict[str, str]]:
    """(manifest, {leaf: shape and dtype}, {leaf: item}) of a checkpoint, checked."""
    before = _is_format_1(path)
    _check(path, () if before else (_ABOUT,))
    try:
        about = json.loads((path / (_FORMAT_1 if before else f"{_ABOUT}/metadata")).read_bytes())
        leaves = about["leaves"].items()
        saved = {name: jax.ShapeDtypeStruct(leaf["shape"], jnp.dtype(leaf["dtype"])) for name, leaf in leaves}
        return about["manifest"], saved, {name: _STATE_1 if before else leaf["item"] for name, leaf in leaves}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a checkpoint that this version of lenmem reads") from error


# --- hashes ---------------------------------------------------------------------------------------------------------


def _seal(path: Path) -> None:
    """Writes the hashes of all files of a step, and synchronises the files that TensorStore did not write."""
    (path / _SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in _hashes(path).items()))
    for file in (path / _SUMS, path / _ABOUT / "metadata", path):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _hashes(path: Path, items: Iterable[str] = ("",)) -> dict[str, str]:
    """{file: SHA-256} of all files of a step, or of some items, except the file of hashes."""
    files = sorted(file for item in items for file in (path / item).rglob("*") if file.is_file())
    names = {file.relative_to(path).as_posix(): file for file in files}
    return {name: _sha256(file) for name, file in names.items() if name not in (_SUMS, _SUM_1)}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _recorded(path: Path) -> dict[str, str]:
    """The hashes that were written with a step."""
    if _is_format_1(path):
        return _recorded_1(path)
    lines = (path / _SUMS).read_text(errors="replace").split("\n")
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines[:-1])}


def _damage(path: Path, items: Iterable[str] | None = None) -> list[str]:
    """A description of the damage to the files of a step, or of some of its items."""
    try:
        recorded, found = _recorded(path), _hashes(path, ("",) if items is None else items)
    except (OSError, ValueError) as error:
        return [_reason(error)]
    if items is not None:
        below = tuple(f"{item}/" for item in items)
        recorded = {name: digest for name, digest in recorded.items() if name.startswith(below)}
    return [
        f"{name} is {'missing' if name not in found else 'changed' if name in recorded else 'not recorded'}"
        for name in sorted(recorded.keys() | found.keys())
        if recorded.get(name) != found.get(name)
    ]


def _check(path: Path, items: Iterable[str] | None = None) -> None:
    """Raises CheckpointError if files of a step, or of some of its items, have changed."""
    if damage := _damage(path, items):
        found = f"the checkpoint {path} is damaged: {shortened(damage)}; nothing was loaded"
        raise CheckpointError(f"{found}; {_fallback(path.parent, int(path.name))}")


def _fallback(root: Path, step: int) -> str:
    """A description of the remaining checkpoints."""
    for other in reversed(steps(root)):
        if other != step and is_intact(root, other):
            return f"the checkpoint of step {other} is intact; without {root / str(step)} a run goes on from it"
    return "no other checkpoint is intact" if set(steps(root)) - {step} else "there is no other checkpoint"


# --- checkpoints of format 1: one item, which Orbax had committed by itself, and manifest.json with all hashes -------

_FORMAT_1, _SUM_1, _STATE_1 = "manifest.json", "manifest.sha256", "state/state"


def _is_format_1(path: Path) -> bool:
    return (path / _FORMAT_1).exists()


def _recorded_1(path: Path) -> dict[str, str]:
    digest = (path / _SUM_1).read_text(errors="replace")
    if _sha256(path / _FORMAT_1) != digest:
        raise ValueError(f"{_FORMAT_1} does not match {_SUM_1}")
    files = json.loads((path / _FORMAT_1).read_bytes())["files"]
    return {_FORMAT_1: digest} | {name: entry["sha256"] for name, entry in files.items()}


# --- Orbax ----------------------------------------------------------------------------------------------------------


@functools.cache
def _orbax() -> tuple[Any, type]:
    """Orbax, which takes a second to import and is therefore imported here; and how a step is committed."""
    import orbax.checkpoint as orbax

    class Sealed(orbax.path.atomicity.AtomicRenameTemporaryPath):
        async def finalize(self) -> None:
            """Called by Orbax once all processes have written: for each item, and then for the step."""
            store = self._checkpoint_metadata_store
            if store is None:
                await super().finalize()
            else:
                store.wait_until_finished()
                _seal(Path(self.get()))
                os.rename(self.get(), self.get_final())

    return orbax, Sealed


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Orbax's log messages. Errors are still raised."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """The operating system's description of an error, or the first line of its message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))  # TensorStore's way to say ENOSPC and its like
    if code:
        return os.strerror(int(code[1]))
    return first_line(error)[:300]
