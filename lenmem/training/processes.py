"""One run in several processes, as on a TPU pod or a cluster: agreement, and actions of the first process only.

Every process runs the same program on its own devices, and the run's directory is on a shared file system. All
functions except `join` must be called by every process at the same place; with one process they only call their
argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def join() -> None:
    """Connects this process with the others, before anything is computed.

    JAX finds them itself on a TPU pod, under Slurm and under Open MPI. Elsewhere the environment must name them:
    `JAX_COORDINATOR_ADDRESS` (host:port of the first process, with any free port), `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID`, counted from 0. Raises ValueError if neither is the case.
    """
    address, *numbers = (os.environ.get(name) for name in VARIABLES)
    if len({value is None for value in (address, *numbers)}) > 1:
        raise ValueError(f"of {', '.join(VARIABLES)} some are set and some are not; set all, or none on a cluster")
    for name, value in zip(VARIABLES[1:], numbers, strict=True):
        if value is not None and not value.isdecimal():
            raise ValueError(f"{name} must be a number, got {value!r}")
    count, process = (None if value is None else int(value) for value in numbers)
    try:
        jax.distributed.initialize(address, count, process)
    except ValueError as error:
        raise ValueError(
            f"no other processes were found ({error}); on a TPU pod, under Slurm and under Open MPI they are found, "
            f"elsewhere set {', '.join(VARIABLES)}"
        ) from error


def is_first() -> bool:
    """Whether this process writes and prints."""
    return jax.process_index() == 0


def on_first(action: Callable[[], int]) -> int:
    """Runs `action` in the first process only; returns its result in every process, once it is done.

    If it fails, the first process raises its error, and the others a ValueError.
    """
    if jax.process_count() == 1:
        return action()
    failed, answer, failure = False, 0, None
    if is_first():
        try:
            answer = action()
        except Exception as error:
            failed, failure = True, error
    failed, answer = multihost_utils.broadcast_one_to_all(np.array([failed, answer], np.int32)).tolist()
    if failure is not None:
        raise failure
    if failed:
        raise ValueError("the first process has failed; its output says why")
    return answer


def on_all(action: Callable[[], T]) -> T:
    """Runs `action` in every process; if it fails in one, all of them raise."""
    if jax.process_count() == 1:
        return action()
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = error
    failed = np.flatnonzero(multihost_utils.process_allgather(np.array(failure is not None)))
    if failure is not None:
        raise failure
    if failed.size:
        raise ValueError(f"process {failed[0]} has failed; its output says why")
    return result  # pyright: ignore[reportReturnType]  (nothing failed)


def on_any(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())
