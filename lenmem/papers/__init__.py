"""The papers' printed numbers, as data: one JSON file per paper."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from lenmem.errors import choices


def names() -> tuple[str, ...]:
    """The names of the papers with tables."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


@functools.cache
def about(paper: str) -> dict[str, Any]:
    """The contents of a paper's file: its tables, and the texts about it on the results page.

    paper, source       its title and publication
    title, short        its names on the page
    chosen_by_paper     how it selected the networks whose scores it prints
    chosen_on_test      whether it selected on the test split: our networks selected that way get their own column
    not_in_the_paper    configurations, and patterns of names of rows, whose networks stand for a printed row only if
                        no others do
    unmeasured          why printed rows have not been measured: entries {tables, where, why}, of which the first that
                        fits a row counts; `where` has a column's value, or a list of them, and fits all rows if empty
    tables              name -> {caption, metric, unit, notes, rows}; `printed` false for a table of ours, whose rows
                        are not counted as the paper's; and `scores_of` {tables, metrics, models} if the table has
                        other scores of the trainings of those tables: our metric -> the column, and a model's name
                        there -> its name here, if they differ; `without_reference`: entries {where, why} of rows whose
                        numbers are no result of the network and are not compared. A table may have its own
                        `chosen_by_paper` and `chosen_on_test`
    """
    if paper not in names():
        raise ValueError(f"there is no paper {paper!r}.{choices(paper, names())}")
    return json.loads(resources.files(__name__).joinpath(f"{paper}.json").read_text())


def tables(paper: str) -> dict[str, Any]:
    """All tables of a paper: name -> {caption, metric, unit, notes, rows}."""
    return about(paper)["tables"]


def about_table(paper: str, table: str) -> dict[str, Any]:
    """The entries of a table, and those of `about` that it does not have itself."""
    return about(paper) | tables(paper)[table]


def find(paper: str, table: str, **where: Any) -> dict[str, Any]:
    """The row of a table whose columns have these values. Raises ValueError unless there is exactly one."""
    rows = matching(paper, table, **where)
    if len(rows) != 1:
        raise ValueError(f"{paper} {table} has {len(rows)} rows with {where}, not one")
    return rows[0]


def matching(paper: str, table: str, **where: Any) -> list[dict[str, Any]]:
    """The rows of a table whose columns have these values. Raises ValueError for an unknown table."""
    known = tables(paper)
    if table not in known:
        raise ValueError(f"{paper} has no table {table!r}; it has {', '.join(known)}")
    return [row for row in known[table]["rows"] if all(row.get(column) == value for column, value in where.items())]
