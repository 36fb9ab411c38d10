"""Beyond: the configurations, records and their tables."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lenmem import beyond
from lenmem.cli import main
from lenmem.evaluation.lengths import Evaluation
from lenmem.experiment import Experiment
from lenmem.files import read_json
from lenmem.models import make, name_of
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks.chomsky import ParityCheck
from lenmem.training import Training

RESULTS = Path(__file__).parents[1] / "results" / "beyond"
RECORDS = [pytest.param(path, id=path.stem) for path in sorted(RESULTS.glob("*.json"))]
TINY = Experiment(
    ParityCheck(train_lengths=(1, 4), test_lengths=(5, 8)),
    make("elman", hidden_size=4),
    Training(steps=2, batch_size=4, seeds=2, log_every=1, checkpoint_every=0),
    Evaluation(lengths=(8, 16), samples=4, smallest_capacity=16),
)
ENTRY = beyond.Entry("parity", None, TINY)


def test_there_are_the_19_tasks_with_their_goals():
    entries = {name: beyond.entry_of(name) for name in beyond.task_names()}
    assert len(entries) == 19
    goals = {name: entry.goal for name, entry in entries.items() if entry.goal != 1024}
    assert goals == {"repeat_copy": 80, "ctl_backward": 40}


@pytest.mark.parametrize("name", beyond.task_names())
def test_nothing_is_chosen_above_twice_the_trained_lengths(name):
    for entry in beyond.entries_of(name).values():
        task, training = entry.experiment.task, entry.experiment.training
        longest = task.lengths_of("train")[1]
        assert longest == {"repeat_copy": 5, "ctl_backward": 5}.get(name, 16)
        assert training.selection == "validation" and training.seeds == 3
        first, last = task.lengths_of(training.validation_split)
        assert longest < first <= last <= 2 * longest
        measured = entry.experiment.evaluation
        assert measured.lengths == tuple(2**i * longest for i in range(1, len(measured.lengths or ()) + 1))
        assert measured.samples == 256


def test_a_network_is_the_same_on_all_its_tasks():
    """Model and training, but for the split of the validation."""
    seen: dict[Any, list[Any]] = {}
    for name in beyond.task_names():
        experiment = beyond.entry_of(name).experiment
        training = to_plain(dataclasses.replace(experiment.training, validation_split="validation"))
        seen.setdefault(name_of(experiment.model), []).append((to_plain(experiment.model), training))
    for kind, settings in seen.items():
        assert all(other == settings[0] for other in settings), kind


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """The record of a tiny training, and the directory of its results."""
    folder = tmp_path_factory.mktemp("beyond")
    return beyond.run_entry(ENTRY, results=folder / "results", runs=folder / "runs"), folder


def test_an_entry_is_trained_measured_and_recorded(measured):
    record, folder = measured
    assert record == read_json(folder / "results" / "parity.json") == ENTRY.record(folder / "results")
    assert (record["network"], record["command"], record["steps"]) == ("elman", "lenmem beyond parity", 2)
    assert record["curves"][0]["lengths"] == [8, 16]
    assert beyond.shares(record).shape == (2, 2)
    assert record["processor_seconds"] > 0
    assert from_plain(record["experiment"]) == TINY
    assert (folder / "results" / "parity.safetensors").exists()
    other = dataclasses.replace(ENTRY, experiment=dataclasses.replace(TINY, training=Training(steps=3)))
    assert other.record(folder / "results") is None


def test_a_finished_run_is_measured_again_and_its_time_is_that_of_the_clock(measured):
    record, folder = measured
    again = beyond.run_entry(ENTRY, results=folder / "again", runs=folder / "runs")
    assert again["processor_seconds"] is None
    assert beyond.seconds_of(again) == again["wall_seconds"] / 2
    assert again["curves"] == record["curves"]


def test_an_entry_that_is_repeated_continues_in_its_unfinished_run(measured, tmp_path):
    _, folder = measured
    assert beyond.again(ENTRY, tmp_path).name == "again-1"
    run = tmp_path / "again-1" / "parity"
    shutil.copytree(folder / "runs" / "parity", run)
    assert beyond.again(ENTRY, tmp_path).name == "again-2"
    (run / beyond.RECORDED).unlink()  # stopped between the training and the record
    assert beyond.again(ENTRY, tmp_path).name == "again-1"


def with_shares(task: str, idea: str | None, seconds: float, *seeds: list[float]) -> dict[str, Any]:
    """A record with these shares by length, for lengths .., 512, 1,024."""
    lengths = [1024 // 2**i for i in reversed(range(len(seeds[0])))]
    curve = {
        "label": task,
        "lengths": lengths,
        "values": {"exact_match": [list(seed) for seed in seeds]},
        "train_lengths": [1, 16],
        "samples": 256,
        "unit": "tokens",
    }
    return {
        "task": task,
        "idea": idea,
        "network": "elman",
        "curves": [curve],
        "alive": [True] * len(seeds),
        "wall_seconds": 2 * seconds * len(seeds),
        "processor_seconds": seconds * len(seeds),
        "experiment": to_plain(TINY),
        "environment": {"commit": "0123456789", "dirty": False},
        "command": f"lenmem beyond {task}",
    }


GOOD = with_shares("copy", None, 9, [1, 1, 0.98], [1, 1, 0.99], [1, 1, 1])
FAST = with_shares("copy", "smaller", 5, [1, 1, 0.99], [1, 1, 1], [1, 1, 1])
BAD = with_shares("reverse", None, 1, [1, 0.5, 0.98], [1, 0.25, 0.98], [1, 0.75, 1])
DEAD = with_shares("mix", None, 1, [1, 1, float("nan")], [1, 1, float("nan")], [1, 1, 1])


def test_the_median_at_the_goal_decides():
    assert [beyond.met(record) for record in (GOOD, FAST, BAD, DEAD)] == [True, True, False, False]
    np.testing.assert_array_equal(beyond.shares(DEAD)[:, -1], [0, 0, 1])


def test_what_is_measured_less_far_meets_nothing_and_is_not_the_best():
    near = with_shares("copy", "soft", 1, [1.0], [1.0])
    near["curves"][0]["lengths"] = [32]
    assert not beyond.met(near)
    assert beyond.best_records([near, BAD | {"task": "copy"}])["copy"]["idea"] is None


def test_the_overview_has_a_line_for_each_task():
    header, rows = beyond.overview([GOOD, FAST, BAD, with_shares("reverse", "worse", 0.5, [1, 0.5, 0])])
    lines = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert list(lines) == list(beyond.task_names())
    assert lines["reverse"]["16x"] == "100.0" and lines["reverse"]["32x"] == "50.0 / 25.0"
    assert (lines["reverse"]["2x"], lines["reverse"]["goal"], lines["reverse"]["met"]) == ("", "1,024 tokens", "no")
    assert lines["copy"]["met"] == "yes"
    assert lines["parity"]["met"] == "not measured"


def test_the_shortest_training_that_meets_the_goal_holds_the_record():
    header, rows = beyond.best([GOOD, FAST, BAD])
    assert [dict(zip(header, row, strict=True))["seconds a seed"] for row in rows] == ["5"]
    assert rows[0][4] == "0123456"
    with pytest.raises(ValueError, match="no record of reverse that meets its goal"):
        beyond.fastest("reverse", [GOOD, BAD])
    assert beyond.fastest("copy", [GOOD]) == beyond.entry_of("copy")


def test_tasks_met_with_one_set_of_fields_are_counted():
    _, rows = beyond.families([GOOD, FAST, BAD, with_shares("mix", None, 1, [1.0])])
    assert rows == [["elman", "hidden_size=4; 2 steps of 4 at 0.001", "2", "copy, mix"]]
    longer = dataclasses.replace(TINY, training=dataclasses.replace(TINY.training, growing=1))
    _, rows = beyond.families([GOOD, with_shares("mix", None, 1, [1.0]) | {"experiment": to_plain(longer)}])
    assert [row[1:] for row in rows] == [
        ["hidden_size=4; 2 steps of 4 at 0.001", "1", "copy"],
        ["hidden_size=4; 2 steps of 4 at 0.001, lengths grow for 1", "1", "mix"],
    ]


def test_the_page_has_all_tables():
    page = beyond.markdown([GOOD, FAST, BAD])
    assert "The goal is met on 1 of 19 tasks" in page
    assert "| copy | smaller | elman | 5 | 1, 1, 1 |  |  | 100.0 / 99.0 |" in page
    assert page.count("\n## ") == 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cpoy"], "no task 'cpoy'. Did you mean 'copy'"),
        (["copy", "--idea", "none"], "beyond/copy has no idea 'none'"),
        (["--idea", "none"], "go with a task"),
        (["reverse", "--idea", "soft", "--record"], "it takes neither --idea nor --again"),
        (["copy", "--record"], "no record of copy"),
        (["--results", __file__], "is a file, not a directory of records"),
    ],
)
def test_what_cannot_be_done_is_said(arguments, message, tmp_path, capsys):
    given = ["--results", str(tmp_path), "--runs", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        main(["beyond", *given, *arguments] if arguments[0].startswith("-") else ["beyond", *arguments, *given])
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_tables_are_printed_and_a_record_is_not_trained_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(beyond, "entry_of", lambda task, idea=None: ENTRY)
    given = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    main(["beyond", "parity", *given])
    assert "training elman on parity" in capsys.readouterr().out
    main(["beyond", "parity", *given])
    assert "training" not in capsys.readouterr().out
    main(["beyond", *given])
    assert "not measured" in capsys.readouterr().out
    main(["beyond", "--record", *given])
    assert "parity" not in capsys.readouterr().out  # two steps reach nothing
    assert (tmp_path / "results" / "README.md").read_text().endswith("|\n")


def test_a_page_of_someone_else_is_not_replaced(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(beyond, "entry_of", lambda task, idea=None: ENTRY)
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(SystemExit, match="2"):
        main(["beyond", "parity", "--results", str(tmp_path), "--runs", str(tmp_path / "runs")])
    assert "README.md would be replaced, but lenmem did not write it" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists(), "before any training"
    with pytest.raises(ValueError, match="would be replaced"):
        beyond.save_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my project"


# The records of this repository --------------------------------------------------------------------------------------


def test_the_page_agrees_with_the_records():
    head, _, body = (RESULTS / "README.md").read_text().partition("\n\n")
    assert "do not edit" in head
    assert body == beyond.markdown(beyond.read_records(RESULTS)), "run: lenmem beyond"


@pytest.mark.parametrize("path", RECORDS)
def test_a_record_is_that_of_its_configuration(path):
    record = read_json(path)
    entry = beyond.entry_of(record["task"], record["idea"])
    assert entry.name == path.stem
    assert entry.record(RESULTS) == record, "the configuration has changed since"
    assert record["steps"] == entry.experiment.training.steps
    assert record["command"] == entry.command
    assert len(record["environment"]["commit"]) == 40 and not record["environment"]["dirty"]
    assert record["curves"][0]["samples"] == 256


@pytest.mark.parametrize("path", [record for record in RECORDS if read_json(record.values[0])["network"] == "two_way"])
def test_a_rounded_machine_that_is_exact_at_twice_the_length_is_exact_at_the_goal(path):
    """As `docs/beyond.md` says."""
    shares = beyond.shares(read_json(path))
    np.testing.assert_array_equal(shares[:, 0] >= beyond.MET, shares[:, -1] >= beyond.MET)
