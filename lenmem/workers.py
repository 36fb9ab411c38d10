"""Jobs that run in parallel, each of which is a lenmem command in a process with one thread.

The training of a small network is hardly faster with a second core; two trainings in parallel use both cores.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lenmem import stopping
from lenmem.files import make_directory
from lenmem.progress import duration

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""The XLA_FLAGS that are added for a worker."""
LENMEM = (sys.executable, "-m", "lenmem")
"""The command that starts lenmem."""
WORKER = "LENMEM_WORKER"
"""Set in the environment of workers, to the process that started them. Work for all jobs, such as writing the page, is
left to it."""
POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Job:
    """A command to run."""

    name: str
    """Its name in messages, different for each job."""
    arguments: tuple[str, ...]
    """The arguments of lenmem."""
    log: Path
    """The file to which its output is appended."""
    alone_with: str = ""
    """What it needs for itself, such as a run; jobs that need the same are never run at the same time."""


def is_worker() -> bool:
    """Whether this process was started by `run_jobs`."""
    return WORKER in os.environ


def end_with_parent() -> None:
    """Has a worker end when its parent does, even by kill -9: it gets SIGTERM, at which a training saves.

    Otherwise it would go on beside the worker that continues its work when the command is given again.
    """
    parent = int(os.environ[WORKER])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lenmem-parent", daemon=True).start()


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    say: Callable[[str], None],
    seconds: Mapping[str, float],
    heading: str = "",
    command: Sequence[str] = LENMEM,
) -> list[Job]:
    """Runs the jobs in order, `workers` of them at a time; returns those that failed.

    If a job fails, its name and its last line of output are reported, and the others continue. After a signal the
    workers are stopped, which includes saving; KeyboardInterrupt is raised when they have ended.

    Args:
        jobs: the jobs.
        workers: number of jobs that run at the same time.
        say: called with a line of text at every start and end of a job, with the remaining jobs and time.
        seconds: name of a job -> its estimated time, if known.
        heading: the beginning of the first line.
        command: the command that starts lenmem.
    """
    waiting = list(jobs)
    say(f"{heading}{_left(waiting, seconds, workers)}")
    running: dict[subprocess.Popen[bytes], tuple[Job, float, int]] = {}
    failed = []
    with stopping.heeded() as stop, _stopped_at_the_end(running):
        stop.alone = False
        while (waiting or running) and not stop.is_set():
            while len(running) < workers and (free := ready(waiting, (job for job, *_ in running.values()))):
                job = free[0]
                waiting.remove(job)
                say(f"start {job.name}")
                earlier = job.log.stat().st_size if job.log.exists() else 0
                running[_start(job, command)] = job, time.monotonic(), earlier
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                job, started, earlier = running.pop(process)
                if process.returncode == 0:
                    how = f"done  {job.name} in {duration(time.monotonic() - started)}"
                else:
                    failed.append(job)
                    how = f"FAILED {job.name}, exit status {process.returncode}: {_last_line(job.log, earlier)}"
                say(f"{how}; {_left([*waiting, *(job for job, *_ in running.values())], seconds, workers)}")
    if stop.is_set():
        raise KeyboardInterrupt("stopped; the same command continues")
    return failed


@contextmanager
def _stopped_at_the_end(running: Iterable[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def ready(waiting: Iterable[Job], running: Iterable[Job]) -> list[Job]:
    """The waiting jobs that need nothing of the running ones."""
    taken = {job.alone_with for job in running} - {""}
    return [job for job in waiting if job.alone_with not in taken]


def _left(jobs: Sequence[Job], seconds: Mapping[str, float], workers: int) -> str:
    """`12 left, about 3.5 h`. A job in progress counts with its full time."""
    known = [seconds[job.name] for job in jobs if job.name in seconds]
    unknown = len(jobs) - len(known)
    parts = [f"{len(jobs)} left"]
    if known:
        parts.append(f"about {duration(sum(known) / workers)}")
    if unknown:
        parts.append(f"{unknown} of them of unknown length")
    return ", ".join(parts)


def _start(job: Job, command: Sequence[str]) -> subprocess.Popen[bytes]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    alone = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", WORKER: str(os.getpid())}
    make_directory(job.log.parent)
    with job.log.open("ab") as output:
        return subprocess.Popen(
            [*command, *job.arguments],
            env=os.environ | alone,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops its workers in order
        )


def _last_line(log: Path, earlier: int) -> str:
    """The last line of a log, without the first `earlier` bytes, which are those of earlier attempts."""
    lines = log.read_bytes()[earlier:].decode(errors="replace").strip().splitlines()
    return f"{lines[-1]} ({log})" if lines else f"it printed nothing ({log})"
