"""Signals to a watched process: when it ends, with which status, its output and what is saved."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lenmem import stopping
from tests.marks import HANGS

ROOT = Path(__file__).parent.parent
START = """
import hashlib, sys, time
from lenmem import stopping

def compute():  # In C, where no handler of Python runs.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

def ready():
    print("ready", flush=True)

assert "jax" not in sys.modules
stopping.PATIENCE, stopping.TOGETHER = {patience}, {together}
with stopping.watched("go on with this"):
"""
TRAINING = """
    stopping.advise(lambda: "go on with that")
    with stopping.heeded() as stop:
        assert stop.watched
        {work}
"""


def watched(body: str, *, before: str = "", patience: float = 600, together: float = 0) -> list[str]:
    """The command that runs a watched program."""
    return [sys.executable, "-c", before + START.format(patience=patience, together=together) + body]


def stopped(body: str, *numbers: int, patience: float = 600, together: float = 0) -> tuple[int, str, str]:
    """(exit status, stdout after `ready`, stderr) of a watched program that gets these signals, one after another.

    Where `patience` is not what is tested, no machine is too slow for it.
    """
    command = watched(body, patience=patience, together=together)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        try:
            assert process.stdout.readline() == "ready\n"
            for index, number in enumerate(numbers):
                if index:
                    said += process.stderr.readline()
                process.send_signal(number)
            out, err = process.communicate(timeout=HANGS)
        finally:
            process.kill()
    return process.returncode, out, said + err


def training(work: str) -> str:
    return TRAINING.format(work=work.replace("\n", "\n        "))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("state", ["", "stop.offer(lambda: print('saved'))\nwith stop.writing(): pass\n"])
def test_where_nothing_is_lost_it_ends_at_once(number, state):
    status, out, err = stopped(training(f"{state}ready()\ncompute()"), number)
    assert (status, out) == (128 + number, "")
    assert err == "stopping\ngo on with that\n"


def test_before_anything_is_known():
    status, _, err = stopped("    ready(); compute()", signal.SIGTERM)
    assert (status, err) == (143, "stopping\ngo on with this\n")


def test_it_is_said_where_output_is_suppressed():
    """As while options are parsed. What was printed before is not lost."""
    body = """
    import contextlib, io, os
    sys.stdout.reconfigure(write_through=False)
    print("before")  # stays in the buffer
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        os.write(1, b"ready\\n")
        compute()
"""
    assert stopped(body, signal.SIGINT) == (130, "before\n", "stopping\ngo on with this\n")


def test_a_training_ends_by_itself():
    work = """
stop.offer(lambda: print("from outside"))
ready()
while not stop.is_set(): time.sleep(0.01)
with stop.writing(): print("saved")
"""
    status, out, err = stopped(training(work) + "    sys.exit(stopping.status())", signal.SIGINT)
    assert (status, out) == (130, "saved\n")
    assert err.startswith("stopping: ")
    assert "go on" not in err  # It says that by itself.


def test_what_takes_too_long_is_saved_from_outside():
    work = 'stop.offer(lambda: print("now"))\nstop.withdraw(lambda: print("before"))\nready()\ncompute()'
    status, out, err = stopped(training(work), signal.SIGTERM, patience=0.2)
    assert (status, out) == (143, "before\n")
    assert err.endswith("go on with that\n")


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_what_is_being_written_is_finished(numbers):
    """Also if two signals arrive together, as from `timeout`, which signals the process and again its group."""
    work = """
stop.offer(lambda: print("never"))
with stop.writing():
    ready()
    while not stop.is_set(): time.sleep(0.01)
    time.sleep(1)  # longer than the patience
    print("written")
compute()
"""
    status, out, _ = stopped(training(work), *numbers, patience=0.2, together=600)
    assert (status, out) == (128 + numbers[0], "written\n")


def test_a_second_signal_ends_it_at_once():
    work = 'stop.alone = False\nstop.offer(lambda: print("never"))\nready()\ncompute()'
    status, out, err = stopped(training(work), signal.SIGINT, signal.SIGTERM)
    assert (status, out) == (130, "")
    assert err.endswith("go on with that\n")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_outside_of_the_command_line(monkeypatch, second):
    """As in a notebook, or in a script under `timeout`. A later signal has its usual effect."""
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with stopping.heeded() as stop:
            for number in (signal.SIGINT, second):
                signal.raise_signal(number)
            assert stop.is_set()
            monkeypatch.setattr(stopping, "TOGETHER", -1.0)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(second)
        assert stopping.status() == 130
    finally:
        signal.signal(signal.SIGTERM, terminate)


def test_what_is_ignored_stays_so():
    body = "    import signal; assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN; ready(); compute()"
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = subprocess.Popen(
        watched(body, before=ignoring),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS)
    assert process.returncode == 143


def test_errors_and_statuses_pass():
    for body, status in (("    sys.exit(3)", 3), ("    1 / 0", 1), ("    pass", 0)):
        assert subprocess.run(watched(body), cwd=ROOT, capture_output=True, check=False).returncode == status


def test_the_entry_point_heeds_signals_while_it_imports():
    """The import of JAX is delayed: only the standard library has been imported before."""
    program = f"""
import sys, time
class Waiting:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            print("ready", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Waiting())
sys.argv = ["lenmem", "train", "quickstart", "--training.steps", "1 0"]
sys.path.insert(0, {str(ROOT)!r})
from lenmem.__main__ import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 130
    assert err == "stopping\nnothing was changed; start again with\n  lenmem train quickstart --training.steps '1 0'\n"


@pytest.mark.slow
def test_trainings_end_well_at_random_moments():
    command = [sys.executable, "scripts/interrupt.py", "6", "--between", "0.2", "30"]
    for more in ((), ("--term",)):
        run = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout
