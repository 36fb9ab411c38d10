"""Stopping at a signal: SIGINT, which is Ctrl-C, or SIGTERM.

A Python handler runs in the main thread, between two of Python's own instructions: while XLA compiles or computes, it
waits. And an interpreter that is taken down while threads of XLA are at work crashes. The command line is therefore
watched by a thread of its own, from before JAX is imported (`watched`):

* It says at once that the process is stopping. Where nothing would be lost, it ends it right away.
* A training (`heeded`) finishes the steps that run, saves and ends by itself. If that takes longer than `PATIENCE`
  seconds, what it holds out to be saved, the state before these steps, is saved in its place.
* A checkpoint that is being written is finished. A second signal ends the process without that; what was there before
  stays whole.

The process ends by `os._exit`, which runs nothing, with 130 for SIGINT and 143 for SIGTERM, as of a shell.

Outside of the command line, in a notebook, a training heeds the first signal, and the second acts as usual.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.5
"""Seconds that a training has to stop by itself; with the time to save it is to be less than 5."""


class Stop:
    """A training's side: whether it is to stop, and what would be lost if it ended now."""

    def __init__(self, watched: bool) -> None:
        self.watched = watched
        """Another thread may end the process."""
        self.alone = True
        """No other process waits for this one; else it has to stop by itself, however long that takes."""
        self.lock = threading.RLock()
        """Held while something is written, and while what is to be saved changes."""
        self.ended = threading.Event()
        self._requested = threading.Event()
        self._save: Callable[[], object] | None = None
        self._unsaved = False

    def request(self) -> None:
        """Ask the training to stop."""
        self._requested.set()

    def is_set(self) -> bool:
        """It was asked to stop."""
        return self._requested.is_set()

    def offer(self, save: Callable[[], object]) -> None:
        """There is something to lose, which `save` writes, from whatever thread."""
        with self.lock:
            self._save, self._unsaved = save, True

    def withdraw(self, save: Callable[[], object] | None) -> None:
        """What was offered changes now; `save` writes an earlier state, None: nothing can be saved for a while."""
        with self.lock:
            self._save = save

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Everything is saved afterwards."""
        with self.lock:
            yield
            self._unsaved = False

    def may_end_now(self) -> bool:
        """Nothing would be lost, and nobody waits."""
        return self.alone and not self._unsaved

    def save(self) -> None:
        """Save what was offered, if anything was."""
        if self._unsaved and self._save is not None:
            self._save()


class _Watch:
    """The thread that reads the numbers of signals from a pipe, into which Python's handler in C writes them."""

    def __init__(self, advice: Callable[[], str]):
        self.advice = advice
        self.training: Stop | None = None
        self.number = 0
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)  # as `set_wakeup_fd` wants it
        self.thread = threading.Thread(target=self._read, name="lenmem-signals", daemon=True)
        self.thread.start()

    def close(self) -> None:
        os.write(self.writing, b"\0")
        self.thread.join()
        os.close(self.reading)
        os.close(self.writing)

    def _next(self) -> int:
        """The number of the next signal; 0 at the end."""
        while (number := os.read(self.reading, 1)[0]) and number not in SIGNALS:
            pass
        return number

    def _read(self) -> None:
        number = self._next()
        if not number:
            return
        self.number = number
        threading.Thread(target=self._wind_up, daemon=True).start()
        if self._next():
            self._leave()

    def _wind_up(self) -> None:
        training = self.training
        if training is None or training.may_end_now():
            _say("stopping")
            self._leave()
        training.request()
        _say("stopping: the steps that run are finished and saved; a second Ctrl-C ends at once, without that")
        if not training.ended.wait(PATIENCE if training.alone else None):
            with training.lock:  # Never released: the training goes no further.
                if not training.ended.is_set():
                    try:
                        training.save()
                    except Exception as error:
                        _say(f"error: {error}")
                    self._leave()
        time.sleep(PATIENCE / 2)  # The main thread says the rest.
        self._leave()

    def _leave(self) -> NoReturn:
        try:
            _say(self.advice())
        finally:  # whatever the advice met
            leave(128 + self.number)


_watch: _Watch | None = None
_last: int = signal.SIGINT


@contextmanager
def watched(advice: str) -> Iterator[None]:
    """The command line: within it, signals are heeded as the module says. `advice` says how to go on.

    A signal that the process was started to ignore, as in the background of a shell, is ignored. Afterwards all are:
    what had to be done is done.
    """
    global _watch
    _watch = _Watch(lambda: advice)
    signal.set_wakeup_fd(_watch.writing, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    code: object = None
    try:
        yield
    except SystemExit as ended:
        code = ended.code
        raise
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        if _watch.number and sys.exc_info()[0] in (None, SystemExit):
            leave(code if isinstance(code, int) else status())
        _watch.close()
        _watch = None


def advise(advice: Callable[[], str]) -> None:
    """Say from now on at the end how to go on. It is asked from another thread, at any time."""
    if _watch is not None:
        _watch.advice = advice


@contextmanager
def heeded() -> Iterator[Stop]:
    """What tells a training to stop: the command line's watch; else handlers, of which the second signal is rid."""
    stop = Stop(watched=_watch is not None)
    if _watch is not None:
        _watch.training = stop
        try:
            yield stop
        finally:
            stop.ended.set()
            _watch.training = None
        return
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.getsignal(number) for number in SIGNALS}

    def request(number: int, frame: object) -> None:
        global _last
        _last = number
        stop.request()
        signal.signal(number, old[signal.Signals(number)])

    try:
        for number in old:
            signal.signal(number, request)
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def status() -> int:
    """The exit status of what was stopped: 128 and the number of the signal."""
    return 128 + ((_watch and _watch.number) or _last)


def leave(status: int) -> NoReturn:
    """End the process now; threads that compute are not waited for."""
    flushed = threading.Thread(target=lambda: (sys.stdout.flush(), sys.stderr.flush()), daemon=True)
    flushed.start()
    flushed.join(0.5)  # Nobody may be reading.
    for stream in (1, 2):
        if os.isatty(stream):
            os.write(stream, b"\x1b[?25h")  # A progress bar hides the cursor.
            break
    os._exit(status)


def _say(text: str) -> None:
    said = threading.Thread(target=lambda: print(text, file=sys.stderr, flush=True), daemon=True)
    said.start()
    said.join(0.5)
