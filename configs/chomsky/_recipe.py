"""The training of Delétang et al. (2023) for Table 2, and the same comparison for a CPU."""

import dataclasses
from typing import Any

import flax.linen as nn

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import ByLength, Row
from lenmem.tasks.base import occurring
from lenmem.tasks.chomsky import ChomskyTask
from lenmem.training import Cosine, Optimizer, Training

# The table's models, and ours. All have width 256 except the Transformer (five layers of width 64, eight heads). The
# paper prints the best of five position encodings; these rows have relative positions, and no dropout (published code:
# 0.1). The LSTM is that of `lenmem.models.lstm`: it also reads a begin token, learns its first state and has no ReLU
# before the head. A tape holds more than the longest training input, so that no jump wraps around; a stack has the 30
# cells of the published code. The paper's Tape-RNNs also had four tapes, and one or two computation tokens for every
# input token (`tapes`, `computation_steps`); ours have one tape and none.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("elman", {"hidden_size": 256}),
    "Stack-RNN": ("stack_rnn_vector", {"hidden_size": 256}),
    "Tape-RNN": ("tape_rnn", {"hidden_size": 256, "slots": 100}),
    "Transformer": (
        "transformer_xl",
        {"hidden_size": 64, "layers": 5, "heads": 8, "feedforward_size": 256, "dropout": 0.0},
    ),
    "LSTM": ("lstm", {"hidden_size": 256, "embedding_size": None}),
}

# The learning rate of the rows for a CPU, and that of the Transformer, the middle one of the paper: at 1e-3 its loss on
# even pairs rose again to that of guessing.
RATE, TRANSFORMER_RATE = 1e-3, 3e-4

# Networks with a stack or a tape are scored with one that holds an input of length 500 and its answer.
AFTER_TRAINING = {"Stack-RNN": {"slots": 1024}, "Tape-RNN": {"slots": 1024}}


def lengths_of(task: ChomskyTask) -> tuple[int, ...]:
    """The measured lengths: some training lengths, and the lengths whose accuracies are averaged.

    If the task has no even lengths, the odd ones before them."""
    lengths = (1, 10, 20, 30, 40, 41, *range(50, 501, 50))
    return tuple(occurring(task, lengths))


def networks() -> dict[str, nn.Module]:
    """The networks of `lenmem compare`: the table's, but with a stack that never overflows."""
    models = {name: make(name, **fields) for name, fields in MODELS.values()}
    return models | {"stack_rnn_vector": models["stack_rnn_vector"].clone(slots=None)}


def paper(task: ChomskyTask, model: str = "RNN") -> Experiment:
    """One cell of Table 2, with the middle one of the three learning rates."""
    name, fields = MODELS[model]
    training = Training(
        steps=1_000_000,
        batch_size=128,
        seeds=10,
        optimizer=Optimizer("adam", learning_rate=3e-4, clip_norm=1.0),
        log_every=1000,
        checkpoint_every=10_000,
    )
    return Experiment(task, make(name, **fields), training, Evaluation(lengths=lengths_of(task), batch_size=64))


def small(task: ChomskyTask, model: str = "RNN", steps: int = 5000) -> Experiment:
    """The same cell for a CPU: few steps, at a rate that falls to zero (`RATE`), in smaller batches.

    Where the answer is one symbol, a step computes no more columns than its inputs need, in 2/3 of the time.
    """
    experiment = paper(task, model)
    rate = TRANSFORMER_RATE if model == "Transformer" else RATE
    training = Training(
        steps=steps,
        batch_size=32,
        seeds=3,
        optimizer=Optimizer("adam", learning_rate=rate, schedule=Cosine(), clip_norm=1.0),
        log_every=100,
        checkpoint_every=1000,
        widths=4 if task.spec.single_answer else 1,
    )
    return Experiment(task, experiment.model, training, experiment.evaluation)


def growing(task: ChomskyTask, model: str = "RNN") -> Experiment:
    """`small` with 10,000 steps, during the first 7,000 of which the longest length of the examples grows from 1 to 40.

    The paper draws all lengths from the first step on. Growing lengths make the steps shorter. They are not always
    needed: 10,000 steps without them also teach an Elman network modular arithmetic (a run without a record).
    """
    experiment = small(task, model, steps=10_000)
    training = dataclasses.replace(experiment.training, growing=7_000, widths=4)
    return dataclasses.replace(experiment, training=training)


def table_rows(task: ChomskyTask, name: str) -> dict[str, Row]:
    """A task's rows of Table 2: `<task>-<model>`, `<task>-<model>-small` and `<task>-<model>-growing`."""
    lengths = lengths_of(task)
    how = ByLength(lengths, samples=64, mean_over=(41, lengths[-1]))
    rows = {}
    for make_experiment, suffix in ((paper, ""), (small, "-small"), (growing, "-growing")):
        for model, (ours, _) in MODELS.items():
            rows[f"{name}-{ours}{suffix}"] = Row(
                make_experiment(task, model),
                "table_2",
                {"task": name, "model": model},
                {"mean_accuracy": "score"},
                by_length=how,
                after_training=AFTER_TRAINING.get(model, {}),
            )
    return rows
