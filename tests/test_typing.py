"""pyright finds a user's mistakes: a misspelt or mistyped field of a network, a task, an experiment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_pyright_reports_every_slip_and_nothing_else():
    """The reports on `tests/typing/` are those announced in its comments, line by line."""
    files = sorted((ROOT / "tests/typing").glob("*.py"))
    assert [file.name for file in files] == ["right.py", "wrong.py"]
    expected: Counter[tuple[str, int, str]] = Counter()
    for file in files:
        for number, line in enumerate(file.read_text().splitlines()):
            _, _, rules = line.partition("# wrong: ")
            expected.update((file.name, number, rule) for rule in rules.split(", ") if rule)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, files)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    reported = Counter(
        (Path(report["file"]).name, report["range"]["start"]["line"], report.get("rule", report["message"]))
        for report in json.loads(run.stdout)["generalDiagnostics"]
        if report["severity"] == "error"
    )
    assert reported == expected
