"""Compiled programs are kept, so that a command with the programs of an earlier one starts sooner."""

from __future__ import annotations

import os
import time
import warnings

import jax

from lenmem.data.cache import cache_directory

CHOICE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable; its empty value turns the cache off."""
UNUSED_DAYS = 30
"""Programs that were not used for so many days are deleted."""


def keep_programs() -> None:
    """Makes JAX store what it compiles in `programs` of the cache directory, and deletes old programs there.

    JAX finds a program again only with the same versions, XLA flags and kind of processor. A damaged file is compiled
    again. A directory that the user has chosen for JAX is left alone. If the cache cannot be written, nothing is kept.
    """
    if CHOICE in os.environ:
        return
    directory = cache_directory() / "programs"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for program in directory.iterdir():
            used = program.stat()
            if time.time() - max(used.st_atime, used.st_mtime) > UNUSED_DAYS * 24 * 3600:
                program.unlink()
    except OSError:  # also if another command has just deleted a program
        pass
    if os.access(directory, os.W_OK):
        # Two commands may write the same file, and one may be stopped while it writes.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
        jax.config.update("jax_compilation_cache_dir", str(directory))
