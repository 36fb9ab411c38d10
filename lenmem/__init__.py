"""lenmem: trained on short sequences, does this network still work on longer ones?

    experiment = lenmem.Experiment(task=lenmem.tasks.make("copy"), model=lenmem.models.make("lantm"))
    result = lenmem.train(experiment)
    curve = lenmem.measure(result)

`lenmem.ops` has the papers' mathematics, `lenmem.nn` cells and interfaces, `lenmem.models` and `lenmem.tasks` the
networks and tasks, `lenmem.papers` the papers' printed numbers, `lenmem.parallel` operations over several devices.
Pictures are in `lenmem.evaluation.plots`. Submodules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy

__version__ = "0.2.0"

if TYPE_CHECKING:
    from lenmem import (
        aot,
        bars,
        beyond,
        catalogue,
        cli,
        compiled,
        configs,
        contract,
        data,
        drawing,
        errors,
        evaluation,
        experiment,
        fields,
        figures,
        files,
        gallery,
        keys,
        leaves,
        map,
        models,
        nn,
        ops,
        options,
        papers,
        parallel,
        placement,
        progress,
        queue,
        records,
        reproduce,
        restarts,
        reuse,
        runs,
        seeds,
        serialize,
        share,
        stopping,
        subject,
        sweep,
        tasks,
        training,
        types,
        workers,
        zoo,
    )
    from lenmem.configs import load_config
    from lenmem.contract import check
    from lenmem.evaluation.lengths import Evaluation, LengthCurve, length_curve
    from lenmem.evaluation.metrics import score
    from lenmem.experiment import Experiment, Run, export_run, import_run, load
    from lenmem.runs import measure
    from lenmem.tasks.base import Task
    from lenmem.training import Optimizer, Result, Training, train
    from lenmem.types import Batch, Example, Spec, Step
else:
    __getattr__, __dir__ = lazy.attach(
        __name__,
        {
            "configs": ["load_config"],
            "contract": ["check"],
            "evaluation.lengths": ["Evaluation", "LengthCurve", "length_curve"],
            "evaluation.metrics": ["score"],
            "experiment": ["Experiment", "Run", "export_run", "import_run", "load"],
            "runs": ["measure"],
            "tasks.base": ["Task"],
            "training": ["Optimizer", "Result", "Training", "train"],
            "types": ["Batch", "Example", "Spec", "Step"],
        },
    )

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
    "aot",
    "bars",
    "beyond",
    "catalogue",
    "check",
    "cli",
    "compiled",
    "configs",
    "contract",
    "data",
    "drawing",
    "errors",
    "evaluation",
    "experiment",
    "export_run",
    "fields",
    "figures",
    "files",
    "gallery",
    "import_run",
    "keys",
    "leaves",
    "length_curve",
    "load",
    "load_config",
    "map",
    "measure",
    "models",
    "nn",
    "ops",
    "options",
    "papers",
    "parallel",
    "placement",
    "progress",
    "queue",
    "records",
    "reproduce",
    "restarts",
    "reuse",
    "runs",
    "score",
    "seeds",
    "serialize",
    "share",
    "stopping",
    "subject",
    "sweep",
    "tasks",
    "train",
    "training",
    "types",
    "workers",
    "zoo",
]
