"""Progress: long computations report it, the command line shows it, and short ones are silent."""

from __future__ import annotations

import io
import re
import types
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from rich.console import Console

from lenmem import bars, progress
from lenmem.data import expressions, trees
from lenmem.evaluation import metrics
from lenmem.evaluation.lengths import length_curve
from lenmem.evaluation.metrics import score
from lenmem.tasks.lantm import Copy
from tests.training.tiny import Bag


class Told:
    """A listener that records (what, the fractions)."""

    def __init__(self):
        self.heard: list[tuple[str, list[float]]] = []

    @contextmanager
    def __call__(self, what):
        shares: list[float] = []
        self.heard.append((what, shares))
        yield shares.append


@pytest.fixture(scope="module")
def network():
    task = Copy(vocabulary=4, train_lengths=(1, 3))
    model = Bag(spec=task.spec)

    @jax.jit
    @jax.vmap
    def init(key):
        batch = task.source("test", 2).batch(jax.random.key(0), 0)
        return model.init(key, batch.inputs, batch.input_mask, batch.target_mask)["params"]

    params = init(jax.random.split(jax.random.key(0), 2))
    return model, params, task


def test_a_curve_says_how_far_it_is_and_is_the_same(network, monkeypatch):
    monkeypatch.setattr(metrics, "PARTS", 3)
    arguments = (*network, (2, 5, 18, 20), 7, jax.random.key(1))  # eight batches a bucket, which three do not divide
    told = Told()
    plain = length_curve(*arguments, batch_size=2)
    with progress.listened(told):
        heard = length_curve(*arguments, batch_size=2, label="it")
    ((what, shares),) = told.heard
    assert what == "measuring it"
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert len(shares) == 6  # two buckets in three parts
    for name, values in plain.values.items():
        np.testing.assert_array_equal(heard.values[name], values)


def test_a_score_says_how_far_it_is_and_is_the_same(network):
    told = Told()
    plain = score(*network, samples=7, batch_size=2)
    with progress.listened(told):
        heard = score(*network, samples=7, batch_size=2)
    assert told.heard == [("scoring", [0.25, 0.5, 0.75, 1.0])]
    for name, values in plain.items():
        np.testing.assert_array_equal(heard[name], values)


def test_trees_say_how_far_they_are(capfd):
    told = Told()
    wanted = trees.Wanted({1: 3, 2: 4}, lowest=1, highest=3, longest=20, seed=(0,))
    with progress.listened(told):
        trees.collect(expressions.arithmetic(0.5), wanted, "expressions")
    ((what, shares),) = told.heard
    assert what == "drawing expressions"
    assert shares[-1] == 1
    printed = capfd.readouterr()
    assert not printed.out + printed.err


class Clock:
    """In the place of `time` and of timers: time passes only in `pass_by`, so that no machine is too slow."""

    def __init__(self, monkeypatch):
        self.now, self.alarms = 100.0, []
        monkeypatch.setattr(bars.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(bars, "_after", self.after)

    def after(self, delay, action):
        alarm = (self.now + delay, action)
        self.alarms.append(alarm)
        return types.SimpleNamespace(cancel=lambda: alarm in self.alarms and self.alarms.remove(alarm))

    def pass_by(self, seconds):
        end = self.now + seconds
        for alarm in [alarm for alarm in self.alarms if alarm[0] <= end]:
            self.alarms.remove(alarm)
            self.now, action = alarm
            action()
        self.now = end


def output(monkeypatch, *seconds: float, terminal: bool = False) -> str:
    """The output for work in equal parts that take these times."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    clock, shown = Clock(monkeypatch), bars.Bars(console)
    monkeypatch.setattr(shown.progress, "get_time", lambda: clock.now)
    with progress.listened(shown.shown), progress.track("digging") as at:
        for share, part in zip(np.linspace(0, 1, len(seconds) + 1)[1:], seconds, strict=True):
            clock.pass_by(part)
            at(share)
            shown.progress.refresh()
    assert not clock.alarms
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_quick_is_not_mentioned(monkeypatch, terminal):
    assert "digging" not in output(monkeypatch, 0.4 * bars.QUIET, 0.4 * bars.QUIET, terminal=terminal)


def test_what_takes_long_has_lines(monkeypatch):
    assert (bars.QUIET, bars.BETWEEN) == (3, 10)
    assert output(monkeypatch, 8, 8).splitlines() == ["digging: under way", "digging: took 16 s"]
    lines = output(monkeypatch, 20, 20).splitlines()
    assert lines == ["digging: under way", "digging: 50%", "digging: took 40 s"]


def test_the_time_left_does_not_count_what_comes_first(monkeypatch):
    times = (600, *[20] * 3)  # a compilation, and the pace after it
    lines = output(monkeypatch, *times).splitlines()
    assert lines[1:-1] == ["digging: 25%", "digging: 50%, about 40 s left", "digging: 75%, about 20 s left"]
    shown = output(monkeypatch, *times, terminal=True)
    assert re.findall(r"about \w+ \w+ left", shown) == ["about 40 s left", "about 20 s left"]


def test_what_takes_long_has_a_bar_on_a_terminal(monkeypatch):
    shown = output(monkeypatch, bars.QUIET + 1, bars.QUIET + 1, terminal=True)
    assert "digging" in shown
    assert "50%" in shown


def test_bars_lie_within_each_other(monkeypatch):
    monkeypatch.setattr(bars, "QUIET", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    all_bars = bars.Bars(console)
    with all_bars.bar("training", total=10), progress.listened(all_bars.shown):
        for _ in range(2):
            with progress.track("scoring") as at:
                at(0.5)
    assert not all_bars.open


def test_nobody_listens():
    assert not progress.wanted()
    with progress.track("anything") as at:
        at(0.3)
