"""The training of Le et al. (2024) for Tables 7 to 12, and the same comparison at a width for a CPU."""

from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make, supports
from lenmem.reproduce import Row
from lenmem.tasks.panm import PanmTask
from lenmem.training import Cosine, Optimizer, Training

TABLES = {
    "copy": "table_7",
    "reverse": "table_8",
    "mix": "table_9",
    "dynamic_recall": "table_10",
    "priority_sort": "table_11",
    "id_sort": "table_12",
}

# Our rows: the tables' model, our name, the published width, and other fields. The text states widths of 512 for LSTM,
# attention and Transformer (one layer), and of 256 for PANM, NTM and DNC. For Neural Stack and NRAM it only states 1.1
# million parameters. Heads and dropout of the Transformer are from the published code, which has two layers of width
# 256: one layer cannot copy inputs of different lengths, because an answer slot cannot tell how long the input is.
# Answers are not fed back.
MODELS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "lstm": ("lstm", "lstm", 512, {}),
    "location_attention": ("location_attention", "location_attention", 512, {}),
    "content_attention": ("content_attention", "attention", 512, {}),
    "hybrid_attention": ("hybrid_attention", "hybrid_attention", 512, {}),
    "transformer": (
        "transformer",
        "transformer",
        512,
        {"layers": 1, "heads": 8, "feedforward_size": 512, "dropout": 0.2},
    ),
    "transformer_published": (
        "transformer",
        "transformer",
        256,
        {"layers": 2, "heads": 8, "feedforward_size": 512, "dropout": 0.2},
    ),
    "transformer_seq2seq": (
        "transformer",
        "transformer_seq2seq",
        512,
        {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "heads": 8,
            "feedforward_size": 512,
            "dropout": 0.2,
            "feedback": "open_loop",
        },
    ),
    "ntm": ("ntm", "ntm", 256, {"slots": 128, "width": 32}),
    "dnc": ("dnc", "dnc", 256, {"slots": 128, "width": 32, "read_heads": 1}),
    "neural_stack": ("neural_stack", "neural_stack", 256, {}),
    "ptrnet": ("ptrnet", "pointer_network", 512, {}),
    "nram": ("nram", "nram", 256, {}),
    "esbn": ("esbn", "esbn", 512, {}),
    "panm": ("panm", "panm", 256, {}),
    "panm_paper": ("panm", "panm_paper", 256, {}),
    "panm_published": ("panm", "panm_published", 128, {}),
}


def paper(task: PanmTask, model: str = "panm", steps: int = 50_000) -> Experiment:
    """One line of a table as published: RMSProp, batches of one length, gradients clipped entry by entry.

    The parameters with the best validation at length L + 1 are selected, as in the text (in the published code, at
    length 2 L + 1).
    """
    _, name, width, fields = MODELS[model]
    training = _training(
        steps,
        batch_size=128,
        seeds=5,
        optimizer=Optimizer("rmsprop", learning_rate=1e-4, decay=0.95, momentum=0.9, clip_value=10.0),
    )
    evaluation = Evaluation(test_examples=1280, batch_size=128)
    return Experiment(task, make(name, hidden_size=width, **fields), training, evaluation)


def small(task: PanmTask, model: str = "panm", steps: int = 2000, **changes: Any) -> Experiment:
    """The same line at width 128, for a CPU: batches of 64, Adam with a rate that falls to zero, few steps."""
    _, name, _, fields = MODELS[model]
    training = _training(
        steps,
        batch_size=64,
        seeds=3,
        optimizer=Optimizer("adam", learning_rate=1e-3, schedule=Cosine(), clip_norm=1.0),
    )
    size: dict[str, Any] = {"hidden_size": 128}
    return Experiment(task, make(name, **(size | fields | changes)), training, Evaluation(test_examples=1280))


def beyond(task: PanmTask, steps: int = 1000, **fields: Any) -> Experiment:
    """A PANM of width 64 with these fields, in a short training; the last parameters are used."""
    training = Training(
        steps,
        batch_size=64,
        seeds=3,
        optimizer=Optimizer("adam", learning_rate=3e-3, clip_norm=1.0),
    )
    return Experiment(task, make("panm", hidden_size=64, **fields), training, Evaluation(test_examples=1280))


def _training(steps: int, **options: Any) -> Training:
    return Training(
        steps,
        **options,
        selection="validation",
        selection_metric="token_accuracy",
        validation_split="selection",
        validate_every=200,
    )


def table_rows(task: PanmTask, name: str, **options: Any) -> dict[str, Row]:
    """A table at the published scale: rows `<task>-<model>`.

    `transformer` is encoder-only as in the published code, which `transformer_published` also follows in its size;
    `transformer_seq2seq` has a decoder. `panm_paper` follows the paper's text, `panm_published` its code, and `panm` is
    lenmem's choice between them.
    """
    return {f"{name}-{model}": row_of(task, paper(task, model, **options), name, model) for model in _able(task)}


LONG = 20_000
"""Steps of the rows `-long`, for networks that have not learned the training lengths after the steps of `-small`."""


def small_rows(task: PanmTask, name: str, steps: int, variant: str = "") -> dict[str, Row]:
    """The same table at width 128: rows `<task>-<model>-small` of this many steps, and `<task>-<model>-long`.

    `variant` comes after the model in their names.
    """
    return {
        f"{name}-{model}{variant}-{suffix}": row_of(task, small(task, model, steps), name, model)
        for suffix, steps in (("small", steps), ("long", LONG))
        for model in _able(task)
    }


def ablation_rows(task: PanmTask, name: str, heads: dict[str, list[tuple[int, int]]], **options: Any) -> dict[str, Row]:
    """PANM at width 128 with other numbers of Mode-1 and Mode-2 pointers: rows `<task>-panm_a<Mode 1>_c<Mode 2>-small`.

    `heads`: a figure of the paper -> the numbers of pointers that it shows. Numbers that no figure shows are listed
    with the task's table, where they are compared with the paper's PANM, which has 2 and 1.
    """
    rows = {}
    for table, numbers in heads.items():
        for address, content in numbers:
            experiment = small(task, address_heads=address, content_heads=content, **options)
            row = row_of(task, experiment, name, "panm")
            if table != TABLES[name]:
                where = {"task": name, "model": "panm", "address_heads": address, "content_heads": content}
                shown = f"length_{task.scored_lengths[2]}"
                row = Row(experiment, table, where, {f"{shown}/token_accuracy": shown}, task.scored_lengths)
            rows[f"{name}-panm_a{address}_c{content}-small"] = row
    return rows


def _able(task: PanmTask) -> list[str]:
    """The models that support a task. lenmem's NRAM computes with integers, and supports no features."""
    return [model for model, (_, name, *_) in MODELS.items() if supports(make(name), task.spec) is None]


def row_of(task: PanmTask, experiment: Experiment, name: str, model: str) -> Row:
    """A row with all five columns of a table; each test length is a split."""
    columns = {f"length_{length}/token_accuracy": f"length_{length}" for length in task.scored_lengths}
    return Row(experiment, TABLES[name], {"task": name, "model": MODELS[model][0]}, columns, task.scored_lengths)
