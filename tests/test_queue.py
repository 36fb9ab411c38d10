"""A queue of rows: reading it from a file, running, skipping and resuming rows, and estimates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lenmem import workers
from lenmem.progress import duration
from lenmem.queue import Entry, estimates, read_queue, run_queue
from lenmem.serialize import to_plain
from lenmem.workers import Job, ready, run_jobs

# A stand-in for `lenmem`: records its arguments, and writes the record of every row except those called `bad`.
WORKER = """
import json, os, sys
from pathlib import Path
verb, config, _, row, _, results, _, runs = sys.argv[1:]
with open(Path(runs) / "started", "a") as file:
    print(verb, row, os.environ["XLA_FLAGS"].split()[-1], file=file)
print("working on", row)
if row.startswith("bad"):
    print("error: cannot")
    sys.exit(2)
Path(results, "lantm", f"{row}.json").write_text(Path(runs, f"{row}.record").read_text())
"""
CONFIG = """
import dataclasses
from lenmem import reproduce, tasks, models, Experiment, Training

where = {"task": "copy", "model": "LSTM", "regime": "L"}
def row(steps):
    experiment = Experiment(tasks.make("copy"), models.make("lstm"), Training(steps=steps, seeds=2))
    return reproduce.Row(experiment, "table_1b", where, {"exact_match": "coarse"})
rows = {"one": row(10), "bad": row(20), "two": row(30)}
"""


@pytest.fixture
def queue(tmp_path):
    """(configuration, entries, directories) of three rows, with the data that the worker needs to make their
    records."""
    config = tmp_path / "lantm" / "copy.py"
    folders = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    for folder in (config.parent, folders["results"] / "lantm", folders["runs"]):
        folder.mkdir(parents=True)
    config.write_text(CONFIG)
    (tmp_path / "worker.py").write_text(WORKER)
    file = tmp_path / "rows.txt"
    file.write_text(f"# the first rows\n\n{config} two one  # in this order\n{config} bad\n")
    entries = read_queue(file)
    for entry in entries:
        training = entry.row.experiment.training
        record = {
            "row": entry.name,
            "where": dict(entry.row.where),
            "experiment": to_plain(entry.row.experiment),
            "wall_seconds": 6.0 * training.steps,
            "steps": training.steps,
            "alive": [True] * training.seeds,
        }
        (folders["runs"] / f"{entry.name}.record").write_text(json.dumps(record))
    return config, entries, folders


def run(entries: list[Entry], folders: dict[str, Path], workers: int = 1) -> tuple[list[str], list[str], list[str]]:
    """(names that failed, the output, the started rows)."""
    said: list[str] = []
    worker = folders["runs"].parent / "worker.py"
    started = folders["runs"] / "started"
    started.unlink(missing_ok=True)
    failed = run_queue(entries, workers=workers, **folders, say=said.append, command=(sys.executable, str(worker)))
    return failed, said, started.read_text().splitlines() if started.exists() else []


def test_rows_run_once_each_in_the_order_of_the_file(queue):
    _, entries, folders = queue
    assert [entry.name for entry in entries] == ["two", "one", "bad"]
    failed, said, started = run(entries, folders)
    assert failed == ["bad"]
    assert started == [f"reproduce {name} intra_op_parallelism_threads=1" for name in ("two", "one", "bad")]
    assert said[0] == "0 of 3 rows were measured before; 3 left, 3 of them of unknown length"
    assert said[1] == "start two" and re.match(r"done  two in \d+ s; 2 left", said[2])
    assert said[-1].startswith("FAILED bad, exit status 2: error: cannot (") and said[-1].endswith("bad.log); 0 left")
    assert "working on two" in (folders["runs"] / "lantm" / "two.log").read_text()

    failed, said, started = run(entries, folders, workers=2)  # again: what has a record is left alone
    assert failed == ["bad"]
    assert [line.split()[1] for line in started] == ["bad"]
    # 6 s a step of two seeds in the records: 20 steps take 120 s, shared by two workers.
    assert said[0] == "2 of 3 rows were measured before; 1 left, about 60 s"


def test_rows_of_one_run_wait_for_each_other():
    """A network that is changed after training is measured with the run of another row."""
    entries = {entry.name: entry for entry in read_queue("dnc")}
    train, extended = (entries[name].job(Path("results"), Path("runs")) for name in ("add-dnc", "add-dnc-extended"))
    other = entries["sort-dnc"].job(Path("results"), Path("runs"))
    assert ready([extended, other], [train]) == [other]
    assert ready([extended, other], []) == [extended, other]


def test_a_row_that_is_named_twice_runs_once(queue, tmp_path):
    config, *_ = queue
    (tmp_path / "twice.txt").write_text(f"{config} two\n{config} one two\n")
    assert [entry.name for entry in read_queue(tmp_path / "twice.txt")] == ["two", "one"]


def test_a_record_of_another_experiment_does_not_count(queue):
    config, entries, folders = queue
    run(entries, folders)
    config.write_text(CONFIG.replace('"one": row(10)', '"one": row(11)'))
    changed = read_queue(config.parent.parent / "rows.txt")
    assert [entry.name for entry in changed if entry.record(folders["results"]) is None] == ["one", "bad"]


def test_workers_are_stopped_with_the_queue(queue, monkeypatch):
    _, entries, folders = queue
    (folders["runs"].parent / "worker.py").write_text("import time\ntime.sleep(600)")
    naps = []

    def interrupt(_seconds):
        naps.append(None)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("lenmem.workers.time.sleep", interrupt)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        "lenmem.workers.subprocess.Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    with pytest.raises(KeyboardInterrupt):
        run(entries, folders, workers=2)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_a_worker_that_says_nothing_is_not_explained_by_an_earlier_one(tmp_path):
    log, said = tmp_path / "job.log", []
    log.write_text("step 10/10  loss 0.01\n")
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    job = Job("one", (), log)
    assert run_jobs([job], workers=1, say=said.append, seconds={}, command=killed) == [job]
    assert f"FAILED one, exit status -9: it printed nothing ({log})" in said[-1]


def test_a_worker_ends_when_its_parent_was_killed(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(f"""
import pathlib, signal, sys, time
from lenmem import workers

def save(*_):
    pathlib.Path("{tmp_path}/saved").touch()
    sys.exit()

signal.signal(signal.SIGTERM, save)
workers.end_with_parent()
pathlib.Path("{tmp_path}/started").touch()
time.sleep(100)
""")
    queue = f"""
import sys
from pathlib import Path
from lenmem.workers import Job, run_jobs

job = Job("one", (), Path("{tmp_path}/log"))
run_jobs([job], workers=1, say=print, seconds={{}}, command=(sys.executable, "{worker}"))
"""
    parent = subprocess.Popen([sys.executable, "-c", queue])
    wait_for(tmp_path / "started")
    assert not (tmp_path / "saved").exists()
    parent.kill()
    parent.wait()
    wait_for(tmp_path / "saved")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


def test_the_command_line_ends_with_its_parent():
    of_another = os.environ | {workers.WORKER: "0"}
    ended = subprocess.run([sys.executable, "-m", "lenmem", "list"], env=of_another, capture_output=True)
    assert ended.returncode == 143


def test_estimates_come_from_the_records_most_alike(queue):
    _, entries, folders = queue
    assert estimates(entries, folders["results"]) == {}
    for where, wall in (({"model": "LSTM", "task": "double"}, 40.0), ({"model": "LANTM", "task": "copy"}, 80.0)):
        name = f"{where['model']}-{where['task']}"
        record = {"where": where, "wall_seconds": wall, "steps": 10, "alive": [True]}
        (folders["results"] / "lantm" / f"{name}.json").write_text(json.dumps(record))
    # 4 s a step and seed of the same model; each row has two seeds.
    assert estimates(entries, folders["results"]) == {"two": 240.0, "one": 80.0, "bad": 160.0}


def test_a_paper_is_a_queue():
    entries = read_queue("lantm")
    names = [entry.name for entry in entries]
    assert {"copy-lantm-L", "reverse-ram-published-S"} <= set(names) and len(set(names)) == len(names)
    assert {entry.paper for entry in entries} == {"lantm"}
    assert not any(entry.config.startswith(("lantm/grid", "lantm/sweep")) for entry in entries)  # searches


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lantm/copi copy-lantm-L", "line 2: there is no configuration 'lantm/copi'"),
        ("lantm/copy copy-lantn-L", "line 2: there is no row 'copy-lantn-L'. Did you mean 'copy-lantm-L'"),
        ("quickstart", "line 2: quickstart defines no rows of a paper's table"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, message):
    (tmp_path / "rows.txt").write_text(f"\n{text}\n")
    with pytest.raises(ValueError, match=f"rows.txt, {message}"):
        read_queue(tmp_path / "rows.txt")


def test_neither_file_nor_paper():
    with pytest.raises(ValueError, match=r"lantn is neither a file nor a paper. Did you mean 'lantm'\?"):
        read_queue("lantn")


def test_durations():
    assert [duration(seconds) for seconds in (4.2, 89, 90, 600, 12600)] == ["4 s", "89 s", "2 min", "10 min", "3.5 h"]


def test_a_queue_that_is_no_text_is_named(tmp_path):
    (tmp_path / "queue").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="queue cannot be read: "):
        read_queue(tmp_path / "queue")
