"""Stopping at a signal: SIGINT (Ctrl-C) or SIGTERM.

A Python handler runs in the main thread between two Python instructions, so it waits while XLA compiles or computes.
Also, the interpreter crashes if it exits while XLA threads are running. In the command line, a separate thread that is
started before JAX is imported therefore handles signals (`watched`):

* It reports at once that the process is stopping. If nothing would be lost, it ends the process immediately.
* A training (`heeded`) finishes its current steps, saves and ends by itself. If that takes longer than `PATIENCE`
  seconds, the thread saves the state before these steps instead.
* A checkpoint that is being written is finished. A second signal ends the process without finishing it; earlier
  checkpoints stay intact. Signals within `TOGETHER` seconds count as one: `timeout`, for example, sends its signal
  to the process and again to its group.

The process ends with `os._exit`, without cleanup, and with status 130 for SIGINT and 143 for SIGTERM, as in a shell.

In a notebook, the first signal stops a training, and a second signal has its usual effect.
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
"""Time in seconds for a training to stop by itself. Together with the time for saving it should be less than 5."""
TOGETHER = 0.5
"""Time in seconds within which signals count as one."""


class Stop:
    """The state of a stop: whether it was requested, and whether unsaved work would be lost by ending the process."""

    def __init__(self, watched: bool) -> None:
        self.watched = watched
        """Whether another thread may end the process."""
        self.alone = True
        """Whether no other process waits for this one. If one does, the training stops by itself, however long that
        takes."""
        self.lock = threading.RLock()
        """Acquired while something is written, and while the registered state changes."""
        self.ended = threading.Event()
        self._requested = threading.Event()
        self._save: Callable[[], object] | None = None
        self._unsaved = False

    def request(self) -> None:
        """Asks the training to stop."""
        self._requested.set()

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._requested.is_set()

    def offer(self, save: Callable[[], object]) -> None:
        """Registers unsaved state; `save` writes it, from any thread."""
        with self.lock:
            self._save, self._unsaved = save, True

    def withdraw(self, save: Callable[[], object] | None) -> None:
        """Marks the registered state as changing. `save` writes an earlier state; None: nothing can be saved at
        present."""
        with self.lock:
            self._save = save

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A context for saving. After it, no work is unsaved."""
        with self.lock:
            yield
            self._unsaved = False

    def may_end_now(self) -> bool:
        """Whether nothing would be lost and no other process waits."""
        return self.alone and not self._unsaved

    def save(self) -> None:
        """Saves the registered state, if there is one."""
        if self._unsaved and self._save is not None:
            self._save()


class _Watch:
    """A thread that reads signal numbers from a pipe. Python's C handler writes them."""

    def __init__(self, advice: Callable[[], str]):
        self.advice = advice
        self.training: Stop | None = None
        self.number = 0
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)  # required by `set_wakeup_fd`
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
        first = time.monotonic()
        threading.Thread(target=self._wind_up, daemon=True).start()
        while self._next():
            if time.monotonic() - first > TOGETHER:
                self._leave()

    def _wind_up(self) -> None:
        training = self.training
        if training is None or training.may_end_now():
            _say("stopping")
            self._leave()
        # The message comes first: a training that stops at once would end the process before it.
        _say("stopping: the current steps are finished and saved; a second Ctrl-C ends at once, without saving")
        training.request()
        if not training.ended.wait(PATIENCE if training.alone else None):
            with training.lock:  # never released, so the training cannot continue
                if not training.ended.is_set():
                    try:
                        training.save()
                    except Exception as error:
                        _say(f"error: {error}")
                    self._leave()
        time.sleep(PATIENCE / 2)  # the main thread prints the rest
        self._leave()

    def _leave(self) -> NoReturn:
        try:
            _say(self.advice())
        finally:  # also if the advice raises an error
            leave(128 + self.number)


_watch: _Watch | None = None
_last: int = signal.SIGINT


@contextmanager
def watched(advice: str) -> Iterator[None]:
    """The context of the command line, with signals handled as described above. `advice` is the message on how to
    continue.

    A signal that was ignored when the process started, as in the background of a shell, stays ignored. After the
    context both signals are ignored, since the work is done.
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


def training() -> bool:
    """Whether the command line is training, so that a signal stops it and saves."""
    return _watch is not None and _watch.training is not None


def advise(advice: Callable[[], str]) -> None:
    """Sets the message on how to continue. `advice` is called from another thread, at any time."""
    if _watch is not None:
        _watch.advice = advice


@contextmanager
def heeded() -> Iterator[Stop]:
    """The `Stop` of a training. Outside of the command line, its signal handlers apply only to the first signal, and to
    those that count as one with it."""
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
    first: float | None = None

    def request(number: int, frame: object) -> None:
        global _last
        nonlocal first
        now = time.monotonic()
        if first is None:
            first, _last = now, number
            stop.request()
        elif now - first > TOGETHER:
            signal.signal(number, old[signal.Signals(number)])
            signal.raise_signal(number)

    try:
        for number in old:
            signal.signal(number, request)
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def status() -> int:
    """The exit status of a stopped process: 128 plus the number of the signal."""
    return 128 + ((_watch and _watch.number) or _last)


def leave(status: int) -> NoReturn:
    """Ends the process at once, without waiting for threads that compute."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # the first two may be redirected
    flushed = threading.Thread(target=lambda: [stream.flush() for stream in streams if stream], daemon=True)
    flushed.start()
    flushed.join(0.5)  # flushing blocks if nobody reads
    for stream in (1, 2):
        if os.isatty(stream):
            os.write(stream, b"\x1b[?25h")  # a progress bar hides the cursor
            break
    os._exit(status)


def _say(text: str) -> None:
    """Prints a line on stderr. Continues after a second if the output is blocked."""
    # sys.stderr is redirected while options are parsed, to suppress it, and by progress bars, to print above the bar.
    stream = sys.stderr if sys.stderr.isatty() else sys.__stderr__
    said = threading.Thread(target=lambda: print(text, file=stream, flush=True), daemon=True)
    said.start()
    said.join(1)
