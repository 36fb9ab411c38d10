"""Runs notebooks from their scripts, and stores their outputs: `python scripts/run_notebooks.py colab/dnc.py`.

Without names it runs those whose code has changed since their outputs were stored. A notebook runs in an empty
directory. Its metadata contain a hash of the code of the outputs, the processor time in seconds, and the version of
lenmem. `tests/test_colab.py` compares the hash.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat

import lenmem

COLAB = Path(__file__).parents[1] / "colab"


def code_hash(notebook: Any) -> str:
    """The hash of all code cells, in order."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def ran(notebook: Any) -> dict[str, Any]:
    """The metadata about the run that produced the outputs of a notebook."""
    return notebook.metadata.get("lenmem", {})


def run(script: Path) -> float:
    """Runs a notebook and writes it, with its outputs, next to its script; returns its processor time. Nothing is
    written if the notebook raises an error."""
    notebook: Any = jupytext.read(script)
    target = script.with_suffix(".ipynb")
    if target.exists():  # keeps the identities of cells whose source stays
        known = {(cell.cell_type, cell.source): cell.id for cell in nbformat.read(target, as_version=4).cells}
        for cell in notebook.cells:
            cell.id = known.pop((cell.cell_type, cell.source), cell.get("id", ""))
    start = processor_time()
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": folder}}).execute()
    seconds = processor_time() - start
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of day
        if cell.cell_type == "code":
            cell.outputs = joined(output for output in cell.outputs if not is_alarm(output))
    notebook.metadata["lenmem"] = {
        "code": code_hash(notebook),
        "seconds": round(seconds),
        "version": lenmem.__version__,
    }
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}  # without the version
    nbformat.validate(notebook)
    jupytext.write(notebook, target)
    return seconds


def joined(outputs: Iterable[Any]) -> list[Any]:
    """The outputs with the parts of a stream joined, since the output of a command arrives in arbitrary pieces."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream" and output.name == found[-1].name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def is_alarm(output: Any) -> bool:
    """Whether it is XLA's warning that a program compiles slowly, as all do on a busy machine."""
    return output.get("name") == "stderr" and "Very slow compile" in output["text"]


def processor_time() -> float:
    """The processor time of all ended child processes. Unlike wall time, it does not depend on the load of the
    machine."""
    times = os.times()
    return times.children_user + times.children_system


def main(arguments: list[str] | None = None) -> int:
    """Runs the notebooks and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("scripts", nargs="*", type=Path, help="scripts in colab/; by default those with older outputs")
    options = parser.parse_args(arguments)
    for script in options.scripts or outdated():
        print(f"{script.stem}: {run(script):.0f} s", flush=True)
    return 0


def outdated() -> list[Path]:
    """Scripts whose notebook is missing, or has outputs of other code."""
    scripts = sorted(COLAB.glob("*.py"))
    return [script for script in scripts if not script.with_suffix(".ipynb").exists() or not fresh(script)]


def fresh(script: Path) -> bool:
    """Whether the stored outputs of a script are those of its code."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    return ran(notebook).get("code") == code_hash(jupytext.read(script))


if __name__ == "__main__":
    raise SystemExit(main())
