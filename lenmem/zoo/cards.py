"""A network as a folder that can be shared: its parameters, its record, and a model card.

model.safetensors    the parameters of all seeds, and the experiment as plain data
model.json           the record: curves by length, commit, command
README.md            the card, in the format of Hugging Face: a YAML head, then text
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lenmem import papers, runs, tasks
from lenmem.errors import nearest
from lenmem.evaluation.tables import percent
from lenmem.experiment import Run, export_run, load
from lenmem.files import make_directory, write_json, write_whole
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks.base import evenly_spaced
from lenmem.zoo import shelf
from lenmem.zoo.shelf import Entry

FILES = ("model.safetensors", "model.json", "README.md")
LICENCES = ("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "other")
"""The licences allowed in a card, by their identifiers on Hugging Face."""
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)+")


def add(run: Run, name: str, *, licence: str = shelf.LICENCE, notes: str = "", command: str = "") -> Path:
    """Adds a run to the zoo in the working directory, as a folder with a card; returns the folder.

    If the run has no curve, it is measured. Nothing is overwritten. Raises ValueError for a name that is taken or is
    not a path such as `own/copy-gru`, and for an unknown licence.
    """
    if licence not in LICENCES:
        raise ValueError(f"licence is {licence!r}; allowed are {', '.join(LICENCES)}.{nearest(licence, LICENCES)}")
    folder = free(name)
    environment = run.manifest.get("environment", {})
    record = {
        "task": tasks.name_of(run.experiment.task),
        "alive": run.alive.tolist(),
        "curves": [runs.own_curve(run).to_dict()],
        "steps": run.step,
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(run.params)),
        "experiment": to_plain(run.experiment),
        "after_training": {},
        "environment": environment,
        "command": command,
        "licence": licence,
        "notes": notes,
    }
    with tempfile.TemporaryDirectory() as scratch:
        export_run(run, Path(scratch) / "model.safetensors")
        entry = Entry(name, record, Path(scratch) / "model.safetensors", 0)
        write_folder(entry, folder)
    return folder


def write_folder(entry: Entry, folder: Path) -> None:
    """Writes the three files of a network, the parameters last: a folder without them does not count as a network.

    The experiment in the files has the fields with which the network was measured, if they differ from the training's.
    """
    make_directory(folder)
    if entry.record.get("after_training"):
        run = load(f"{shelf.PREFIX}{entry.name}")
        with tempfile.TemporaryDirectory() as scratch:
            export_run(run, Path(scratch) / "model.safetensors")
            data = (Path(scratch) / "model.safetensors").read_bytes()
        record = {**entry.record, "experiment": to_plain(run.experiment), "after_training": {}}
        entry = dataclasses.replace(entry, record=record)
    else:
        data = entry.file().read_bytes()
    own = entry.path.with_name("README.md") if entry.path and entry.path.name == FILES[0] else None
    text = own.read_text() if own is not None and own.exists() else card(entry)
    (folder / "README.md").write_text(text)
    write_json(folder / "model.json", entry.record)
    write_whole(folder / "model.safetensors", data)


def free(name: str) -> Path:
    """The folder for a new network. Raises ValueError if the name has another form, or is taken."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name is {name!r}; it must be a path such as own/copy-gru")
    folder = shelf.OWN / name
    if name in shelf.entries() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"the zoo already has {name}; give another --name")
    return folder


def card(entry: Entry) -> str:
    """The model card of a network: description, data, accuracy by length, limits, command, commit and licence."""
    record = entry.record
    experiment = record["experiment"]
    model, task = entry.model, _task_name(experiment["task"])
    low, high = entry.train_lengths
    seeds, dead = len(record["alive"]), record["alive"].count(False)
    environment = record.get("environment", {})
    paper = entry.paper if entry.paper in papers.names() else None
    lines = [
        *_head(entry, task),
        f"# {model} on {task}",
        "",
        f"{model} with {record['parameters']:,} parameters, trained for {record['steps']:,} steps on `{task}` of "
        f"length {low} to {high}, with {seeds} seed{'s' * (seeds > 1)}"
        + (f", {dead} of which diverged" if dead else "")
        + ". The question is whether a network that was trained on short sequences still works on longer ones.",
        "",
        *([f"The network and the task are those of {papers.about(paper)['title']}.", ""] if paper else []),
        "## Data",
        "",
        "Examples of the task, which lenmem generates or reads with these settings:",
        "",
        *_json(experiment["task"]),
        "## Exact match by length",
        "",
        *_table(entry),
        "",
        f"Length up to which it is at least {shelf.MASTERED:.0%}, by seed: "
        f"{', '.join(str(n) if n else 'none' for n in entry.reaches)}. The best is seed {entry.best_seed}.",
        "",
        "## Limits",
        "",
        f"Lengths beyond {max(entry.exact, default=high)} and other sizes of the task were not measured."
        + ("" if entry.solved else " It does not work beyond its training lengths.")
        + (f" {record['notes']}" if record.get("notes") else ""),
        "",
        "## Use",
        "",
        "```sh",
        f"lenmem evaluate model.safetensors --lengths {high} {2 * high}",
        f"lenmem predict model.safetensors --length {high} --seed {entry.best_seed}",
        "```",
        "",
        "Loading the file runs no code from it.",
        "",
        "## Origin",
        "",
        f"Command: `{record.get('command') or 'not recorded'}`.",
        f"Commit of lenmem: `{environment.get('commit') or 'not recorded'}`"
        + (", with changes that were not committed." if environment.get("dirty") else "."),
        f"Date: {str(environment.get('date', 'not recorded'))[:10]}; versions: "
        + ", ".join(f"{package} {version}" for package, version in environment.get("versions", {}).items())
        + ".",
        f"Licence: {record.get('licence', shelf.LICENCE)}.",
        "",
        "The experiment:",
        "",
        *_json({part: experiment[part] for part in ("model", "training")}),
    ]
    return "\n".join(lines)


def _task_name(plain: Mapping[str, Any]) -> str:
    """The name of a task from plain data, or the name of its class if that is outside of lenmem."""
    try:
        return tasks.name_of(from_plain(dict(plain)))
    except ValueError:
        return str(plain["class"]).rpartition(".")[2]


def _head(entry: Entry, task: str) -> list[str]:
    """The YAML head. Values are written as JSON, which is valid YAML."""
    far = entry.reach or max(entry.exact, default=0)
    results = {
        "task": {"type": "other", "name": task},
        "dataset": {"type": task, "name": f"{task}, length {far}"},
        "metrics": [
            {
                "type": "exact_match",
                "value": round(entry.exact[far][entry.best_seed], 4),
                "name": "exact match of the best seed",
            }
        ]
        if entry.exact
        else [],
    }
    fields = {
        "library_name": "lenmem",
        "license": entry.record.get("licence", shelf.LICENCE),
        "tags": ["lenmem", "jax", "flax", "length-generalisation", entry.model.lower()],
        "model-index": [{"name": entry.name, "results": [results]}],
    }
    return ["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---", ""]


def _table(entry: Entry) -> list[str]:
    """Median and best seed at up to twelve lengths."""
    shown = evenly_spaced(sorted(entry.exact), 12)
    cells = [entry.exact[length] for length in shown]
    return [
        "| length | " + " | ".join(map(str, shown)) + " |",
        "|---" * (len(shown) + 1) + "|",
        "| median | " + " | ".join(f"{percent(np.median(row))}%" for row in cells) + " |",
        "| best | " + " | ".join(f"{percent(max(row))}%" for row in cells) + " |",
    ]


def _json(value: Any) -> list[str]:
    return ["```json", json.dumps(value, indent=1), "```", ""]
