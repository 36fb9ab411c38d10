"""Two processes, each with two devices, train one run as one process does.

Run as a program, this file is one of them (`main`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

import lenmem
from lenmem import cli
from lenmem.runs import measuring
from lenmem.training import processes, train
from tests.marks import HANGS
from tests.training.tiny import SGD, experiment

ROOT = Path(__file__).parent.parent.parent
EXPERIMENT = experiment(optimizer=SGD, selection="validation", validate_every=2, validation_batches=1, keep_steps=(2,))
CONFIG = "from tests.training.test_processes import EXPERIMENT as experiment\n"
STOPPED = 4


@pytest.mark.slow
def test_two_processes_train_one_run(tmp_path):
    """Both stop at a signal to the second, resume, and give the curve and parameters of one process."""
    (tmp_path / "config.py").write_text(CONFIG)
    with socket.socket() as reserved:
        # Held until the end, so that no other process gets this port. Processes that ask to share it may bind it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("localhost", 0))
        address = f"localhost:{reserved.getsockname()[1]}"
        shared = {"PYTHONPATH": str(ROOT), "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "error", __file__, str(tmp_path)],
                env=os.environ | shared | {"JAX_PROCESS_ID": str(i)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(2)
        ]
        try:
            alone = train(EXPERIMENT, directory=tmp_path / "alone")
            said = [process.communicate(timeout=HANGS) for process in started]
        finally:
            for process in started:
                process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert f"stopped; step {STOPPED} is saved, continue with" in said[0][0]
    assert f"lenmem train --resume {tmp_path / 'together'} --distributed" in said[0][0]
    # Only the first process prints, except for Gloo, whose threads write such pieces into each other's lines.
    gloo = r"\[Gloo\] Rank|is connected to|peer ranks\.|Expected number of connected peer ranks is :|\d+"
    assert not re.sub(gloo, "", said[1][0]).strip(), said[1][0]

    def lines(run: str):
        entries = map(json.loads, (tmp_path / run / "metrics.jsonl").read_text().splitlines())
        return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries]

    together = lines("together")
    assert [entry["step"] for entry in together] == [2, 4, 6]
    for entry, expected in zip(together, lines("alone"), strict=True):
        assert entry.keys() == expected.keys()
        for name in ("loss", "grad_norm", "validation/exact_match"):
            np.testing.assert_allclose(entry[name], expected[name], rtol=1e-5)
    run = lenmem.load(tmp_path / "together")
    assert run.step == 6
    chex.assert_trees_all_close(run.params, alone.params, rtol=1e-4, atol=1e-6)
    assert lenmem.load(tmp_path / "together", step=2).step == 2
    assert (tmp_path / "together" / "curve.csv").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("localhost:1234", None, "0"), "some are set and some are not"),
        (("localhost:1234", "2", "first"), "JAX_PROCESS_ID must be a number, got 'first'"),
        ((None, None, None), "no other processes were found"),
    ],
)
def test_a_process_that_cannot_find_the_others_says_so(monkeypatch, values, message):
    def refused(*arguments):
        raise ValueError("coordinator_address should be defined.")

    for name, value in zip(processes.VARIABLES, values, strict=True):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", refused)
    with pytest.raises(ValueError, match=message):
        processes.join()


def main(directory: Path) -> None:
    """Trains until the second process is told to stop, continues, and fails in both."""
    command = ["train", str(directory / "config.py"), "--distributed", "--directory", str(directory / "together")]

    def stopping(*arguments, report, **options):
        def then_stop(entry):
            report(entry)
            if jax.process_index() == 1 and entry["step"] == STOPPED:
                os.kill(os.getpid(), signal.SIGTERM)

        return train(*arguments, report=then_stop, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measuring, "train", stopping)
        # The signal's status in the second process, and that of Ctrl-C in the first.
        with pytest.raises(SystemExit, match="143|130"):
            cli.main(command)
    assert jax.process_count() == 2
    assert EXPERIMENT.training.device_count() == 4
    assert not (directory / "together" / "curve.csv").exists()
    command.remove("--distributed")  # They have met.
    cli.main([*command, "--resume"])
    with pytest.raises(ValueError, match="already holds a run" if processes.is_first() else "the first process"):
        train(EXPERIMENT, directory=directory / "together")

    def failing_in_the_second() -> None:
        if not processes.is_first():
            raise OSError("cannot read it")

    error, message = (ValueError, "process 1 has failed") if processes.is_first() else (OSError, "cannot read it")
    with pytest.raises(error, match=message):
        processes.on_all(failing_in_the_second)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
