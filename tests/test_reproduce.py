"""Reproducing a row: its record, interruption and resumption, and the printed table."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from lenmem import models, papers, records
from lenmem import reproduce as reproduction
from lenmem.evaluation.lengths import Evaluation, LengthCurve, length_curve
from lenmem.experiment import Experiment
from lenmem.records import best_seed, compared_metrics, mean_and_std, results_table, save_record, shown
from lenmem.reproduce import ByLength, Row, far_curves, reproduce, reproduce_config, rows_of, scores_by_length, select
from lenmem.runs import examples_scored
from lenmem.serialize import from_plain, to_plain
from lenmem.share import import_params
from lenmem.tasks import make
from lenmem.tasks.chomsky import ModularArithmetic
from lenmem.tasks.lantm import Copy
from lenmem.training import Optimizer, Training, train
from lenmem.types import Spec

TASK = Copy(vocabulary=4, train_lengths=(1, 2))
TRAINING = Training(
    steps=8, batch_size=4, seeds=2, log_every=2, checkpoint_every=4, optimizer=Optimizer("adam", learning_rate=1e-2)
)
WHERE = {"task": "copy", "model": "LSTM", "regime": "L"}
METRICS = {"token_accuracy": "fine", "exact_match": "coarse"}


class Lookup(nn.Module):
    """Answers slot j from input j alone, which compiles quickly."""

    spec: Spec | None = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        assert self.spec is not None
        ids = jnp.pad(inputs, [(0, 0), (0, target_mask.shape[1] - inputs.shape[1])])
        return nn.Embed(self.spec.output_size, self.spec.output_size)(ids)


def tiny() -> Row:
    evaluation = Evaluation(samples=3, test_examples=20, batch_size=8)
    return Row(Experiment(TASK, Lookup(), TRAINING, evaluation), "table_1b", WHERE, METRICS)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """A row's record, and the directory that contains `results` and `runs`."""
    root = tmp_path_factory.mktemp("made")
    record = reproduce("lantm", "tiny", tiny(), results=root / "results", runs=root / "runs", command="lenmem tiny")
    return record, root


def printed(table) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_record_is_what_was_written_and_is_strict_json(made):
    record, root = made
    text = (root / "results/lantm/tiny.json").read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(text, parse_constant=refuse) == record
    assert sorted(path.name for path in (root / "results/lantm").iterdir()) == ["tiny.json", "tiny.safetensors"]


def test_the_record_says_what_was_measured(made):
    record, _ = made
    assert (record["paper"], record["row"], record["table"], record["where"]) == ("lantm", "tiny", "table_1b", WHERE)
    assert record["metrics"] == METRICS
    assert record["steps"] == 8
    assert record["samples"] == 20
    assert record["alive"] == [True, True]
    assert record["selection"] == "last"
    assert record["command"] == "lenmem tiny"
    assert record["wall_seconds"] > 0
    cell = papers.find("lantm", "table_1b", **WHERE)
    for metric, column in METRICS.items():
        measured = record["measured"][metric]
        assert measured["paper"] == cell[column]
        assert len(measured["seeds"]) == 2
        assert all(0 <= value <= 100 for value in measured["seeds"])
        assert measured["median"] == pytest.approx(np.median(measured["seeds"]), abs=1e-3)
        assert measured["best"] == max(measured["seeds"])
    assert {"commit", "device", "versions", "date"} <= record["environment"].keys()


def mastered(shares, lengths=(1, 2, 4, 8)):
    """A curve with these accuracies, [S, L]."""
    values = {"token_accuracy": np.array(shares, float)}
    return LengthCurve("", np.array(lengths), values, (1, 2), samples=8)


def test_scores_by_length_are_of_all_seeds_and_of_each():
    curve = mastered([[1, 1, 0.95, 0.5], [1, 0.96, 0.9, 0.2], [1, 0.9, 1, 1]])
    scores = scores_by_length(curve, ByLength((1, 2, 4, 8), mean_over=(2, 4)))
    # At length 4 two of three seeds have 0.95, so the median does too; alone, the third seed reaches 8.
    assert scores["longest_length"] == {"seeds": [4, 2, 8], "median": 4, "best": 8}
    lower = scores_by_length(curve, ByLength((1, 2, 4, 8), threshold=0.9, mean_over=(2, 4)))
    assert lower["longest_length"] == {"seeds": [4, 4, 8], "median": 4, "best": 8}
    # Length 3 lies half way between 2 and 4.
    assert scores["mean_accuracy"]["seeds"] == pytest.approx([97.5, 93.0, 95.0])
    assert (scores["mean_accuracy"]["median"], scores["mean_accuracy"]["best"]) == pytest.approx((95.0, 97.5))


def test_a_dead_seed_masters_nothing():
    nothing = [np.nan] * 4
    scores = scores_by_length(mastered([nothing, [1, 1, 1, 0]]), ByLength((1, 2, 4, 8), mean_over=(1, 8)))
    assert scores["longest_length"] == {"seeds": [None, 4], "median": 0, "best": 4}
    with pytest.raises(ValueError, match="needs the metric 'hit_rate'; the task has token_accuracy"):
        scores_by_length(mastered([nothing]), ByLength((1,), metric="hit_rate"))


def test_a_record_counts_if_the_same_fields_were_changed_after_training(tmp_path):
    record = {"experiment": to_plain(tiny().experiment), "after_training": {"slots": 9}}
    (tmp_path / "row.json").write_text(json.dumps(record))
    asked: list[Any] = [{"slots": 9}, {}, {"slots": 8}, None]
    found = [records.recorded(tmp_path / "row.json", tiny().experiment, fields) for fields in asked]
    assert found == [record, None, None, record]


def test_a_record_of_another_cell_or_of_other_code_does_not_count(made, monkeypatch):
    _, root = made
    row, folders = tiny(), {"results": root / "results", "runs": root / "runs"}

    def found(row: Row) -> Any:
        return records.recorded(root / "results/lantm/tiny.json", row.experiment, row.after_training, row.cell)

    assert found(row) is not None
    for change in ({"where": WHERE | {"regime": "S"}}, {"metrics": {"token_accuracy": "coarse"}}, {"table": "table_2"}):
        assert found(dataclasses.replace(row, **change)) is None
    monkeypatch.setattr(records, "code_of", lambda experiment: "other")
    assert found(row) is None
    monkeypatch.setattr("lenmem.training.run_directory.code_of", lambda experiment: "other")
    with pytest.raises(ValueError, match="was trained with other code of your classes; delete it, or give another"):
        reproduce("lantm", "tiny", row, **folders)


def test_a_fixed_set_is_scored_once_and_at_its_own_lengths(monkeypatch):
    fixed = Experiment(make("palindrome", fixed_set=True, test_size=24), Lookup())
    scored = [dataclasses.replace(fixed, evaluation=Evaluation(test_examples=count)) for count in (10, 24, 100)]
    assert list(map(examples_scored, scored)) == [10, 24, 24]
    seen: list[Any] = []
    monkeypatch.setattr(reproduction, "length_curve", lambda *given, **_: seen.append((given[3], given[4])))
    task = make("ctl")
    reproduction.far_curves(Experiment(task, Lookup(), evaluation=Evaluation(samples=7)), {}, (99,))
    assert seen == [(list(task.curve_lengths), 7)]


class Wider(Lookup):
    """A model with a field that affects the answers but no parameters."""

    answers: int = 4

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        outputs = super().__call__(inputs, input_mask, target_mask)
        return jnp.where(jnp.arange(outputs.shape[-1]) < self.answers, outputs, -1e9)


@pytest.mark.parametrize("lost", ["nothing", "run", "parameters"])
def test_a_row_of_a_changed_model_scores_the_training_of_another(tmp_path, lost):
    how = ByLength((1, 2, 8), samples=4, threshold=0.0, mean_over=(1, 2))
    task = Copy(vocabulary=4, train_lengths=(1, 2))
    row = Row(
        Experiment(task, Wider(), TRAINING, Evaluation(test_examples=20, batch_size=8)),
        "table_1b",
        WHERE,
        {"mean_accuracy": "fine"},
        by_length=how,
    )
    other = dataclasses.replace(row, after_training={"answers": 1}, trained_as="first")
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    first = reproduce("lantm", "first", row, **folders)
    if lost == "run":
        shutil.rmtree(tmp_path / "runs")
    elif lost == "parameters":
        (tmp_path / "results/lantm/first.safetensors").unlink()
    entries = []
    second = reproduce("lantm", "second", other, report=entries.append, **folders)
    assert entries == [], "it was trained again"
    assert not (tmp_path / "runs/lantm/second").exists()
    assert (tmp_path / "results/lantm/second.json").exists()
    assert not (tmp_path / "results/lantm/second.safetensors").exists()
    for fact in ("alive", "steps", "parameters"):
        assert second[fact] == first[fact]
    assert (first["after_training"], second["after_training"]) == ({}, {"answers": 1})
    assert first["experiment"] == second["experiment"]
    assert first["measured"]["longest_length"]["median"] == 8
    assert first["curves"] != second["curves"]
    assert second["samples"] == 4
    assert [curve["lengths"] for curve in second["curves"]] == [[1, 2, 8], [16, 32]]
    assert second["measured"]["mean_accuracy"]["paper"] == papers.find("lantm", "table_1b", **WHERE)["fine"]


def test_a_row_that_is_scored_in_another_way_is_not_trained_again(tmp_path):
    row = Row(
        Experiment(TASK, Wider(), TRAINING, Evaluation(samples=3, test_examples=20, batch_size=8)),
        "table_1b",
        WHERE,
        METRICS,
    )
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    first = reproduce("lantm", "row", row, **folders)
    shutil.rmtree(tmp_path / "runs")
    changed = dataclasses.replace(row, after_training={"answers": 1})
    second = reproduce("lantm", "row", changed, **folders)
    assert not (tmp_path / "runs").exists(), "it was trained again"
    assert first["measured"] != second["measured"] and first["alive"] == second["alive"]
    back = reproduce("lantm", "row", row, **folders)
    assert back["measured"] == first["measured"], "the stored parameters are others"


def test_the_curves_reach_sixteen_times_the_training_lengths(made):
    record, _ = made
    near, far = (LengthCurve.from_dict(curve) for curve in record["curves"])
    assert near.lengths.tolist() == [1, 2, 3, 4, 6, 8]
    assert far.lengths.tolist() == [16, 32]
    assert near.seeds == far.seeds == 2
    assert near.train_lengths == (1, 2)


def test_curves_have_only_lengths_that_occur():
    """These expressions have odd lengths: the length before is measured in place of an even one."""
    task = ModularArithmetic(train_lengths=(1, 6), test_lengths=(7, 8))
    model = models.make("gru", hidden_size=4, embedding_size=3)
    asked = Experiment(task, model, Training(steps=1, batch_size=4, log_every=1), Evaluation(samples=2))
    params = train(asked).params
    near, far = far_curves(asked, params, lengths=(14,))
    assert near.lengths.tolist() == [1, 3, 5, 7, 9, 11, 13, 17, 23] and far.lengths.tolist() == [47, 95]
    with pytest.raises(ValueError, match="odd"):
        length_curve(asked.bound_model, params, task, (6, 7), 2, jax.random.key(0))


def test_the_record_and_the_parameters_can_be_used_again(made):
    record, root = made
    experiment = from_plain(record["experiment"], [Lookup])
    assert experiment == tiny().experiment
    params, metadata = import_params(root / "results/lantm/tiny.safetensors")
    assert metadata["experiment"] == record["experiment"]
    assert sum(x.size for x in jax.tree.leaves(params)) == 2 * record["parameters"]


def test_a_finished_row_is_scored_again_and_not_trained_again(made):
    record, root = made
    entries: list[dict[str, Any]] = []
    again = reproduce("lantm", "tiny", tiny(), results=root / "again", runs=root / "runs", report=entries.append)
    assert entries == []
    for key in ("measured", "curves", "alive", "steps"):
        assert again[key] == record[key]


def test_a_row_that_was_cut_off_is_resumed_with_the_same_result(made, tmp_path):
    record, _ = made

    def stop(entry: dict[str, Any]) -> None:
        if entry["step"] == 6:
            signal.raise_signal(signal.SIGTERM)

    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    with pytest.raises(KeyboardInterrupt, match="stopped at step 6"):
        reproduce("lantm", "tiny", tiny(), report=stop, **folders)
    assert not (tmp_path / "results").exists()
    entries: list[dict[str, Any]] = []
    resumed = reproduce("lantm", "tiny", tiny(), report=entries.append, **folders)
    assert [entry["step"] for entry in entries] == [8]
    for key in ("measured", "curves", "steps"):
        assert resumed[key] == record[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": WHERE | {"model": "GRU"}}, "has 0 rows with"),
        ({"table": "table_9"}, "has no table 'table_9'"),
        ({"metrics": {"exact_match": "rough"}}, "has no column 'rough'; it has task, model"),
        (
            {"metrics": {"tests/exact_match": "coarse"}},
            "'tests' is not a split of Copy. Allowed: train, validation, test",
        ),
    ],
)
def test_a_cell_that_the_paper_does_not_have_is_found_before_training(tmp_path, change, message):
    row = dataclasses.replace(tiny(), **change)
    with pytest.raises(ValueError, match=message):
        reproduce("lantm", "tiny", row, results=tmp_path / "results", runs=tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_a_row_may_be_scored_on_several_splits(made):
    _, root = made
    row = dataclasses.replace(tiny(), metrics=METRICS | {"train/exact_match": "coarse"}, lengths=(5, 9))
    record = reproduce("lantm", "tiny", row, results=root / "splits", runs=root / "runs")
    measured = record["measured"]
    assert list(measured) == ["token_accuracy", "exact_match", "train/token_accuracy", "train/exact_match"]
    assert measured["train/exact_match"]["paper"] == measured["exact_match"]["paper"]
    near, far = (LengthCurve.from_dict(curve) for curve in record["curves"])
    assert near.lengths.tolist() == [1, 2, 3, 4, 5, 6, 8]
    assert far.lengths.tolist() == [9, 16, 32]
    # An answer at training length has fewer slots to be wrong in.
    assert measured["train/exact_match"]["best"] >= measured["exact_match"]["best"]


def test_rows_are_selected_by_name():
    rows = {"copy-lantm-L": tiny(), "copy-lstm-L": tiny()}
    assert list(select(rows)) == list(rows)
    assert list(select(rows, ["copy-lstm-L"])) == ["copy-lstm-L"]
    with pytest.raises(ValueError, match=r"no row 'copy-lstn-L'. Did you mean 'copy-lstm-L'"):
        select(rows, ["copy-lstn-L"])
    with pytest.raises(ValueError, match="Allowed: none"):
        select({}, ["copy"])


CONFIG = """
import dataclasses
from lenmem import reproduce, tasks, models, Experiment, Training

experiment = Experiment(tasks.make("copy"), models.make("lstm"), Training(steps=5))
longer = dataclasses.replace(experiment, training=Training(steps=6))
where = {"task": "copy", "model": "LSTM", "regime": "L"}
rows = {
    "longer": reproduce.Row(longer, "table_1b", where, {"exact_match": "coarse"}),
    "own": reproduce.Row(experiment, "table_1b", where, {"exact_match": "coarse"}),
}
"""


def test_rows_of_a_configuration_are_measured_unless_they_have_been(tmp_path, monkeypatch):
    config = tmp_path / "lantm" / "copy.py"
    config.parent.mkdir()
    config.write_text(CONFIG)
    asked = []

    def measure(paper, name, row, *, results, runs, report, command):
        asked.append((paper, name, command))
        record = {"row": name, "experiment": to_plain(row.experiment)}
        (results / paper).mkdir(parents=True, exist_ok=True)
        (results / paper / f"{name}.json").write_text(json.dumps(record))
        return record

    monkeypatch.setattr(reproduction, "reproduce", measure)
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}

    def rows(*names: str, **options: Any) -> list[str]:
        asked.clear()
        return [record["row"] for record in reproduce_config(config, names, **folders, **options)]

    assert rows() == ["own"]  # the row of the configuration's own experiment
    assert asked == [("lantm", "own", f"lenmem reproduce {config} --rows own")]
    assert rows("longer", "own") == ["longer", "own"]
    assert [name for _, name, _ in asked] == ["longer"]
    assert rows("own", again=True) == ["own"]
    assert len(asked) == 1

    config.write_text(CONFIG.replace("steps=5", "steps=7"))
    assert rows("longer", "own") == ["longer", "own"]  # the record of "own" is of another experiment
    assert [name for _, name, _ in asked] == ["own"]
    with pytest.raises(ValueError, match="Did you mean 'longer'"):
        rows("long")


def test_a_configuration_without_rows_names_those_with_some(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("rows = {}")
    with pytest.raises(ValueError, match="defines no rows of a paper's table. \\d+ others do, such as "):
        rows_of(path)
    assert "copy-lantm-L" in rows_of("lantm/copy")


@pytest.mark.parametrize(("selection", "recorded"), [("validation", True), ("running_ood", False), ("last", False)])
def test_the_validation_of_the_selected_networks_is_recorded(tmp_path, selection, recorded):
    """It decides between variants, so a score on the test lengths is none."""
    chosen = {"selection": selection, "validate_every": 4, "selection_metric": "token_accuracy"}
    experiment = dataclasses.replace(tiny().experiment, training=dataclasses.replace(TRAINING, **chosen))
    _, facts = reproduction.trained(experiment, tmp_path)
    assert ("validation" in facts) == recorded
    if recorded:
        assert len(facts["validation"]) == 2 and all(0 <= score <= 1 for score in facts["validation"])
        assert reproduction.trained(experiment, tmp_path)[1]["validation"] == facts["validation"], "a finished run"


def fake(fine: list[float | None], coarse: list[float | None], paper: tuple[float | None, ...] = (90.0, 50.0)):
    def cell(values, value):
        living = [x for x in values if x is not None]
        return {"seeds": values, "median": float(np.median(living)), "best": max(living), "paper": value}

    measured = {"token_accuracy": cell(fine, paper[0]), "exact_match": cell(coarse, paper[1])}
    return {
        "paper": "lantm",
        "table": "table_1b",
        "row": "copy-lstm-L",
        "where": WHERE,
        "selection": "last",
        "measured": measured,
        "alive": [x is not None for x in fine],
    }


def test_the_best_seed_is_one_seed_and_exact_match_decides():
    assert best_seed(fake([99.0, 95.0, 97.0], [10.0, 40.0, 40.0])) == 2
    assert best_seed(fake([None, 1.0], [None, 0.0])) == 1
    cells = {"longest_length": {"seeds": [50, 40]}, "mean_accuracy": {"seeds": [70.0, 80.0]}}
    compared = {"metrics": {"mean_accuracy": "score"}, "measured": {n: c | {"paper": None} for n, c in cells.items()}}
    assert best_seed(compared) == 1  # without exact match, what is compared with the paper decides
    cells = {"exact_match": {"seeds": [0.0, 0.0, None]}, "perplexity": {"seeds": [3.0, 900.0, None]}}
    printed = {"metrics": {"perplexity": "test"}, "measured": {n: c | {"paper": None} for n, c in cells.items()}}
    assert best_seed(printed) == 0, "the smaller perplexity is the better one"


def test_a_record_replaces_the_parameters_of_an_earlier_one(tmp_path, monkeypatch):
    """Those of a network that is too large to be stored would otherwise be those of another training."""
    target = tmp_path / "row.json"
    record = {"experiment": {}, "alive": [True]}
    save_record(target, record, {"kernel": np.zeros((1, 3), np.float32)})
    assert target.with_suffix(".safetensors").exists()
    monkeypatch.setattr(records, "SHARED_PARAMETERS", 2)
    save_record(target, record, {"kernel": np.zeros((1, 3), np.float32)})
    assert target.exists() and not target.with_suffix(".safetensors").exists()


def test_the_table_puts_the_papers_numbers_beside_ours():
    text = printed(results_table([fake([99.0, 95.0, 97.0], [10.0, 40.0, 20.0]), fake([None, 100.0], [None, 99.99])]))
    for expected in ("97.0 / 20.0", "95.0 / 40.0", "90 / 50", "100.0 / 99.9", "copy-lstm-L", "parameters kept: last"):
        assert expected in text
    assert "token accuracy / exact match, in percent" in text
    with pytest.raises(ValueError, match="no records given"):
        results_table([])


def test_a_mean_and_its_deviation_stand_beside_those_of_the_paper():
    where = {"task": "babi", "model": "panm", "split": "0.8-0.2"}
    record = fake([80.0, None, 84.0], [60.0, None, 60.0], (85, None))
    columns = {"metrics": {"token_accuracy": "mean"}, "paper": "panm", "table": "table_3"}
    text = printed(results_table([record | columns | {"where": where}]))
    assert "mean ± std" in text and "82.0 ± 2.8" in text and "85" in text
    assert "±" not in printed(results_table([fake([99.0], [98.0])]))
    columns = {"metrics": {"token_accuracy": "length_9"}, "paper": "panm", "table": "table_7"}  # and length_9_std
    assert "82.0 ± 2.8" in printed(results_table([record | columns | {"where": {"model": "panm"}}]))
    assert [mean_and_std(seeds) for seeds in ([], [None], [3.0], [99.999, 100.0])] == ["-", "-", "3.0", "99.9 ± 0.0"]
    assert [shown(value) for value in (99.99, 100.0, 150, None)] == ["99.9", "100.0", "150.0", "-"]  # 150: a length


def test_only_what_the_paper_prints_is_compared():
    assert compared_metrics([fake([1.0], [2.0], (None, 50.0))]) == ["exact_match"]
    assert compared_metrics([fake([1.0], [2.0], (None, None))]) == ["token_accuracy", "exact_match"]


def test_no_number_is_rounded_up_to_all():
    assert [shown(x) for x in (None, math.nan, 0.0, 99.999, 100.0)] == ["-", "-", "0.0", "99.9", "100.0"]


def test_a_perplexity_is_no_percentage_and_the_smallest_is_the_best():
    cell = reproduction._cell("perplexity", np.array([8.0, np.nan, 20.0, sys.float_info.max]))
    assert cell["seeds"] == [8, None, 20, sys.float_info.max] and (cell["median"], cell["best"]) == (20, 8)
    assert reproduction._cell("exact_match", np.array([0.25, 0.5])) == {"seeds": [25, 50], "median": 37.5, "best": 50}
