"""Writes the quickstart's table into the README, from `results/quickstart/comparison.json` and `keys.json`.

    python scripts/make_quickstart.py            # write the table
    python scripts/make_quickstart.py --check    # exit 1 if the table is out of date

`lenmem compare quickstart --models lantm lstm` writes the record and its picture, and
`python scripts/check_quickstart.py --json results/quickstart/keys.json` what several keys give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.statistics import summarise
from lenmem.evaluation.tables import METRICS, percent, spread
from lenmem.files import read_json
from lenmem.zoo.shelf import MASTERED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "quickstart"
MARKS = "<!-- quickstart:begin (written by scripts/make_quickstart.py) -->\n", "<!-- quickstart:end -->"
LENGTHS = (2, 16, 17, 24, 32)
"""Lengths of the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the table, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the quickstart's table into the README.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is out of date")
    options = parser.parse_args(arguments)
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(MARKS[0])
    text = (
        before
        + MARKS[0]
        + section(read_json(RESULTS / "comparison.json"), read_json(RESULTS / "keys.json"))
        + MARKS[1]
        + rest.partition(MARKS[1])[2]
    )
    if not options.check:
        readme.write_text(text)
    elif readme.read_text() != text:
        print("README.md is out of date; run: python scripts/make_quickstart.py", file=sys.stderr)
        return 1
    return 0


def section(record: dict[str, Any], keys: list[dict[str, Any]]) -> str:
    """The picture, the table and where they come from; then the lowest seed of trainings from several keys."""
    curves = {network["model"].upper(): LengthCurve.from_dict(network["curve"]) for network in record["networks"]}
    header = ["length", "", *(f"{name} {metric.replace('_', ' ')} %" for name in curves for metric in METRICS)]
    lines = ["| " + " | ".join(header) + " |", "|---:|---|" + "---:|" * (len(header) - 2)]
    for length in LENGTHS:
        cells = [cell(curve.at(length)[metric]) for curve in curves.values() for metric in METRICS]
        trained = all(curve.train_lengths[0] <= length <= curve.train_lengths[1] for curve in curves.values())
        lines.append("| " + " | ".join([str(length), "train" if trained else "", *cells]) + " |")
    first, training = next(iter(curves.values())), record["networks"][0]["experiment"]["training"]
    command, environment = record["command"].partition(" --directory")[0], record["environment"]
    longest = first.train_lengths[1]
    missed = [name for name, curve in curves.items() if np.median(curve.at(longest)["exact_match"]) < MASTERED]
    caution = (
        f"The {' and the '.join(missed)} did not learn the training lengths in these steps (exact match at {longest}), "
        "so values beyond them say nothing about extrapolation. "
        if missed
        else ""
    )
    counts = [len({row[name] for row in keys}) for name in ("key", "set")]
    seeds, lowest = sum(len(row["longest"]) for row in keys), min(row["lowest"] for row in keys)
    return "\n".join(
        [
            "![Token accuracy and exact match by length: the LANTM stays at the top, the LSTM falls]"
            "(results/quickstart/curve.png)",
            "",
            *lines,
            "",
            f"Median of {training['seeds']} seeds (lowest - highest), {first.samples} samples per length, "
            f"{training['steps']} steps each. {caution}The LSTM's learning rate was chosen from four values by "
            f"accuracy at the training lengths (`configs/quickstart.py`). Measured by `{command}` at commit "
            f"{environment['commit'][:9]}, on two CPU cores with jax {environment['versions']['jax']}.",
            "",
            f"`python scripts/check_quickstart.py` trains from {counts[0]} keys under each of {counts[1]} instruction "
            f"sets. The lowest of these {seeds} LANTM seeds has {lowest:.1f}% exact match at the worst length beyond "
            f"training, up to {LENGTHS[-1]}.",
            "",
        ]
    )


def cell(seeds: np.ndarray) -> str:
    """Median and range."""
    summary = summarise(seeds)
    return spread(*map(percent, (summary.median, summary.low, summary.high)))


if __name__ == "__main__":
    sys.exit(main())
