"""The map: many networks on many tasks, each trained for the same time with the same number of parameters.

A cell is one network on one task. It is trained with each of a few learning rates for a short time; the rate with the
lowest loss on new examples of the training lengths is kept, and with it some seeds are trained for longer. Time is that
of the processor, without compilation, so other work on the machine changes little. During a training the rate rises for
a tenth of the time and falls to zero along a cosine.

The outcome of a cell is its reach: the longest measured length up to which the median exact match of the seeds stays at
95%, relative to the longest training length. `4x+` is a lower bound: 4x is the longest measured length. A cell below
95% at a training length has not learned its task and has no reach, so nothing is said about its generalisation.

    results/map/<task>/<network>.json    a record for each cell
    results/map/README.md, map.png       the table and its picture
"""

from __future__ import annotations

from lenmem.map.cells import (
    NETWORKS,
    QUICK,
    QUICK_NETWORKS,
    QUICK_TASKS,
    TASKS,
    Budget,
    Cell,
    cells,
    curve_lengths,
    fields_of,
    task_of,
)
from lenmem.map.outcomes import (
    Outcomes,
    described,
    markdown,
    outcomes,
    reach_of,
    read,
    save_map,
    trained_accuracy,
    with_recorded,
)
from lenmem.map.training import Trainer, run_cell, run_map, sized

__all__ = [
    "NETWORKS",
    "QUICK",
    "QUICK_NETWORKS",
    "QUICK_TASKS",
    "TASKS",
    "Budget",
    "Cell",
    "Outcomes",
    "Trainer",
    "cells",
    "curve_lengths",
    "described",
    "fields_of",
    "markdown",
    "outcomes",
    "reach_of",
    "read",
    "run_cell",
    "run_map",
    "save_map",
    "sized",
    "task_of",
    "trained_accuracy",
    "with_recorded",
]
