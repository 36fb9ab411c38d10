"""The training of Ofner & Kern (2021) for Tables II, III and V, and the same comparison for a CPU.

Our copy of the paper's text lacks its formulas, and with them the learning rate, the width of the memory, the weight
and the number of pairs of the regularisation, and the length of the sequences used for selection; the text does not
specify the bound on gradients. These are our choice; the learning rate is that of Kingma & Ba (2015), to whom the paper
refers.
"""

import dataclasses
from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import ByLength, Row
from lenmem.tasks.dnc import DncTask, growing_lengths
from lenmem.training import Cosine, Optimizer, Training

# The tables' controllers, and our names.
MODELS = {
    "STATEFUL-BASELINE": "dnc",
    "STATELESS-BASELINE": "dnc_stateless",
    "COMPR": "dnc_compression",
    "REG": "dnc_regularized",
    "COMPR&REG": "dnc_compression_regularized",
}

EXTENDED = {"slots": 500}
"""Ten times the slots of training."""


def paper(task: DncTask, model: str = "STATEFUL-BASELINE") -> Experiment:
    """One cell of Table II, as published. The loss at length 30 is measured every 10th step, and the parameters with
    the smallest mean over 500 of these losses are selected."""
    training = Training(
        steps=300_000,
        batch_size=64,
        seeds=10,
        optimizer=Optimizer("adam", learning_rate=1e-3, clip_norm=50.0),
        selection="validation",
        selection_metric="loss",
        selection_window=500,
        validation_split="selection",
        validate_every=10,
        validation_batches=1,
        log_every=10,
        checkpoint_every=10_000,
    )
    return Experiment(task, make(MODELS[model]), training)


def small(task: DncTask, model: str = "STATEFUL-BASELINE", steps: int = 6000, **fields: Any) -> Experiment:
    """The same cell for a CPU: a shorter training with half the controller and heads, at a rate that falls to zero.

    The parameters with the best mean accuracy over four successive validations at length 20 are selected. In so few
    steps, the smallest loss at length 30, the criterion of `paper`, often belongs to a network that guesses.
    """
    task = dataclasses.replace(task, selection_length=20)
    experiment = paper(task, model)
    training = dataclasses.replace(
        experiment.training,
        steps=steps,
        batch_size=32,
        seeds=3,
        optimizer=Optimizer("adam", learning_rate=2e-3, schedule=Cosine(), clip_norm=1.0),
        selection_metric="token_accuracy",
        selection_window=4,
        validate_every=250,
        validation_batches=4,
        log_every=50,
        checkpoint_every=1000,
    )
    machine = make(MODELS[model], hidden_size=64, read_heads=2, **fields)
    return Experiment(task, machine, training, Evaluation(batch_size=64))


def table_rows(task: DncTask, name: str, metric: str = "token_accuracy") -> dict[str, Row]:
    """A task's rows of Table II, `<task>-<model>`, and of Table V, `<task>-<model>-extended`."""
    original = ByLength(tuple(range(2, 101)), samples=640, metric=metric)
    extended = ByLength(growing_lengths(2, 1000), samples=192, metric=metric)
    return _rows({model: paper(task, model) for model in MODELS}, name, "", original, extended)


LONG = 30_000
"""Steps of the rows `-long`."""


def small_rows(task: DncTask, name: str, metric: str = "token_accuracy", **options: Any) -> dict[str, Row]:
    """The same rows for a CPU: `<task>-<model>-small` and `<task>-<model>-extended-small`, and with `LONG` steps
    `<task>-<model>-long` and `<task>-<model>-extended-long`."""
    original = ByLength((*range(2, 46), 50, 60, 70, 80, 90, 100), samples=192, metric=metric)
    sparse = (2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 60, 80, 100, 150, 200, 250)
    extended = ByLength(sparse, samples=32, metric=metric)
    rows = {}
    for suffix, given in (("-small", options), ("-long", options | {"steps": LONG})):
        experiments = {model: small(task, model, **given) for model in MODELS}
        rows |= _rows(experiments, name, suffix, original, extended)
    return rows


def _rows(
    experiments: dict[str, Experiment], task: str, suffix: str, original: ByLength, extended: ByLength
) -> dict[str, Row]:
    rows = {}
    for model, experiment in experiments.items():
        identity, measured = {"task": task, "model": model}, {"longest_length": "max_length"}
        stem = f"{task}-{MODELS[model]}"
        rows[f"{stem}{suffix}"] = Row(experiment, "table_2", identity, measured, by_length=original)
        rows[f"{stem}-extended{suffix}"] = Row(
            experiment,
            "table_5",
            identity,
            measured,
            by_length=extended,
            after_training=EXTENDED,
            trained_as=f"{stem}{suffix}",
        )
    return rows
