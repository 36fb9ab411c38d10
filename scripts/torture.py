"""Kills trainings at random moments and checks that nothing is lost; flips bits of checkpoints and checks that each is
detected.

A small network with a large embedding is trained in a separate process, which is killed (SIGKILL) at a random moment,
every other time while a checkpoint is being written, and resumed, until the training ends. Its final state must equal
that of the uninterrupted training bit for bit. Exits with 1 if a state differs, or if a flipped bit is not detected.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import lenmem
from lenmem.leaves import named_leaves
from lenmem.tasks.lantm import Copy
from lenmem.training import checkpoint
from lenmem.training.run_directory import CHECKPOINTS, abstract_state, holds_run

STEPS, EVERY, MOST_KILLS = 12, 2, 4
FINAL = "final.json"


class Wide(nn.Module):
    """A bag of tokens whose embedding is most of the checkpoint."""

    rows: int = 100_000
    output_size: int = 9

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        states = nn.Embed(self.rows, 16)(inputs) * input_mask[..., None]
        answer = nn.Dense(self.output_size)(states.sum(axis=1))
        return jnp.broadcast_to(answer[:, None], (*target_mask.shape, self.output_size))


def experiment(rows: int) -> lenmem.Experiment:
    """Two seeds, with a checkpoint every other step."""
    training = lenmem.Training(steps=STEPS, batch_size=4, seeds=2, log_every=EVERY, checkpoint_every=EVERY, devices=1)
    return lenmem.Experiment(Copy(vocabulary=8, train_lengths=(1, 4)), Wide(rows), training)


def work(directory: str, rows: int) -> None:
    """Trains or resumes, and writes hashes of the resulting parameters. Runs in a process that may be killed."""
    result = lenmem.train(experiment(rows), directory=directory, resume=holds_run(Path(directory)))
    hashes = [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in jax.tree.leaves(result.params)]
    (Path(directory) / FINAL).write_text(json.dumps({"step": result.step, "params": hashes}))


def state_of(directory: Path) -> Any:
    """The state to compare: returned parameters, every leaf of the last checkpoint (by SHA-256), and the losses."""
    like = abstract_state(lenmem.load(directory, modules=[Wide]).experiment)
    state, _ = checkpoint.restore(directory / CHECKPOINTS, like, STEPS)
    leaves = [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in named_leaves(state).values()]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    return json.loads((directory / FINAL).read_text()), leaves, metrics


def saving(directory: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((directory / CHECKPOINTS).glob("*.orbax-checkpoint-tmp"))


def torture(directory: Path, start: Any, seconds: float, draw: random.Random) -> tuple[int, int, list[int]]:
    """Kills and resumes until the training ends: (kills, kills while a checkpoint was written, steps resumed from)."""
    kills, writing, resumed = 0, 0, []
    while not (directory / FINAL).exists():
        process = start(directory)
        deadline = time.monotonic() + draw.uniform(0, seconds)
        if kills % 2:  # during one of the next few saves, some time after it begins
            for _ in range(draw.randint(1, 3)):
                while process.is_alive() and saving(directory):
                    time.sleep(0.001)
                while process.is_alive() and not saving(directory):
                    time.sleep(0.001)
            deadline = time.monotonic() + draw.uniform(0, 0.1)
        process.join(max(deadline - time.monotonic(), 0) if kills < MOST_KILLS else None)
        if process.is_alive():
            process.kill()
            process.join()
            kills, writing = kills + 1, writing + saving(directory)
            resumed.append(checkpoint.latest(directory / CHECKPOINTS) or 0)
        elif process.exitcode:
            raise SystemExit(f"the training failed with exit status {process.exitcode}")
    return kills, writing, resumed


def flip_bits(directory: Path, count: int, draw: random.Random) -> int:
    """The number of `count` random bits of the last checkpoint that resuming detects, with one flip at a time.

    Loading reads only the parameters: it must either raise an error, or return exactly the saved parameters.
    """
    run = lenmem.load(directory, modules=[Wide])
    like, sound_params = abstract_state(run.experiment), jax.tree.map(np.ndarray.tobytes, run.params)
    saved = directory / CHECKPOINTS / str(STEPS)
    files = sorted(path for path in saved.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = [path.stat().st_size for path in files]
    found, named = 0, 0
    for number in range(count):
        # Alternate between any bit of the checkpoint and any bit of a random file, so that small files are tested too.
        path = draw.choices(files, sizes)[0] if number % 2 else draw.choice(files)
        sound = path.read_bytes()
        bit = draw.randrange(8 * len(sound))
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        where, right = f"bit {bit} of {path.relative_to(saved)}", True
        with contextlib.suppress(checkpoint.CheckpointError):
            right = jax.tree.map(np.ndarray.tobytes, lenmem.load(directory, modules=[Wide]).params) == sound_params
        try:
            checkpoint.restore(directory / CHECKPOINTS, like, STEPS)
            print(f"  {where} was not noticed")
        except checkpoint.CheckpointError as error:
            found += right
            named += f"the checkpoint of step {STEPS - EVERY} is intact" in str(error)
        if not right:
            print(f"  {where} was loaded as other parameters")
        path.write_bytes(sound)
    lenmem.load(directory, modules=[Wide])
    print(
        f"{found} of {count} flipped bits found in {len(files)} files of {sum(sizes):,} bytes; {count - found} loaded"
    )
    print(f"the intact checkpoint before it was offered {named} times")
    return found


def main() -> int:
    """Runs the tests and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int, nargs="?", default=0, help="trainings to kill and resume")
    parser.add_argument("--bits", type=int, default=0, help="bits to flip in a checkpoint")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments and bits; default: a new one")
    options = parser.parse_args()
    if not options.runs and not options.bits:
        parser.error("give a number of runs, or --bits")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    draw = random.Random(seed)
    print(f"lenmem {lenmem.__version__}, jax {jax.__version__}, seed {seed}")

    # A server that has imported everything forks the trainings, so they start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lenmem.training"])

    def start(directory: Path, rows: int = Wide.rows) -> Any:
        process = context.Process(target=work, args=(str(directory), rows))
        process.start()
        return process

    failures = 0
    with tempfile.TemporaryDirectory(prefix="lenmem-torture-") as folder:
        # Compiled once; a resumed training uses the same program.
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        root = Path(folder)
        if options.runs:
            for warm in ("first", "whole"):  # the second one uses the compilation cache, and gives the time
                started = time.monotonic()
                start(root / warm).join()
            seconds = time.monotonic() - started
            whole = state_of(root / "whole")
            assert whole == state_of(root / "first"), "two uninterrupted trainings differ"
            size = sum(path.stat().st_size for path in (root / "whole" / CHECKPOINTS / str(STEPS)).rglob("*"))
            print(f"uninterrupted: {STEPS} steps in {seconds:.1f} s, {STEPS // EVERY} checkpoints of {size:,} bytes")
            total = total_writing = 0
            for number in range(1, options.runs + 1):
                directory = root / f"run-{number}"
                kills, writing, resumed = torture(directory, start, seconds, draw)
                equal = state_of(directory) == whole
                failures += not equal
                total, total_writing = total + kills, total_writing + writing
                verdict = "equal" if equal else "DIFFERENT"
                print(
                    f"run {number}: {kills} kills, {writing} while writing, resumed from {resumed}: {verdict}",
                    flush=True,
                )
                shutil.rmtree(directory)
            print(
                f"{options.runs - failures} of {options.runs} runs ended bitwise equal to the uninterrupted one, after "
                f"{total} kills, {total_writing} of them while a checkpoint was being written"
            )
        if options.bits:
            start(root / "bits", 500).join()
            failures += options.bits - flip_bits(root / "bits", options.bits, draw)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
