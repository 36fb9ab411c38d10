"""Sends signals to `lenmem train` at random moments of its first seconds, and checks how it ends.

Each try starts the quickstart in a separate process group, and sends SIGINT to the group after a random time. The
training must report the stop and end by itself within 5 s, with exit status 130 (143 for SIGTERM), without a torn
checkpoint, and with a line on how to continue. Exits with 1 if one try did not.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from lenmem.training import checkpoint

LIMIT = 5.0


def attempt(directory: Path, number: signal.Signals, after: float, trained: bool) -> tuple[str, list[str]]:
    """(the phase in which it was stopped and the times, the faults)."""
    command = [sys.executable, "-m", "lenmem", "train", "quickstart"]
    command += ["--training.steps", "100000", "--directory", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0)
    while trained and process.poll() is None and not (directory / "metrics.jsonl").exists():
        time.sleep(0.05)
    time.sleep(after)
    started, steps = directory.exists(), (directory / "metrics.jsonl").exists()
    phase = "training" if steps else "compiling" if started else "importing"
    sent = time.monotonic()
    os.killpg(process.pid, number)
    timer = threading.Timer(60, process.kill)
    timer.start()
    said, heard = "", math.inf
    assert process.stdout is not None
    while chunk := os.read(process.stdout.fileno(), 65536):
        said += chunk.decode()
        if "stopping" in said:
            heard = min(heard, time.monotonic() - sent)
    process.wait()
    timer.cancel()
    seconds = time.monotonic() - sent
    wrong = []
    if process.returncode != 128 + number:
        wrong.append(f"exit status {process.returncode}")
    if seconds > LIMIT:
        wrong.append(f"{seconds:.1f} s")
    if "Traceback" in said or not re.search(r"^ +lenmem train .*--(directory|resume) ", said, re.MULTILINE):
        wrong.append("no line that says how to go on")
    saved = directory / "checkpoints"
    wrong += [f"step {step} is torn" for step in checkpoint.steps(saved) if not checkpoint.is_intact(saved, step)]
    if wrong:
        wrong.append("it said:\n" + said)
    return f"{phase:9} said so after {heard:.1f} s, ended after {seconds:.1f} s", wrong


def main() -> int:
    """Makes the tries and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tries", type=int, help="how many trainings to stop")
    parser.add_argument("--term", action="store_true", help="by SIGTERM instead of SIGINT")
    parser.add_argument("--between", type=float, nargs=2, default=(0.1, 15.0), help="seconds after the start")
    parser.add_argument("--trained", action="store_true", help="seconds after the first steps instead")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; default: a new one")
    options = parser.parse_args()
    number = signal.SIGTERM if options.term else signal.SIGINT
    draw = random.Random(options.seed)
    # In the background of a shell SIGINT is ignored, and child processes inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed, phases = 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="lenmem-interrupt-") as folder:
        for index in range(options.tries):
            after = draw.uniform(*options.between)
            ended, wrong = attempt(Path(folder) / f"run-{index}", number, after, options.trained)
            failed += bool(wrong)
            phases[ended.split()[0]] += 1
            print(f"{number.name} after {after:4.1f} s: {ended}  {'; '.join(wrong) or 'good'}", flush=True)
    print(f"{options.tries - failed} of {options.tries} ended as they should ({dict(phases)})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
