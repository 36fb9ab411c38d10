"""Progress output of the command line: bars on a terminal, otherwise plain lines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from lenmem.progress import At, duration

QUIET = 3.0
"""Progress is shown for work that takes longer than this, in seconds."""
BETWEEN = 10.0
"""Shortest time between two plain lines about the same work, in seconds."""


class Bars:
    """The progress bars of a console, one below the other, including that of a training."""

    def __init__(self, console: Console):
        self.console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TextColumn("{task.fields[more]}"),
            _Left(),
        )
        self.progress = Progress(*columns, console=console, transient=True, speed_estimate_period=math.inf)
        self.open = 0
        self.lock = threading.RLock()

    @contextmanager
    def bar(self, what: str, **options: Any) -> Iterator[Any]:
        """Adds a bar and yields its number. The display is refreshed while there is a bar."""
        with self.lock:
            if not self.open:
                self.progress.start()
            self.open += 1
            number = self.progress.add_task(what, **({"more": "", "total": None} | options))
        try:
            yield number
        finally:
            with self.lock:
                self.progress.remove_task(number)
                self.open -= 1
                if not self.open:
                    self.progress.stop()

    @contextmanager
    def shown(self, what: str) -> Iterator[At]:
        """A listener for `lenmem.progress`. Work that takes less than `QUIET` seconds is not shown."""
        with self._on_terminal(what) if self.console.is_terminal else self._in_lines(what) as at:
            yield at

    @contextmanager
    def _on_terminal(self, what: str) -> Iterator[At]:
        with self.bar(what, visible=False) as number:
            timer = _after(QUIET, lambda: self.progress.update(number, visible=True))
            try:
                yield lambda share: self.progress.update(number, completed=share, total=1.0)
            finally:
                timer.cancel()

    @contextmanager
    def _in_lines(self, what: str) -> Iterator[At]:
        started = time.monotonic()
        said = [0.0]  # time of the last line; 0: none yet
        begun: list[tuple[float, float]] = []  # the first report: time and fraction
        lock = threading.Lock()

        def say(text: str) -> None:
            said[0] = time.monotonic()
            self.console.print(f"{what}: {text}", highlight=False, markup=False)

        def first() -> None:
            with lock:
                if not said[0]:
                    say("under way")

        def at(share: float) -> None:
            with lock:
                now = time.monotonic()
                begun[:] = begun or [(now, share)]
                since, done = now - begun[0][0], share - begun[0][1]
                if now - started > QUIET and now - said[0] > BETWEEN and 0 < share < 1:
                    left = f", about {duration(since * (1 - share) / done)} left" if done > 0 else ""
                    say(f"{share:.0%}{left}")

        timer = _after(QUIET, first)
        try:
            yield at
        finally:
            timer.cancel()
            with lock:
                if said[0]:
                    say(f"took {duration(time.monotonic() - started)}")


class _Left(TextColumn):
    """Time left, at the pace since the first report: what comes before it is mostly compilation."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        """`about 2 min left`."""
        left = task.time_remaining
        return Text(f"about {duration(left)} left" if left else "")


def _after(delay: float, action: Any) -> threading.Timer:
    timer = threading.Timer(delay, action)
    timer.daemon = True
    timer.start()
    return timer
