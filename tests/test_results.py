"""The records in results/, the page made from them, and the papers' printed numbers."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from lenmem import configs, papers, reproduce
from lenmem.evaluation.lengths import LengthCurve
from lenmem.files import read_json
from lenmem.queue import read_queue
from lenmem.runs import examples_scored
from lenmem.serialize import from_plain, to_plain
from lenmem.share import import_params
from lenmem.tasks.base import occurs
from lenmem.tasks.lantm import Copy
from lenmem.training import Training

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SCRIPT = ROOT / "scripts" / "make_results.py"
PAPER_TABLES = ROOT.parent / "shared" / "paper_tables"

PATHS = sorted(path for path in RESULTS.glob("*/*.json") if path.parent.name in papers.names())
RECORDS = [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in PATHS]


@functools.cache
def script() -> Any:
    """scripts/make_results.py as a module."""
    spec = importlib.util.spec_from_file_location("make_results", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def all_records() -> list[dict[str, Any]]:
    """The records of the page."""
    return script().read_records(RESULTS)


def test_the_queue_names_each_row_once():
    queue = read_queue(RESULTS / "queue.txt")  # ValueError for a row that does not exist
    names = [(entry.paper, entry.name) for entry in queue]
    assert len(names) > 300 and len(set(names)) == len(names)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDS)
def test_a_record_is_whole(path):
    record = read_json(path)
    assert (record["paper"], record["row"]) == (path.parent.name, path.stem)
    training = record["experiment"]["training"]
    seeds = training["seeds"]
    assert seeds >= 3
    assert record["steps"] == training["steps"], "the run was cut short"
    assert record["selection"] == training["selection"]
    how = row_of(record).by_length
    assert record["samples"] == (how.samples if how else examples_scored(from_plain(record["experiment"])))
    assert len(record["alive"]) == seeds
    assert record["wall_seconds"] > 0
    assert record["command"].startswith("lenmem ")
    assert record["measured"]
    for name, measured in record["measured"].items():
        most = max(how.lengths) if how and name == "longest_length" else 100
        assert len(measured["seeds"]) == seeds
        for value, alive in zip(measured["seeds"], record["alive"], strict=True):
            assert 0 <= value <= most if alive else value is None
        living = [value for value in measured["seeds"] if value is not None]
        assert measured["best"] == max(living)
        assert (0 if name == "longest_length" else min(living)) <= measured["median"] <= max(living)


@pytest.mark.parametrize("path", RECORDS)
def test_a_record_says_where_it_comes_from(path):
    environment = read_json(path)["environment"]
    assert environment["commit"]
    assert len(environment["commit"]) == 40
    assert environment["device"]
    assert environment["date"]
    assert {"lenmem", "jax", "flax", "optax"} <= environment["versions"].keys()


@pytest.mark.parametrize("path", RECORDS)
def test_the_numbers_beside_ours_are_the_papers(path):
    record = read_json(path)
    printed = papers.find(record["paper"], record["table"], **record["where"])
    row = row_of(record)
    assert (record["table"], record["where"]) == (row.table, dict(row.where))
    assert record["steps"] == row.experiment.training.steps, "a trial, not the configuration's run"
    for metric, measured in record["measured"].items():
        assert measured["paper"] == (printed[row.metrics[metric]] if metric in row.metrics else None)


@pytest.mark.parametrize("path", RECORDS)
def test_curves_of_a_record_hold_shares_of_every_seed(path):
    record = read_json(path)
    curves = [LengthCurve.from_dict(curve) for curve in record["curves"]]
    lengths = [length for curve in curves for length in curve.lengths.tolist()]
    longest, task = curves[0].train_lengths[1], from_plain(record["experiment"]).task
    far = {n if occurs(task, n) else n - 1 for n in (4 * longest, 8 * longest, 16 * longest)}
    assert (far if task.endless else set(task.curve_lengths)) <= set(lengths)
    assert len(lengths) == len(set(lengths))
    for curve in curves:
        assert curve.seeds == len(record["alive"])
        for values in curve.values.values():
            assert all(0 <= value <= 1 for value in values[record["alive"]].flat)


@pytest.mark.parametrize("path", RECORDS)
def test_the_experiment_of_a_record_can_be_built_and_its_parameters_loaded(path):
    record = read_json(path)
    experiment = from_plain(record["experiment"])
    assert experiment.training.steps == record["steps"]
    file = path.with_suffix(".safetensors")
    if file.exists():
        _, metadata = import_params(file)
        assert metadata["experiment"] == record["experiment"]


def test_parameters_lie_beside_a_record():
    assert [path for path in RESULTS.glob("*/*.safetensors") if not path.with_suffix(".json").exists()] == []


@functools.cache
def rows_of(config: str) -> dict[str, Any]:
    """The rows of a configuration."""
    return getattr(configs.module_of(config), "rows", {})


rows_of_paper = functools.cache(reproduce.rows_of_paper)


def row_of(record: dict[str, Any]) -> Any:
    """The configuration's row of a record."""
    rows = rows_of_paper(record["paper"])
    assert record["row"] in rows, f"no configuration has the row {record['row']!r}"
    return rows[record["row"]]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_up_to_date():
    assert script().main(["--check"]) == 0


def made_up(task: str = "copy", model: str = "LANTM", regime: str = "L", table: str = "table_1b", **changes: Any):
    """A record with invented numbers."""
    suffix = "_with" if table == "table_b2" else ""
    printed = papers.find("lantm", table, task=task, model=model, regime=regime)
    environment = {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "device": "TPU v9",
        "date": "2026-01-02T03:04:05+00:00",
        "versions": {"jax": "0.10.2"},
    }
    curve = {
        "label": "",
        "lengths": [64, 128, 256],
        "values": {"token_accuracy": [[1, 0.5, 0.25], [1, 1, 0.5]], "exact_match": [[1, 0, 0], [1, 1, 0]]},
        "train_lengths": [2, 64],
        "test_lengths": [65, 128],
        "samples": 64,
    }
    measured = {
        "token_accuracy": {"seeds": [99.6, 98.0], "median": 98.8, "best": 99.6, "paper": printed[f"fine{suffix}"]},
        "exact_match": {"seeds": [96.0, 97.6], "median": 96.8, "best": 97.6, "paper": printed[f"coarse{suffix}"]},
    }
    return {
        "paper": "lantm",
        "row": f"{task}-{model.lower()}-{regime}",
        "table": table,
        "where": {"task": task, "model": model, "regime": regime},
        "selection": "last",
        "experiment": {"training": to_plain(Training()), "task": to_plain(Copy())},
        "measured": measured,
        "alive": [True, True],
        "samples": 3200,
        "curves": [curve, curve | {"lengths": [512], "values": {k: [[0.125], [0]] for k in measured}, "samples": 16}],
        "steps": 10_000,
        "wall_seconds": 754.6,
        "environment": environment,
        "command": f"lenmem reproduce lantm/{task}",
    } | changes


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    (folder / "lantm").mkdir(parents=True)
    for i, record in enumerate([made_up("double"), made_up("copy", "LSTM"), made_up("copy", table="table_b2")]):
        (folder / "lantm" / f"{i}.json").write_text(json.dumps(record))
    return folder


def test_without_records_the_page_says_how_to_make_one(tmp_path):
    assert script().main(["--results", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "Nothing has been measured yet" in text
    assert script().main(["--results", str(tmp_path), "--check"]) == 0


def test_a_page_that_is_missing_or_different_fails_the_check(results, capsys):
    main, target = script().main, results / "README.md"
    assert main(["--results", str(results), "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert not target.exists()
    assert main(["--results", str(results)]) == 0
    assert main(["--results", str(results), "--check"]) == 0
    target.write_text(target.read_text().replace("98.8", "99.8"))
    assert main(["--results", str(results), "--check"]) == 1


def test_rows_stand_in_the_order_of_the_papers_tables(results):
    module = script()
    text = module.page(module.read_records(results))
    order = [
        text.index(mark) for mark in ("### Table 1(b)", "| copy | LSTM | L", "| double | LANTM | L", "### Table B.2")
    ]
    assert order == sorted(order)
    assert text == module.page(module.read_records(results))


def test_other_scores_of_the_same_trainings(tmp_path):
    """Table III prints the mean over lengths of the networks of Table II: each of its records is a row of both."""
    name = "copy-dnc-small"
    (tmp_path / "dnc").mkdir()
    (tmp_path / "dnc" / f"{name}.json").write_bytes((RESULTS / "dnc" / f"{name}.json").read_bytes())
    first, other = script().read_records(tmp_path)
    assert (first["table"], other["table"]) == ("table_2", "table_3")
    assert other["row"] == name and other["where"] == first["where"]
    curve = LengthCurve.from_dict(first["curves"][0])
    means = 100 * curve.values["token_accuracy"][:, curve.lengths <= 45].mean(axis=1)
    assert other["measured"]["mean_accuracy"]["seeds"] == pytest.approx(means, abs=1e-3)
    assert other["measured"]["mean_accuracy"]["paper"] == 74 and set(other["measured"]) == {"mean_accuracy"}


def test_a_table_may_have_its_own_names(tmp_path):
    """PANM's Table 13 repeats the right half of Table 2; a network without its pointers is no row of either."""
    (tmp_path / "panm").mkdir()
    for name in "place_value-panm-small", "place_value-panm_without_pointers-small":
        (tmp_path / "panm" / f"{name}.json").write_bytes((RESULTS / "panm" / f"{name}.json").read_bytes())
    records = script().read_records(tmp_path)
    assert [(record["table"], record["where"]["model"]) for record in records] == [
        ("table_2_math", "panm"),
        ("table_2_math", "panm"),
        ("table_13", "panm_transformer_rpe"),
    ]
    once, twice = (record["measured"]["exact_match"] for record in records[::2])
    assert once["paper"] == twice["paper"] == 86 and once["seeds"] == twice["seeds"]


def test_means_over_the_lengths_of_a_table(tmp_path):
    """PANM's Table 1 prints the mean over the five lengths of Tables 7 to 12, and Table 6 the middle one."""
    (tmp_path / "panm").mkdir()
    for name in "priority_sort-panm-small", "priority_sort-lstm-small", "copy-panm-small":
        (tmp_path / "panm" / f"{name}.json").write_bytes((RESULTS / "panm" / f"{name}.json").read_bytes())
    module = script()
    records = module.read_records(tmp_path)
    assert [(record["table"], record["row"]) for record in records] == [
        ("table_1", "copy-panm-small"),
        ("table_1", "priority_sort-panm-small"),
        ("table_6", "copy-panm-small"),
        ("table_7", "copy-panm-small"),
        ("table_11", "priority_sort-lstm-small"),  # no row of Table 1
        ("table_11", "priority_sort-panm-small"),
    ]
    mean, middle, source = records[0], records[2], records[3]
    cells = [source["measured"][f"length_{length}/token_accuracy"] for length in (9, 10, 20, 40, 80)]
    for seed in range(3):
        value = mean["measured"]["mean_accuracy"]["seeds"][seed]
        assert value == pytest.approx(sum(cell["seeds"][seed] for cell in cells) / 5)
    assert mean["measured"]["mean_accuracy"]["paper"] == 74.8
    assert middle["measured"] == {"length_20/token_accuracy": cells[2]}  # the same number is printed twice
    # A row that is not trained in the table of its training is not compared in the other one either.
    not_trained = records[1]
    assert not_trained["measured"]["mean_accuracy"]["median"] > 0
    assert module.verdict(not_trained) == module.verdict(records[5]) == "not trained"


def test_a_row_of_the_page(results):
    module = script()
    lines = module.page([made_up("copy", "LSTM")]).splitlines()
    (score,) = [line for line in lines if line.startswith("| copy | LSTM | L | 100.0")]
    assert score == (
        "| copy | LSTM | L | 100.0 / 100.0 | 98.8 / 96.8 | 21 / 0 | +77.8 / +96.8 | 98.0 / 97.6 | +77.0 / +97.6 "
        "| 2 | [copy-lstm-L](lantm/copy-lstm-L.json) |"
    )
    (beyond,) = [line for line in lines if line.startswith("| copy | LSTM | L | 64")]
    assert beyond == (
        "| copy | LSTM | L | 64 | 75.0 / 50.0 (100.0 / 100.0) | 37.5 / 0.0 (50.0 / 0.0) | 6.2 / 6.2 (12.5 / 12.5) | - "
        "| [copy-lstm-L](lantm/copy-lstm-L.json) |"
    )
    (origin,) = [line for line in lines if line.startswith("| [copy-lstm-L]")]
    assert "`lenmem reproduce lantm/copy`" in origin
    assert "12 min 35 s | TPU v9 | 012345678 |" in origin
    notes = [line for line in lines if line.startswith("* ")]
    assert any("*on the test set* over a grid" in note for note in notes)
    assert notes[-2].endswith("among other settings.")
    assert notes[-1] == "* Our trainings: 10,000 updates of 32 examples."
    card, left = (line for line in lines if line.startswith("| LANTM | Table 1(b): Main results"))
    assert left == "| LANTM | Table 1(b): Main results | all others | 111 | in the queue, `results/queue.txt` |"
    assert card == "| LANTM | Table 1(b): Main results | 112 | 1 |  | 1 | 1 |  |  |  |  | 1 |"


def test_comparisons_stand_on_the_page(results):
    record = made_up()
    compared = {
        "command": "lenmem compare positions/copy",
        "environment": record["environment"],
        "networks": [
            {
                "task": "copy",
                "model": name,
                "experiment": {"training": {"steps": 7, "seeds": 2}},
                "curve": record["curves"][0],
            }
            for name in ("near", "far")
        ],
    }
    folder = results / "positions" / "copy"
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps(compared))
    module = script()
    text = module.page([], module.read_comparisons(results))
    assert "`lenmem compare positions/copy`" in text
    assert "the median of 2 seeds and in brackets the best of them, of 7 steps on lengths 2 to 64. On TPU v9" in text
    assert "![Accuracy by length](positions/copy/curve.png)" in text
    assert "| network | 64 | 128 | 256 |" in text
    for name in "near", "far":
        assert f"| {name} | 100.0 / 100.0 | 75.0 / 50.0 (100.0 / 100.0) | 37.5 / 0.0 (50.0 / 0.0) |" in text


def test_dead_seeds_and_uncommitted_code_are_marked(results):
    record = made_up()
    record["alive"] = [True, False]
    record["environment"]["dirty"] = True
    for measured in record["measured"].values():
        measured["seeds"][1] = math.nan
    (results / "lantm" / "0.json").write_text(json.dumps(record))
    text = script().page(script().read_records(results))
    assert "| 1 of 2 alive |" in text
    assert "| TPU v9 | 012345678+ |" in text


def measured(paper: tuple[float, float], medians: tuple[float, float], trained: float = 1.0, **changes: Any):
    """A record of `copy`, LANTM, with these figures beside the paper's, and this accuracy at trained lengths."""
    record = made_up(**changes)
    names = ("token_accuracy", "exact_match")
    record["measured"] = {
        name: {"seeds": [median, median], "median": median, "best": median, "paper": printed}
        for name, median, printed in zip(names, medians, paper, strict=True)
    }
    record["curves"] = [record["curves"][0] | {"values": {name: [[trained, 0, 0]] * 2 for name in names}}]
    return record


@pytest.mark.parametrize(
    ("paper", "medians", "trained", "verdict"),
    [
        ((100, 100), (100, 97), 1.0, "within"),
        ((100, 100), (100, 96.9), 1.0, "below"),
        ((80, 50), (80, 53.1), 1.0, "above"),
        ((80, 50), (76, 100), 1.0, "below"),
        ((100, 100), (100, 100), 0.989, "not trained"),
        ((20, 0), (18, 0), 0.2, "within"),  # the paper's own network need not have learned more
        ((20, 0), (18, 0), 0.18, "not trained"),
        ((None, None), (18, 0), 0.1, None),
    ],
)
def test_what_a_row_comes_to(paper, medians, trained, verdict):
    record = measured(paper, medians, trained)
    module = script()
    assert module.verdict(record) == module.verdict(record, 0) == verdict
    if verdict == "not trained":
        assert "| not trained |" in module.page([record])


def test_lengths_count_as_trained_up_to_the_end_of_training():
    record = made_up()
    cell = {"seeds": [60, 64], "median": 62, "best": 64, "paper": 90}
    record["measured"] = {"longest_length": cell}
    module = script()
    assert module.verdict(record) == "not trained"
    assert module.verdict(record, 1) == "below"
    record["measured"]["longest_length"] = cell | {"median": 50, "paper": 50}
    assert module.verdict(record) == "within"


def test_the_variant_that_counts_is_chosen_at_trained_lengths():
    module = script()
    weak = measured((100, 100), (100, 100), 0.9, row="copy-lantm-weak-L")
    plain = measured((100, 100), (90, 80), 1.0, row="copy-lantm-L")
    (standing,) = module.standings([weak, plain]).values()
    assert (standing.record["row"], standing.verdict) == ("copy-lantm-L", "below")
    assert standing.chosen[0]["row"] == "copy-lantm-weak-L"  # as the paper chose, on the test split
    worse, better = plain | {"validation": [0.2, None]}, plain | {"row": "copy-lantm-x-L", "validation": [0.3, 0.3]}
    assert [x.record["row"] for x in module.standings([plain, worse, better]).values()] == ["copy-lantm-x-L"]
    longer = worse | {"row": "copy-lantm-long-L", "steps": 20_000}
    assert [x.record["row"] for x in module.standings([better, longer]).values()] == ["copy-lantm-long-L"]
    assert module.variant_names([weak, plain]) == {"copy-lantm-weak-L": "weak", "copy-lantm-L": "plain"}
    beyond = measured((100, 100), (100, 100), row="a-beyond", command="lenmem reproduce panm/copy_beyond --rows a")
    (standing,) = module.standings([beyond, plain]).values()
    assert standing.record["row"] == "copy-lantm-L", "a network that is in no paper does not stand for the paper's"


def test_a_network_that_was_changed_after_training_is_judged_by_its_training():
    """A larger memory may break a network that has learned, and a printed 0 is no reason to call a network learned."""
    module = script()
    setup = configs.load_config("lantm/copy")
    plain, else_ = to_plain(setup), to_plain(dataclasses.replace(setup, task=Copy(vocabulary=5)))
    for before, paper, now, verdict in (
        (1.0, (100, 100), 0.2, "below"),
        (0.2, (0, 0), 0.2, "not trained"),
        (1.0, (0, 0), 0.2, "within"),
    ):
        training = measured((100, 100), (100, 100), before, experiment=plain)
        changed = measured(paper, (0, 0), now, experiment=plain, after_training={"memory_width": 9})
        other = training | {"experiment": else_}
        assert module.verdict(module._with_training(changed, [other, changed, training])) == verdict
        assert module._with_training(training, [training]) == training


def test_a_record_of_another_configuration_is_not_compared(tmp_path):
    """A row that was changed after its measurement is older; another variant of it counts instead."""
    module, name = script(), "copy-lantm-L"
    record = read_json(RESULTS / "lantm" / f"{name}.json")
    assert "older" not in module._dated(record)
    training = record["experiment"]["training"]
    changed = record | {"experiment": record["experiment"] | {"training": training | {"seeds": 7}}}
    older = module._dated(changed)
    assert older["older"] == ["training.seeds: the run has 7, asked for 3"]
    assert module.verdict(record) == "within" and module.verdict(older) == module.verdict(older, 0) == "older"
    assert "| older |" in module.page([older])
    other = measured((100, 100), (90, 80), 0.99, row="copy-lantm-x-L")
    (standing,) = module.standings([older, other]).values()
    assert (standing.record["row"], standing.verdict) == ("copy-lantm-x-L", "below")


def test_the_configurations_that_were_changed_after_their_measurement():
    """A change of a configuration makes its records old: either measure again, or add the row here and say so."""
    known = {"ctl_backward-lstm"}
    assert {record["row"] for record in all_records() if "older" in record} == known


def test_numbers_that_are_no_result_of_the_network_are_not_compared():
    module = script()
    records = [record for record in all_records() if record["paper"] == "panm"]
    for table, model in ("table_9", "lstm"), ("table_7", "esbn"), ("table_13", "transformer_rpe__b"):
        for record in records:
            if record["table"] == table and record["where"]["model"] == model:
                compared = module.verdict(record) is not None
                assert compared == (record["where"]["task"] == "add_or_sub"), record["row"]
    text = module.page([record for record in records if record["table"] == "table_9"])
    assert "* Not compared: model lstm, transformer, ntm, esbn, since the paper's numbers are those of Table 8." in text


def test_a_printed_number_above_the_ceiling_counts_as_the_ceiling():
    module = script()
    record = read_json(RESULTS / "panm" / "dynamic_recall-panm-small.json")
    printed = record["measured"]["length_9/token_accuracy"]["paper"]
    references = module.references(record)
    assert printed == 92 and references["length_9/token_accuracy"] == pytest.approx(71.8, abs=0.05)
    assert references["length_40/token_accuracy"] == record["measured"]["length_40/token_accuracy"]["paper"]


def test_the_summary_counts_a_training_once_and_only_rows_with_numbers():
    module = script()
    records = all_records()
    once = module.summary(
        [record for record in records if "scores_of" not in papers.tables(record["paper"])[record["table"]]]
    )
    assert module.summary(records) == once
    assert "have 585 rows" in once
    card = module._scorecard(records)
    total = next(number for number, line in enumerate(card) if line.startswith("| **all**"))
    assert any("Means over seeds" in line for line in card[total:]) and not any("Means" in x for x in card[:total])


@pytest.mark.parametrize(
    ("paper", "longest", "verdict"),
    [((60, 20), None, True), ((70, 20), None, False), ((0, 0), 0, True), ((0, 0), 5, False)],
)
def test_where_the_papers_network_fails_too(paper, longest, verdict):
    record = measured(paper, (100, 100))
    if longest is not None:
        record["measured"] = {"longest_length": {"seeds": [9, 9], "median": 9, "best": 9, "paper": longest}}
    assert script().fails(record) == verdict


def test_an_ablation_does_not_stand_for_the_row_that_it_ablates():
    module = script()
    plain = measured((100, 100), (90, 80), 0.99, row="copy-lantm-L")
    ablated = measured((None, None), (95, 90), 1.0, row="copy-lantm-ablated-L")
    (standing,) = module.standings([ablated, plain]).values()
    assert standing.record["row"] == "copy-lantm-L"
    other = measured(
        (100, 100), (100, 100), row="a", command="lenmem reproduce panm/copy_small --rows a-panm_a3_c1-small"
    )
    (standing,) = module.standings([other, plain]).values()
    assert standing.record["row"] == "copy-lantm-L"


def test_numbers_that_were_not_checked_have_a_question_mark():
    module = script()
    chomsky = [record for record in all_records() if (record["paper"], record["table"]) == ("chomsky", "table_2")]
    lines = module.page(chomsky).splitlines()
    scores = [line for line in lines if " / " in line]
    (checked,) = [line for line in scores if line.startswith("| reverse_string | RNN |")]
    (unchecked,) = [line for line in scores if line.startswith("| compute_sqrt | RNN |")]
    assert "| 62 |" in checked and "| 54.3? |" in unchecked
    assert any("written down from memory of the paper" in line for line in lines)


def test_a_table_of_means_does_not_count_the_best_network():
    module = script()
    chomsky = [record for record in all_records() if record["paper"] == "chomsky"]
    lines = module.page(chomsky).splitlines()
    titles = "| Table 2: score", "| Means over seeds"
    scores, means = ([line for line in lines if line.startswith(f"| Chomsky {title}")] for title in titles)
    assert not scores[0].endswith("|  |") and means[0].endswith("|  |")
    assert scores[0].split("|")[4] == means[0].split("|")[4]  # the same trainings
    assert any("| cycle_navigation | Stack-RNN |" in line and "| 96.8 |" in line for line in lines)
    assert any("That they are the means over ten seeds is our reading" in line for line in lines)


def test_names_of_variants_are_distinct():
    module = script()
    records = all_records()
    variants = module.variant_names(records)
    names = [(*key, variants[record["row"]]) for key, rows in module._by_row(records).items() for record in rows]
    assert len(set(names)) == len(names)


def test_what_is_said_to_be_in_the_queue_is_there():
    """Each printed row is measured, or the page says why not; the queue's rows are found by their columns."""
    module = script()
    queued = [(entry.paper, entry.row.table, entry.row.where) for entry in read_queue(RESULTS / "queue.txt")]
    waiting = 0
    for paper, name, reason, rows in module.unmeasured(all_records()):
        assert reason is not module.UNEXPLAINED, f"lenmem/papers/{paper}.json does not say why {name} has no {rows}"
        sources = {name, *papers.tables(paper)[name].get("scores_of", {"tables": ()})["tables"]}
        for row in rows if "in the queue" in reason["why"] else ():
            waiting += 1
            assert any(at == paper and of in sources and module._fits(row, w) for at, of, w in queued), row
    assert waiting


def test_a_picture_is_drawn_anew_when_its_numbers_change(results, capsys):
    main, picture = script().main, results / "pictures" / "lantm-table_1b.png"
    assert main(["--results", str(results)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in (results / "pictures").iterdir()}
    assert main(["--results", str(results)]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    picture.unlink()
    (results / "pictures" / "stray.png").touch()
    assert main(["--results", str(results), "--check"]) == 1
    assert "(pictures/lantm-table_1b.png, stray.png)" in capsys.readouterr().err
    assert main(["--results", str(results)]) == main(["--results", str(results), "--check"]) == 0


def test_a_difference_is_never_rounded_away():
    difference = script()._difference
    cases = [(100.0, 100.0), (99.99, 100.0), (100.0, 99.98), (98.0, 100.0), (None, 100.0), (1.0, None)]
    assert [difference(*case) for case in cases] == ["0.0", "-<0.1", "+<0.1", "-2.0", "-", "-"]


# --- the papers -------------------------------------------------------------------------------------------------------


def test_the_tables_are_complete():
    tables = papers.tables("lantm")
    assert len(tables["table_1b"]["rows"]) == 8 * 7 * 2
    assert len(tables["table_b2"]["rows"]) == 8 * 4 * 2
    for name, cells in (("table_1b", ["fine", "coarse"]), ("table_b2", ["fine_with", "coarse_without"])):
        rows = tables[name]["rows"]
        assert len({(row["task"], row["model"], row["regime"]) for row in rows}) == len(rows)
        assert all(0 <= row[cell] <= 100 for row in rows for cell in cells)


def test_a_cell_is_found():
    assert papers.find("lantm", "table_1b", task="copy", model="LSTM", regime="L")["printed"] == "21/0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lantn", "table_1b"), r"no paper 'lantn'. Did you mean 'lantm'\? Allowed: "),
        (("lantm", "table_2b"), "lantm has no table 'table_2b'; it has table_1a, table_1b"),
        (("lantm", "table_1b"), "lantm table_1b has 112 rows with {}, not one"),
    ],
)
def test_unknown_papers_tables_and_cells_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        papers.find(*arguments)


def transcribed(paper):
    """The tables of a paper as they were transcribed."""
    original = PAPER_TABLES / f"{paper}.json"
    if not original.exists():
        pytest.skip("the transcriptions are not beside this clone")
    return json.loads(original.read_text())["tables"]


@pytest.mark.parametrize("paper", ["lantm", "dnc"])
def test_the_shipped_numbers_are_those_that_were_transcribed(paper):
    shipped, original = papers.tables(paper), transcribed(paper)
    assert shipped.keys() == original.keys()
    assert {name: table["rows"] for name, table in shipped.items()} == {
        name: table["rows"] for name, table in original.items()
    }


def test_the_shipped_scores_of_chomskys_hierarchy_are_those_that_were_transcribed():
    """Which of them were checked against the paper is known better here."""

    def scores(tables):
        return [{key: value for key, value in row.items() if key != "checked"} for row in tables["table_2"]["rows"]]

    assert scores(papers.tables("chomsky")) == scores(transcribed("chomsky"))


def test_the_shipped_numbers_of_the_data_router_are_those_that_were_transcribed():
    """There a row is one number, as a fraction; here all numbers of a model, in percent."""
    for name, table in transcribed("ndr").items():
        shipped = papers.tables("ndr")[name]["rows"]
        for row in table["rows"]:
            if "mean" not in row:  # hyper-parameters
                assert sum(known.items() <= row.items() for known in shipped) == 1
                continue
            columns = shipped[0].keys() & row.keys()
            found = papers.find("ndr", name, **{column: row[column] for column in columns})
            column = row["split"] if row["split"] in found else f"{row['split']}_{row['steps'] // 1000}k"
            for ours, theirs in ((found[column], row["mean"]), (found[f"{column}_std"], row["std"])):
                assert ours is theirs is None or ours == pytest.approx(100 * theirs)
        cells = sum(key.endswith("_std") for known in shipped for key in known)
        assert cells == sum("mean" in row for row in table["rows"])


def test_every_row_of_a_configuration_is_a_cell_of_its_paper():
    found = 0
    for name in configs.names():
        for row in rows_of(name).values():
            printed = papers.find(name.split("/")[0], row.table, **row.where)
            assert set(row.metrics.values()) <= printed.keys()
            found += 1
    assert found >= 112 + 64


@pytest.mark.slow
@pytest.mark.parametrize("name", configs.names())
def test_every_row_of_a_configuration_makes_a_network(name):
    experiments = [row.experiment for row in rows_of(name).values()]
    for experiment in {repr(one.bound_model): one for one in experiments}.values():
        task, spec, model = experiment.task, experiment.task.spec, experiment.bound_model
        # Sizes do not depend on files that are not here.
        away = [name for name in ("directory", "vocabulary") if isinstance(getattr(task, name, None), str)]
        task = dataclasses.replace(task, **dict.fromkeys(away, "example"))
        inputs, answers = spec.shapes(task.train_lengths[1])
        kind = jax.ShapeDtypeStruct((2, inputs), np.int32)
        if not spec.takes_tokens:
            kind = jax.ShapeDtypeStruct((2, inputs, spec.input_width), np.float32)
        masks = [jax.ShapeDtypeStruct((2, size), bool) for size in (inputs, answers)]
        outputs, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), kind, *masks)
        assert outputs.shape == (2, answers, spec.output_size)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("[!_]*.py")), ids=lambda path: path.stem)
def test_headers_name_records_that_are_there(path: Path):
    """A name may stand for several, as in `<model>`; one without a folder lies beside the one before."""
    header = ast.get_docstring(ast.parse(path.read_text())) or ""
    folder = ROOT
    for name in re.findall(r"`([^`\s]+[.]json)`", header):
        folder = (ROOT / name).parent if "/" in name else folder
        assert list(folder.glob(re.sub(r"<\w+>", "*", name.rpartition("/")[2]))), name
