"""lenmem: trained on short sequences, does this network still work on longer ones?

    experiment = lenmem.Experiment(task=lenmem.tasks.make("copy"), model=lenmem.models.make("lantm"))
    result = lenmem.train(experiment)
    curve = lenmem.measure(experiment, result.params)

`lenmem.ops` holds the papers' mathematics, `lenmem.nn` cells and interfaces, `lenmem.models` and `lenmem.tasks` the
networks and tasks, `lenmem.papers` the numbers the papers printed. Pictures are in `lenmem.evaluation.plots`.
"""

from __future__ import annotations

__version__ = "0.1.0"

from lenmem import models, nn, ops, papers, tasks
from lenmem.configs import load_config
from lenmem.evaluation.lengths import Evaluation, LengthCurve, length_curve
from lenmem.evaluation.metrics import score
from lenmem.experiment import Experiment, Run, export_run, import_run, load
from lenmem.runs import measure
from lenmem.tasks.base import Task
from lenmem.training import Optimizer, Result, Training, train
from lenmem.types import Batch, Example, Spec, Step

__all__ = [
    "Batch",
    "Evaluation",
    "Example",
    "Experiment",
    "LengthCurve",
    "Optimizer",
    "Result",
    "Run",
    "Spec",
    "Step",
    "Task",
    "Training",
    "__version__",
    "export_run",
    "import_run",
    "length_curve",
    "load",
    "load_config",
    "measure",
    "models",
    "nn",
    "ops",
    "papers",
    "score",
    "tasks",
    "train",
]
