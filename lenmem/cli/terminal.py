"""What the command line prints: lines, errors, and the progress of a training."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console

from lenmem import stopping
from lenmem.bars import Bars


def discard_output() -> None:
    """Nothing more is written to stdout, because nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads the output any more, as after `| head`. A training is stopped and saved as by Ctrl-C."""
        if not stopping.training():
            super().on_broken_pipe()
        self.quiet = True
        discard_output()
        os.kill(os.getpid(), signal.SIGINT)


# The commands of a notebook have FORCE_COLOR, with which rich would draw bars into a file. Outside a terminal, rich
# would fold tables at 80 columns.
if sys.stdout.isatty():
    console = _Console()
else:
    console = _Console(force_terminal=False, width=None if "COLUMNS" in os.environ else 200)
bars = Bars(console)


def say(text: str) -> None:
    """Prints a text as it is: no markup, no colours, and lines that are not wrapped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def fail(message: str, status: int) -> None:
    """Prints an error and exits. Its lines are not wrapped, so that paths can be copied."""
    Console(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(status)


@contextmanager
def progress_of(steps: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield plain_report(steps)
        return
    with bars.bar("training", total=steps, more="compiling") as bar:

        def report(entry: dict[str, Any]) -> None:
            title = f"training {entry['step']}/{steps}"
            bars.progress.update(bar, completed=entry["step"], description=title, more=_losses(entry))
            _say_deaths(entry)

        yield report


def plain_report(steps: int) -> Callable[[dict[str, Any]], None]:
    """Prints a line for about every tenth of the training."""
    printed = 0

    def report(entry: dict[str, Any]) -> None:
        nonlocal printed
        if entry["step"] < printed:  # another training, such as a restart
            printed = 0
        if entry["step"] - printed >= steps / 10 or entry["step"] >= steps:
            printed = entry["step"]
            console.print(f"step {entry['step']}/{steps}  {_losses(entry)}  {entry['seconds']:.0f} s", highlight=False)
        _say_deaths(entry)

    return report


def _losses(entry: dict[str, Any]) -> str:
    losses = [float(loss) for loss in entry["loss"]]
    if len(losses) > 8:
        low, median, high = np.nanquantile(losses, [0, 0.5, 1])
        return f"loss {median:.4f} ({low:.4f} - {high:.4f}, {len(losses)} lanes)"
    return "loss " + " ".join(f"{loss:.4f}" for loss in losses)


def _say_deaths(entry: dict[str, Any]) -> None:
    for death in entry.get("died", []):
        who = f"seed {death['seed']}" + (f" of {death['combination']}" if "combination" in death else "")
        rest = " and the others continue" if any(entry["alive"]) else ""
        say(
            f"{who} diverged at step {death['step']}: loss {death['loss']}, gradient norm {death['grad_norm']}; its "
            f"last good parameters are kept{rest}"
        )
