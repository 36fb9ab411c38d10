"""Sweeps: an experiment with all combinations of values for some of its fields.

Combinations that differ only in numbers are trained by one program, together with all their seeds (`training.lanes`).
Combinations that differ in other ways, such as in shapes, are trained one after another. Each combination becomes a
run, as if it were trained alone.

    <directory>/sweep.json          the experiment and the values
    <directory>/<combination>/      a run, and score.json, which is written last
    <directory>/programs/<number>/  checkpoints of a program with several combinations, until they are finished
    <directory>/sweep.csv, .png     the table and its picture
"""

from __future__ import annotations

from lenmem.sweep.combinations import Combination, JointTraining, Outcome, combine, plan
from lenmem.sweep.table import best, rule, save_table, sweep_table
from lenmem.sweep.training import sweep

__all__ = [
    "Combination",
    "JointTraining",
    "Outcome",
    "best",
    "combine",
    "plan",
    "rule",
    "save_table",
    "sweep",
    "sweep_table",
]
