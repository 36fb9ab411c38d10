"""The README is correct: its Python runs, its commands exist; and the documentation lists all models and tasks.

Training steps are reduced here. `.ci/run` runs the shell examples unchanged.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lenmem import models, tasks
from lenmem.cli.shelves import markdown_tables
from lenmem.configs import load_config
from lenmem.files import read_json
from lenmem.training.resume import same_experiment

README = (Path(__file__).parent.parent / "README.md").read_text()
FENCE = re.compile(r"^(<!-- ci: skip[^\n]*-->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(language, code, bool(skipped)) for skipped, language, code in FENCE.findall(README)]
PYTHON = [code for language, code, _ in BLOCKS if language == "python"]
SHELL = [code for language, code, skipped in BLOCKS if language == "sh" and not skipped]


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All Python blocks, in order, in one script, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    assert PYTHON
    reader = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", reader)
    for number, code in enumerate(PYTHON):
        quick, cuts = re.subn(r"\bsteps=\d+", "steps=2", code)
        assert cuts, "an example that trains says for how long"
        exec(compile(quick, f"README.md, Python example {number + 1}", "exec", dont_inherit=True), vars(reader))
    assert vars(reader)["result"].step == vars(reader)["run"].step == 2


@pytest.mark.parametrize("code", PYTHON)
def test_bringing_your_own_takes_few_lines(code: str):
    """At most 20 lines of code."""
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_the_two_commands_are_run_by_ci():
    """The install line and the test line are there, and `.ci/run` does not skip them."""
    first, *_ = SHELL
    assert first == ("python -m venv .venv && . .venv/bin/activate && pip install -e . && lenmem train quickstart\n")
    assert "lenmem compare quickstart --models lantm lstm\n" in SHELL
    assert "pip install -e '.[test]' && pytest -n 2\n" in SHELL


def test_every_model_and_task_is_listed():
    """The tables are those of `lenmem list --markdown`, which name each model and each task once."""
    for listed, known in ((models.ABOUT, models.names()), (tasks.ABOUT, tasks.names())):
        assert sorted(name for names in listed for name in names) == sorted(known)
    page = (Path(__file__).parent.parent / "docs/networks_and_tasks.md").read_text()
    _, _, tables = page.partition("(written by `lenmem list --markdown`) -->\n")
    assert tables.partition("\n<!-- list:end -->")[0] == markdown_tables()


def test_links_lead_somewhere():
    """Relative links point at files of the repository."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (Path(__file__).parent.parent / target).exists(), f"README.md links to {target}, which is missing"


def test_the_quickstarts_table_is_that_of_its_record():
    """`--check` compares; the record is a run of the two commands on a commit."""
    script = runpy.run_path(str(Path(__file__).parent.parent / "scripts/make_quickstart.py"))
    assert script["main"](["--check"]) == 0
    record = read_json(script["RESULTS"] / "comparison.json")
    changed = record | {"networks": record["networks"][::-1]}
    assert script["section"](changed, read_json(script["RESULTS"] / "keys.json")) not in README
    assert record["command"].startswith("lenmem compare quickstart --models lantm lstm")
    assert record["environment"]["commit"] and not record["environment"]["dirty"]
    for network, model in zip(record["networks"], (None, "lstm"), strict=True):
        if model is None:
            assert same_experiment(network["experiment"], load_config("quickstart"))
        else:
            assert network["experiment"]["training"]["optimizer"]["learning_rate"] == 1e-2
