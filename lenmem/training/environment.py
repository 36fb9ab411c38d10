"""The machine: a description for records of measurements, and the devices of a CPU."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from lenmem.types import PyTree


def describe_environment() -> dict[str, Any]:
    """Versions, platform, devices, commit of lenmem, and date (UTC)."""
    packages = ("lenmem", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    devices = jax.devices()
    commit, dirty = _commit()
    return {
        "versions": {name: version_of(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def memory_of_machine() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(state: PyTree) -> None:
    """ValueError for an initial state, arrays or their shapes, that is larger than the memory of this machine, if
    it trains on a CPU.

    There, memory that does not exist is granted, and the process is killed when it uses it. Other devices refuse it.
    """
    needed, there = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)), memory_of_machine()
    if jax.default_backend() == "cpu" and needed > there:
        raise ValueError(
            f"the parameters and the optimiser's state of all seeds need {needed / 2**30:,.0f} GiB; this machine has "
            f"{there / 2**30:,.0f}. Try a smaller network, or fewer seeds"
        )


def divide_processor(devices: int | None) -> None:
    """Makes a CPU as many devices as a training asks for, each with a thread, if JAX has not started yet."""
    if devices is not None:
        with contextlib.suppress(RuntimeError):  # it has started
            jax.config.update("jax_num_cpu_devices", devices)


def version_of(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> tuple[str | None, bool | None]:
    """(commit, whether tracked files outside of `results/` differ from it) of the imported clone of lenmem.

    None for an installed wheel. Files in `results/` are excluded because the commands that record this pair write them.
    """
    root = Path(__file__).resolve().parents[2]
    # A wheel in a .venv may be inside another repository: only a clone of lenmem itself counts.
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None, None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no", "--", ":!results"))
    except (OSError, subprocess.SubprocessError):
        return None, None
