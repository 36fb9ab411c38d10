"""Writes the site: the page, and a file of data for each network, without a server or an address outside of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from lenmem import models, runs, tasks
from lenmem.evaluation.lengths import LengthCurve
from lenmem.experiment import Run
from lenmem.gallery import scenes
from lenmem.serialize import to_plain
from lenmem.zoo import shelf

DEFAULT = tuple(shelf.PREFIX + name for name in shelf.GALLERY)
"""What is shown if nothing is named. The page opens with the first beside the second."""
LARGEST = 300_000
"""Most bytes of a network's file; lengths beyond that are left out."""
PAGE = Path(__file__).parent / "page"


@dataclasses.dataclass(frozen=True)
class Shown:
    """A network in the gallery, and what is known of its accuracy by length."""

    name: str
    run: Run
    seed: int
    curve: dict[str, Any]
    """lengths, exact match and token accuracy of each seed."""
    task: str
    """Name of the task, for headings."""

    @property
    def slug(self) -> str:
        """The name of its file and its place in addresses."""
        return re.sub(r"[^\w-]+", ".", self.name.removeprefix(shelf.PREFIX)).strip(".")


def write(
    output: Path,
    names: Sequence[str] = (),
    *,
    lengths: Sequence[int] = (),
    example: int = 0,
    seed: int | None = None,
    modules: Iterable[type | ModuleType] = (),
    say: Callable[[str], None] = print,
) -> Path:
    """Writes a site that shows networks at work to an empty or new folder; returns its first page.

    Args:
        output: the folder.
        names: runs, files and names of the zoo; none: `DEFAULT`.
        lengths: lengths of the examples; none: up to four times the longest training length.
        example: number of the example of each length. Networks of one task get the same.
        seed: seed whose network is shown; None: the one that reaches furthest.
        modules: the user's own classes.
        say: told what was left out.

    Raises ValueError, before anything is computed, for a folder that is not empty and an unknown name; and, with
    nothing written, for a network whose shortest example does not fit into 300 kB.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} is not empty; nothing was written, give another --output")
    shown = [_shown(name, seed, list(modules)) for name in names or DEFAULT]
    if len({one.slug for one in shown}) < len(shown):
        raise ValueError(f"each network needs a name of its own, got {', '.join(one.name for one in shown)}")
    files = {one.slug: data_of(one, lengths, example, say) for one in shown}
    shutil.copytree(PAGE, output, dirs_exist_ok=True)
    (output / "networks").mkdir()
    for slug, (_, text) in files.items():
        (output / "networks" / f"{slug}.js").write_text(text)
    index = [about for about, _ in files.values()]
    (output / "networks" / "index.js").write_text(f"gallery.list({_json(index)});\n")
    return output / "index.html"


def _shown(name: str, seed: int | None, modules: list[Any]) -> Shown:
    """A network and its curve: that of its record, of its run, or a newly measured one."""
    task = ""
    if shelf.is_name(name):
        entry = shelf.find(name)
        run = runs.open_run(name, modules=modules)
        task = entry.short.partition("/")[2]
        curves = [LengthCurve.from_dict({"label": "", **curve}) for curve in entry.record["curves"]]
        name = entry.name
    else:
        run = runs.open_run(name, modules=modules)
        curves = [runs.own_curve(run)]
    lengths = np.concatenate([curve.lengths for curve in curves])
    order = np.argsort(lengths)
    values = {
        metric: np.nan_to_num(np.concatenate([curve.values[metric] for curve in curves], axis=1))[:, order]
        for metric in ("exact_match", "token_accuracy")
        if all(metric in curve.values for curve in curves)
    }
    first = next(iter(values.values()), np.zeros((run.experiment.training.seeds, len(lengths))))
    known = {metric: np.round(rows, 3).tolist() for metric, rows in values.items()}
    best = run.preferred if run.preferred is not None else int(np.argmax(first.sum(axis=1) + run.alive))
    run.seed_params(seed)  # raises for a seed that there is not
    curve = {"lengths": lengths[order].tolist(), **known}
    return Shown(name, run, best if seed is None else seed, curve, task or tasks.name_of(run.experiment.task))


def data_of(shown: Shown, lengths: Sequence[int], example: int, say: Callable[[str], None]) -> tuple[dict, str]:
    """(what the list of networks says, the file of data) of a network, its examples in ascending length."""
    about = about_of(shown)
    chosen = sorted(set(lengths)) or lengths_for(shown.run.experiment.task)
    parts, size = [], len(_json(about))
    for moment in _drawable(shown, chosen, example):
        part = _json(moment)
        size += len(part.encode()) + 1
        if size > LARGEST:
            if not parts:
                raise ValueError(
                    f"{shown.name} is too large for the page: {size / 1000:.0f} kB at length {moment['length']}, "
                    f"at most {LARGEST / 1000:.0f} kB; give shorter --lengths"
                )
            say(f"{shown.name}: shown up to length {chosen[len(parts) - 1]}, since longer ones do not fit on the page")
            break
        if not moment["views"] and not parts:
            say(f"{shown.name} sows no traces: its answers are shown, without a memory")
        parts.append(part)
    moments = ",\n".join(parts)
    return about, f"gallery.add({_json(about)}, [\n{moments}\n]);\n"


def _drawable(shown: Shown, lengths: Sequence[int], example: int) -> Iterable[dict[str, Any]]:
    """The moments of a network; without the longest lengths if the task has none so long."""
    while True:
        try:
            return list(scenes.moments(shown.run, lengths, example=example, seed=shown.seed))
        except ValueError:
            if len(lengths) < 2:
                raise
            lengths = lengths[:-1]


def lengths_for(task: tasks.Task) -> list[int]:
    """Lengths of the examples: inside training, its end, and two and four times as long."""
    low, high = task.train_lengths
    wanted = {min(8, high), -(-high // 2), high, 2 * high, 4 * high}
    most = math.inf if task.endless else max(task.curve_lengths)
    return sorted(length for length in wanted if max(low, 1) <= length <= most)


def about_of(shown: Shown) -> dict[str, Any]:
    """The text of the page about a network, beside its pictures."""
    experiment, curve = shown.run.experiment, shown.curve
    task, model = experiment.task, type(experiment.model).__name__
    name = models.name_of(experiment.model)
    if name is not None and not name.replace("_", "").startswith(model.lower()):  # a baseline made of the same layers
        model = name
    what = next((text for names, (text, _) in models.ABOUT.items() if name in names), "")
    exact = curve.get("exact_match", [])
    best = exact[shown.seed] if exact else []
    return {
        "name": shown.name,
        "slug": shown.slug,
        "title": f"{model} on {shown.task}",
        "model": model,
        # Some descriptions continue the previous one.
        "what": "" if what.startswith("the same") else what[:1].upper() + what[1:].replace("`", ""),
        "question": hashlib.sha256(_json(to_plain(task)).encode()).hexdigest()[:12],
        "unit": task.unit,
        "train": list(task.train_lengths),
        "reach": max((n for n, x in zip(curve["lengths"], best, strict=False) if x >= shelf.MASTERED), default=0),
        "seed": shown.seed,
        "seeds": experiment.training.seeds,
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(shown.run.params)),
        "curve": curve,
    }


def _json(value: Any) -> str:
    """JSON that is also JavaScript inside of any page: `<` and the two line separators are written as escapes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
