"""The training of Yang & Rush (2017): Table A.1, and details from their code (see the configurations' headers)."""

import dataclasses
import itertools
from typing import Any, NamedTuple

from lenmem import tasks
from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.base import Task
from lenmem.training import Cosine, Optimizer, StepDecay, Training

from ._published import PUBLISHED, Published

PRINTED = {"token_accuracy": "fine", "exact_match": "coarse"}
"""Our metrics -> the columns of Table 1b."""

INTERPOLATED = {"token_accuracy": "fine_with", "exact_match": "coarse_with"}
"""Our metrics -> the columns of Table B.2 for networks with action interpolation."""


def training(learning_rate: float = 1e-2, delay: int = 3000) -> Training:
    """10,000 updates of 32 examples by RMSProp; after `delay` updates the rate decreases by 1% every 20 updates."""
    return Training(
        steps=10_000,
        batch_size=32,
        seeds=3,
        optimizer=Optimizer(
            "rmsprop",
            learning_rate=learning_rate,
            schedule=StepDecay(factor=0.99, every=20, delay=delay),
            decay=0.99,
            eps=1e-8,
            clip_norm=32.0,
        ),
    )


# Table A.1 with our names, for seeds 1 to 3. The unit of its decay delays is 10 updates; its init "1" is `uniform`, and
# "*" is `fan_in`.
_RATE, _DELAY = "training.optimizer.learning_rate", "training.optimizer.schedule.delay"
_MEMORY = {_RATE: (0.01, 0.02, 0.04), _DELAY: (3000, 6000), "model.initialization": ("uniform", "fan_in")}
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "LANTM": _MEMORY,
    "SLANTM": _MEMORY | {"model.bound_action": (False, True)},
    "RAM": _MEMORY | {"model.key_size": (2, 20)},
    "RAM/Tape": _MEMORY | {"model.key_size": (2, 20), "model.sharpening": (False, True)},
    "LSTM": {_RATE: (0.2, 0.02, 0.002, 0.0002), _DELAY: (5000, 7000), "model.layers": (1, 2, 3, 4)},
}


class Column(NamedTuple):
    """A column of Table 1b."""

    name: str
    """Our name for the model."""
    grid: str
    """Its row of Table A.1."""
    recipe: Training = training()
    """With a memory: the learning rate that won most often in the published configurations."""
    memory: bool = True
    """Whether it has a memory, so that the forget bias of its LSTM is a field."""
    moves: bool = False
    """Whether its heads move by actions of a Lie group."""


MODELS = {
    "LANTM": Column("lantm", "LANTM", moves=True),
    "LANTM-s": Column("lantm_s", "LANTM", moves=True),
    "SLANTM": Column("slantm", "SLANTM", moves=True),
    "SLANTM-s": Column("slantm_s", "SLANTM", moves=True),
    "RAM": Column("ram", "RAM"),
    "RAM/Tape": Column("ram_tape", "RAM/Tape"),
    "LSTM": Column("lstm", "LSTM", training(2e-3, 7000), memory=False),
}

ADAM = Training(
    steps=10_000,
    batch_size=32,
    seeds=3,
    optimizer=Optimizer("adam", learning_rate=1e-2, schedule=Cosine(), clip_norm=1.0),
)
"""Our own training: the same number of updates by Adam, with the rate falling to zero along a cosine."""

WARM = dataclasses.replace(
    ADAM,
    optimizer=Optimizer("adam", learning_rate=3e-2, schedule=Cosine(warmup=0.1), clip_norm=1.0, b2=0.9),
)
"""The quickstart's training at the paper's number of updates: a larger rate after a warm-up."""


def paper(task: Task, column: str = "LANTM", **fields: Any) -> Experiment:
    """One cell of Table 1b at the paper's scale."""
    model = make(MODELS[column].name, **fields)
    return Experiment(task, model, MODELS[column].recipe, Evaluation(test_examples=3200))


def as_published(task: Task, column: str, cell: Published) -> Experiment:
    """One cell of Table 1b with the authors' settings of network and optimiser, with two differences.

    The plain LSTM has a forget bias of 1, where the code draws it. With `uniform` initialisation the embedding is still
    N(0, 1), where the code has U(-1, 1), and a gate has one bias, where the code has the sum of two. The data are those
    of the paper's text, not of its code, which differ in `double`, `priority_sort`, `bigram_flip` and `odd_first`
    (fields `most_significant_first`, `first_priority`, `published_lengths`).
    """
    fields = {"initialization": cell.initialization, **cell.model}
    if MODELS[column].memory:
        fields["forget_bias"] = 2.0 if cell.initialization == "uniform" else None
    if MODELS[column].moves:
        fields["read_gate_bias"] = 0.0
    recipe = training(cell.learning_rate, cell.delay)
    return dataclasses.replace(paper(task, column, **fields), training=recipe)


def grid_rows() -> dict[str, Row]:
    """The grid of each cell of Table 1b: rows `<task>-<model>-grid-<settings>-<regime>`, without the published ones."""
    rows = {}
    for (name, column, regime), winner in PUBLISHED.items():
        task = tasks.make(name, regime=regime)
        where = {"task": name, "model": column, "regime": regime}
        always = {"model.bound_action": (True,)} if MODELS[column].moves else {}
        grid = {"model.initialization": ("fan_in",)} | always | GRIDS[MODELS[column].grid]
        for values in itertools.product(*grid.values()):
            fields = (path.rpartition(".")[2] for path in grid)
            settings: dict[str, Any] = dict(zip(fields, values, strict=True))
            label = "-".join([_stem(name, column), "grid", *itertools.starmap(_setting, settings.items()), regime])
            rate, delay, initialization = map(settings.pop, ("learning_rate", "delay", "initialization"))
            cell = Published(rate, delay, initialization, settings)
            if cell != winner:
                rows[label] = Row(as_published(task, column, cell), "table_1b", where, PRINTED)
    return rows


def _setting(field: str, value: Any) -> str:
    """A setting in the name of a row: `fan_in`, `learning_rate0.01`, `bound_action` or `no_bound_action`."""
    if isinstance(value, bool):
        return field if value else f"no_{field}"
    return value if isinstance(value, str) else f"{field}{value:g}"


def _stem(name: str, column: str) -> str:
    """`copy-ram_tape`: task and model in the name of a row."""
    return f"{name}-{column.lower().replace('/', '_')}"


def table_rows(task: Task, name: str) -> dict[str, Row]:
    """A line of Table 1b, and of Table B.2 with action interpolation: rows `<task>-<model>[-variant]-<regime>`.

    Variants: `published`, the authors' configuration of each cell; `interpolated` (Table B.2); `open_read_gate`, with
    the constant 0 as the gate of the read head, as in the published code; `uniform`, the other initialisation of Table
    A.1; both of these; `adam`, our training with either gate; and `warm`, the training of the quickstart, with forget
    gates that are initially half open, also for networks without moving heads. Two of them also exist with
    interpolation: `interpolated-open_read_gate` and `interpolated-warm`.
    """
    variants = {
        "open_read_gate": {"read_gate_bias": 0.0},
        "uniform": {"initialization": "uniform"},
        "open_read_gate-uniform": {"read_gate_bias": 0.0, "initialization": "uniform"},
    }
    rows = {}
    for column in MODELS:
        for regime in ("L", "S"):
            where = {"task": name, "model": column, "regime": regime}
            in_regime = dataclasses.replace(task, regime=regime)
            stem = _stem(name, column)
            rows[f"{stem}-{regime}"] = Row(paper(in_regime, column), "table_1b", where, PRINTED)
            published = as_published(in_regime, column, PUBLISHED[name, column, regime])
            rows[f"{stem}-published-{regime}"] = Row(published, "table_1b", where, PRINTED)
            if MODELS[column].moves:
                for variant, fields in variants.items():
                    experiment = paper(in_regime, column, **fields)
                    rows[f"{stem}-{variant}-{regime}"] = Row(experiment, "table_1b", where, PRINTED)
                for variant in ("", "open_read_gate-"):
                    gate = variants.get(variant[:-1], {})
                    experiment = dataclasses.replace(paper(in_regime, column, **gate), training=ADAM)
                    rows[f"{stem}-{variant}adam-{regime}"] = Row(experiment, "table_1b", where, PRINTED)
                    experiment = paper(in_regime, column, action_interpolation=True, **gate)
                    rows[f"{stem}-interpolated-{variant}{regime}"] = Row(experiment, "table_b2", where, INTERPOLATED)
            gates = {"forget_bias": 0.0} if MODELS[column].memory else {}
            if MODELS[column].moves:
                gates["read_gate_bias"] = 0.0
            warm = dataclasses.replace(paper(in_regime, column, **gates), training=WARM)
            rows[f"{stem}-warm-{regime}"] = Row(warm, "table_1b", where, PRINTED)
            if MODELS[column].moves:
                warm = dataclasses.replace(warm, model=warm.model.clone(action_interpolation=True))
                rows[f"{stem}-interpolated-warm-{regime}"] = Row(warm, "table_b2", where, INTERPOLATED)
    return rows
