"""A Sphinx extension: ```` ```{solved} lantm table_1b ```` is a table of how many seeds solve each task, from records.

A seed solves a task if it has at least 95% exact match. A cell lists the settings that a network was trained with. A
setting is what the name of a row has between the model and the regime, as `warm` in `copy-lantm-warm-L`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).parents[1] / "results"
SOLVED = 95.0
"""Percent of the answers that a seed has to have right."""
REGIMES = {"L": "large regime", "S": "small regime"}


def records(paper: str, table: str) -> list[dict[str, Any]]:
    """The records of a table, in the order of their names."""
    found = [json.loads(path.read_text()) for path in sorted((RESULTS / paper).glob("*.json"))]
    return [record for record in found if record["table"] == table]


def setting(record: dict[str, Any]) -> str:
    """The setting in the name of a row."""
    where = record["where"]
    model = where["model"].lower().replace("/", "_")
    return (
        record["row"].removeprefix(f"{where['task']}-{model}").removesuffix(where["regime"]).strip("-") or "no suffix"
    )


def table(found: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of the table, in Markdown: a row for each task and network, a column for each regime."""
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for record in found:
        where, seeds = record["where"], record["measured"]["exact_match"]["seeds"]
        solved = sum(seed is not None and seed >= SOLVED for seed in seeds)
        text = f"{setting(record)}: {solved} of {len(seeds)}"
        row = cells.setdefault((where["task"], where["model"]), {})
        row.setdefault(where["regime"], []).append(f"**{text}**" if solved else text)
    lines = [f"| task | network | {' | '.join(REGIMES.values())} |", "| --- | --- |" + " --- |" * len(REGIMES)]
    for (task, model), row in cells.items():
        texts = [", ".join(row.get(regime, [])) for regime in REGIMES]
        lines.append(f"| {task.replace('_', ' ')} | {model} | {' | '.join(texts)} |")
    return lines


class Solved(SphinxDirective):
    """The directive: a paper and a table of it."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """The table as nodes."""
        paper, name = self.arguments
        container = nodes.container()
        self.state.nested_parse(StringList(table(records(paper, name)), source="solved"), 0, container)
        self.env.note_reread()
        return container.children


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("solved", Solved)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
