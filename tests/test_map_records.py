"""The records, the page and the picture in results/map are those of the networks, tasks and budget of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from lenmem.map import Budget, Cell, cells, markdown, outcomes, read, with_recorded

RESULTS = Path(__file__).parents[1] / "results" / "map"
CELLS = {cell.path(RESULTS): cell for cell in cells()}


def test_the_page_is_made_from_the_records():
    found = outcomes(with_recorded([], Budget(), RESULTS), RESULTS)
    assert (RESULTS / "README.md").read_text() == markdown(found)
    assert (RESULTS / "map.png").exists()


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in sorted(RESULTS.glob("*/*.json"))]
)
def test_a_record_is_that_of_a_cell_with_its_present_settings(path: Path):
    cell: Cell = CELLS[path]
    assert cell.refusal is None
    assert read(cell, Budget(), RESULTS) is not None, "made with other settings: it is left out of the page"
