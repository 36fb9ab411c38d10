"""The Long Range Arena of Neural Attention Memory end to end: files, training, scores, record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lenmem import papers, reproduce
from lenmem.data import cifar10, listops
from lenmem.experiment import Evaluation
from lenmem.runs import open_run
from tests.marks import thorough

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"


def trees(directory: Path) -> None:
    """Ten expressions in each of the benchmark's files."""
    generator, grammar = np.random.default_rng(0), listops.Grammar(max_depth=3)
    symbols = (*"0123456789", *listops.OPERATORS, "]")
    for name in listops.FILES.values():
        tokens, lengths, values = listops.expressions(generator, grammar, 400, 21, 40)
        rows = zip(np.split(tokens, np.cumsum(lengths)[:-1])[:10], values[:10], strict=True)
        lines = [f"( {' '.join(symbols[n] for n in tree)} )\t{value}\r\n" for tree, value in rows]
        (directory / name).write_text("Source\tTarget\r\n" + "".join(lines), newline="")


def pictures(directory: Path) -> None:
    """Four in each file of the binary version of CIFAR-10."""
    for name in sum(cifar10.FILES.values(), ()):
        records = np.random.default_rng(0).integers(0, 256, (4, 3073), np.uint8)
        records[:, 0] %= 10
        records.tofile(directory / name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "row", "write", "fields"),
    [
        ("lra_text", "text-linear_transformer", None, {"max_length": 20, "validation_share": 0.25}),
        *thorough(
            ("lra_listops", "listops-nam_transformer", trees, {"min_length": 20, "max_length": 41, "cut_at": 30}),
            ("lra_image", "image-transformer", pictures, {}),
            ("lra_digits", "lra_digits-outer_product", None, {"sides": (12, 16)}),
        ),
    ],
)
def test_an_arena_task_from_its_files_to_a_record(config, row, write, fields, tmp_path):
    """The row of the paper's configuration, with a small network and two steps: its scores stand in a record, and the
    run is there for the other verbs."""
    own = reproduce.rows_of(f"nam/{config}")[row]
    experiment = own.experiment
    if config == "lra_text":
        fields = fields | {"origin": str(FIXTURES / "aclImdb")}
    if write is not None:
        write(tmp_path)
        fields = fields | {"origin": str(tmp_path)}
    task = dataclasses.replace(experiment.task, **fields)
    model = experiment.model.clone(hidden_size=8, attention_size=8, layers=1, heads=2, feedforward_size=8)
    training = dataclasses.replace(experiment.training, steps=2, batch_size=2, seeds=1, log_every=1)
    small = dataclasses.replace(
        experiment,
        task=task,
        model=model,
        training=training,
        evaluation=Evaluation(samples=2, test_examples=4, batch_size=2),
    )
    own = dataclasses.replace(own, experiment=small, lengths=task.curve_lengths)
    record = reproduce.reproduce("nam", row, own, results=tmp_path / "results", runs=tmp_path / "runs")
    assert json.loads((tmp_path / f"results/nam/{row}.json").read_text())["measured"] == record["measured"]
    for metric in own.metrics:
        (value,) = record["measured"][metric]["seeds"]
        assert value in (0, 25, 50, 75, 100), "of four examples"
    assert papers.find("nam", own.table, **own.where).keys() >= set(own.metrics.values())
    assert [curve["lengths"] for curve in record["curves"]] == [list(task.curve_lengths)]
    run = open_run(tmp_path / "runs/nam" / row)
    assert run.experiment == small and run.step == 2


def test_the_rows_of_the_digits_are_not_the_papers():
    """Their table says so, and has no printed numbers; the three networks differ in their attention alone."""
    rows = reproduce.rows_of("nam/lra_digits")
    assert set(rows) == {"lra_digits-outer_product", "lra_digits-linear", "lra_digits-softmax"}
    table = papers.tables("nam")["lra_digits"]
    assert table["caption"].startswith("Not in the paper")
    assert {value for cells in table["rows"] for name, value in cells.items() if name != "attention"} == {None}
    assert {row.experiment.model.clone(attention="softmax") for row in rows.values()} == {
        rows["lra_digits-softmax"].experiment.model
    }
