"""Notebooks and the scripts that they are made from say the same, hold no outputs, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")

COLAB = Path(__file__).parents[1] / "colab"
SCRIPTS = sorted(COLAB.glob("*.py"))


def test_every_notebook_has_a_script():
    assert [path.stem for path in sorted(COLAB.glob("*.ipynb"))] == [path.stem for path in SCRIPTS]
    assert SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script(path):
    of_script, of_notebook = (
        [(cell.cell_type, cell.source) for cell in jupytext.read(file).cells]
        for file in (path, path.with_suffix(".ipynb"))
    )
    assert of_notebook == of_script, f"run: jupytext --to ipynb --update {path}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path):
    for cell in json.loads(path.with_suffix(".ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("LENMEM_STEPS", "8")
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture was shown"
