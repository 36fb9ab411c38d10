"""The printed numbers of Pointer-Augmented Neural Memory against their transcription."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lenmem import papers, reproduce
from lenmem.tasks.panm import DynamicRecall, IDSort, PanmCopy

TRANSCRIPTION = Path(__file__).parents[3] / "shared" / "paper_tables" / "panm.json"
ALGORITHMIC = [f"table_{number}" for number in range(7, 13)]
TASKS = ("copy", "reverse", "mix", "dynamic_recall", "priority_sort", "id_sort")


@pytest.fixture(scope="module")
def transcribed():
    if not TRANSCRIPTION.exists():
        pytest.skip("the transcription is not beside this clone")
    return json.loads(TRANSCRIPTION.read_text())["tables"]


def test_tables_of_lengths_have_one_row_for_a_model(transcribed):
    for name in ALGORITHMIC:
        cells = 0
        for row in transcribed[name]["rows"]:
            found = papers.find("panm", name, task=row["task"], model=row["model"])
            column = f"length_{row['length']}"
            assert (found[column], found[f"{column}_std"]) == (row["mean"], row["std"])
            cells += 1
        rows = papers.tables("panm")[name]["rows"]
        assert sum(key.startswith("length_") for row in rows for key in row) == 2 * cells


def test_the_other_tables_are_as_transcribed(transcribed):
    shipped = papers.tables("panm")
    others = {name: table for name, table in transcribed.items() if name not in ALGORITHMIC}
    for name in ("table_3", "table_4", "table_13"):  # in percent here, as all shares
        table, columns = others[name], ("mean", "std")
        rows = [row | {c: None if row[c] is None else round(100 * row[c]) for c in columns} for row in table["rows"]]
        notes = [*table["notes"], "Printed as fractions; here in percent."]
        others[name] = table | {"unit": "percent", "rows": rows, "notes": notes}
    for name in ("table_1", "table_6"):  # their second sentence is not a part of their title
        others[name] = others[name] | {"caption": others[name]["caption"].replace("; ", ". ")}
    added = ("scores_of", "without_reference")  # how our results are compared with the table
    ours = {name: {key: value for key, value in shipped[name].items() if key not in added} for name in others}
    assert ours == others
    assert set(shipped) - set(transcribed) == {"figure_3a", "figure_7", "figure_8", "stories"}


def test_columns_are_the_lengths_that_tasks_score():
    for name, task in zip(ALGORITHMIC, TASKS, strict=True):
        rows = papers.tables("panm")[name]["rows"]
        assert len({row["model"] for row in rows}) == len(rows) == 12
        scored = (IDSort() if "sort" in task else PanmCopy()).scored_lengths
        columns = {f"length_{length}{suffix}" for length in scored for suffix in ("", "_std")}
        assert all(row.keys() == {"task", "model"} | columns and row["task"] == task for row in rows)


def test_known_defects_of_the_tables():
    reverse, mix = ({row["model"]: row for row in papers.tables("panm")[f"table_{n}"]["rows"]} for n in (8, 9))
    copied = [name for name in mix if mix[name] | {"task": ""} == reverse[name] | {"task": ""}]
    assert copied == ["lstm", "transformer", "ntm", "esbn"]
    recall = papers.find("panm", "table_10", model="panm")
    above = [n for n in DynamicRecall().scored_lengths if recall[f"length_{n}"] > 100 * DynamicRecall().ceiling_at(n)]
    assert above == [9, 10]


def test_figures_have_cells_without_numbers():
    for name, heads in (("figure_7", "address_heads"), ("figure_8", "content_heads")):
        table = papers.tables("panm")[name]
        assert {row[heads] for row in table["rows"]} == set(range(4 if name == "figure_7" else 3))
        assert all(value is None for row in table["rows"] for key, value in row.items() if key.startswith("length_"))
        assert "statements about" in table["notes"][0]


def test_the_rows_of_the_drawn_stories_are_not_the_papers():
    """Their table says so and has no printed numbers; every score has its column."""
    rows, table = reproduce.rows_of("panm/stories_small"), papers.tables("panm")["stories"]
    assert table["caption"].startswith("Not in the paper")
    assert {value for cells in table["rows"] for name, value in cells.items() if name != "model"} == {None}
    assert len(rows) == len(table["rows"])
    for row in rows.values():
        assert papers.find("panm", row.table, **row.where).keys() == {"model", *row.metrics.values()}
