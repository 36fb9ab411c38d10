"""Checks the quickstart's promise on any key and processor: at each length beyond training, at least 99% exact match in
the median seed and 95% in the lowest.

    python scripts/check_quickstart.py                     # 5 keys under 3 instruction sets, some minutes
    python scripts/check_quickstart.py --keys 2 --sets SSE4_2 --samples 256

Older processors are emulated: XLA compiles for the instruction set of `--xla_cpu_max_isa`. Sums are then computed in
another order, which is enough to change the course of a training. `native` is the instruction set of the machine. Exits
with 1 if the promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("native", "AVX2", "SSE4_2")
"""XLA ignores unknown names, so only these are allowed."""
MEDIAN, LOWEST = 99.0, 95.0
"""Percent of exact matches at the worst length: in the median seed, and in the lowest seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and returns the exit status."""
    parser = argparse.ArgumentParser(description="Train the quickstart from several keys under several processors.")
    parser.add_argument("--keys", type=int, default=5, help="train from --training.seed 0 to KEYS - 1 (default: 5)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="instruction sets (default: all)")
    parser.add_argument("--samples", type=int, default=256, help="examples of each length (default: 256)")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: those of the configuration)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--child", choices=SETS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.keys < 1 or options.samples < 1:
        parser.error("--keys and --samples must be at least 1")
    if options.child:
        child(options.child, options.keys, options.samples, options.steps)
        return 0
    print("exact match in percent at the worst length beyond training, and at the longest, by seed")
    print(f"{'set':8} {'key':>3} {'median':>7} {'lowest':>7}   {'longest':24} {'training':>8}")
    rows = [row for name in options.sets for row in measured(name, options)]
    for name in options.sets:
        values = [value for row in rows if row["set"] == name for value in row["longest"]]
        print(f"{name}: {min(values):.1f} to {max(values):.1f} at the longest length, median {np.median(values):.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    kept = sum(keeps(row) for row in rows)
    print(f"{kept} of {len(rows)} trainings have {MEDIAN:g}% in the median seed and {LOWEST:g}% in the lowest")
    return 0 if kept == len(rows) else 1


def keeps(row: dict[str, Any]) -> bool:
    """Whether the two figures of a row keep the promise."""
    return row["median"] >= MEDIAN and row["lowest"] >= LOWEST


def measured(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one instruction set, computed in a separate process, since XLA reads its flags only once. Prints each
    row."""
    flags = os.environ.get("XLA_FLAGS", "") + ("" if name == "native" else f" --xla_cpu_max_isa={name}")
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--keys",
        str(options.keys),
        "--samples",
        str(options.samples),
    ]
    command += [] if options.steps is None else ["--steps", str(options.steps)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    rows = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            longest = " ".join(f"{value:.1f}" for value in row["longest"])
            shown = f"{row['set']:8} {row['key']:3} {row['median']:7.1f} {row['lowest']:7.1f}   {longest:24}"
            print(f"{shown} {row['seconds']:6.0f} s" + ("" if keeps(row) else "  broken"), flush=True)
            rows.append(row)
    if process.returncode:
        raise SystemExit(f"the training under {name} ended with {process.returncode}")
    return rows


def child(name: str, keys: int, samples: int, steps: int | None) -> None:
    """Trains and measures each key; prints a line of JSON for each."""
    import lenmem
    from lenmem.training.lanes import replaced

    experiment = lenmem.load_config("quickstart")
    shortest, longest = experiment.task.test_lengths
    changes: dict[str, Any] = {
        "evaluation.lengths": tuple(range(shortest, longest + 1)),
        "evaluation.samples": samples,
    } | ({} if steps is None else {"training.steps": steps})
    for key in range(keys):
        changed = replaced(experiment, changes | {"training.seed": key})
        result = lenmem.train(changed)
        exact = 100 * lenmem.measure(changed, result.params).values["exact_match"]
        row = {
            "set": name,
            "key": key,
            "median": np.median(exact, axis=0).min(),
            "lowest": exact.min(),
            "longest": exact[:, -1].tolist(),
            "seconds": result.history[-1]["seconds"],
        }
        print(json.dumps(row, default=float), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
