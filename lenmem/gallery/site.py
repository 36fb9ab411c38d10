"""Writes the site: the page, and a data file for each network. It needs no server and loads nothing from elsewhere."""

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
from lenmem.tasks.base import occurring
from lenmem.zoo import shelf

DEFAULT = tuple(shelf.PREFIX + name for name in shelf.GALLERY)
"""The networks that are shown by default. The page opens with the first and the second side by side."""
LARGEST = 300_000
"""Most bytes of a network's data file. Lengths that do not fit are omitted."""
PAGE = Path(__file__).parent / "page"


@dataclasses.dataclass(frozen=True)
class Shown:
    """A network of the gallery, and its measured accuracy by length."""

    name: str
    run: Run
    seed: int
    curve: dict[str, Any]
    """lengths, exact match and token accuracy of each seed."""
    task: str
    """Name of the task, for headings."""

    @property
    def slug(self) -> str:
        """The name of its file, and its part of addresses."""
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
        example: number of the example of each length, which is the same for all networks of a task.
        seed: the seed that is shown; None: of a network of the zoo the one with the longest reach, else the one with
            the highest exact match, averaged over its curve.
        modules: the user's classes.
        say: called with a line of text about everything that is omitted.

    Raises ValueError, before anything is computed, for a folder that is not empty and for an unknown name; also, before
    anything is written, for a network whose shortest example does not fit into 300 kB.
    """
    output = Path(output)
    if output.is_file():
        raise ValueError(f"{output} is a file; nothing was written, give another --output")
    if output.exists() and any(output.iterdir()):
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
    """A network and its curve, which is that of its record or of its run, or is measured."""
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
    curve = LengthCurve.merged(curves)
    values = {
        metric: np.nan_to_num(curve.values[metric])
        for metric in ("exact_match", "token_accuracy")
        if metric in curve.values
    }
    first = next(iter(values.values()), np.zeros((run.experiment.training.seeds, 1)))
    known = {metric: np.round(rows, 3).tolist() for metric, rows in values.items()}
    reach = [
        shelf.reach_of(dict(zip(curve.lengths.tolist(), of_seed.tolist(), strict=True)), curve.train_lengths[0])
        for of_seed in first
    ]
    ranks = list(zip(run.alive.tolist(), reach, first.sum(axis=1).tolist(), strict=True))
    best = run.preferred if run.preferred is not None else ranks.index(max(ranks))
    run.chosen_seed(seed)  # raises for a seed that does not exist or diverged
    known = {"lengths": curve.lengths.tolist(), **known}
    return Shown(name, run, best if seed is None else seed, known, task or tasks.name_of(run.experiment.task))


def data_of(shown: Shown, lengths: Sequence[int], example: int, say: Callable[[str], None]) -> tuple[dict, str]:
    """(the entry in the list of networks, the data file) of a network, with examples in ascending length."""
    about = about_of(shown)
    chosen = sorted(set(lengths)) or lengths_for(shown.run.experiment.task)
    parts, size = [], len(_json(about))
    for moment in _drawable(shown, chosen, example, say):
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


def _drawable(
    shown: Shown, lengths: Sequence[int], example: int, say: Callable[[str], None]
) -> Iterable[dict[str, Any]]:
    """The `scenes.moments` of a network, without the longest lengths if task or network refuse them."""
    while True:
        try:
            return list(scenes.moments(shown.run, lengths, example=example, seed=shown.seed))
        except ValueError as error:
            if len(lengths) < 2:
                raise
            say(f"{shown.name}: not shown at length {lengths[-1]}: {error}")
            lengths = lengths[:-1]


def lengths_for(task: tasks.Task) -> list[int]:
    """Default lengths of examples: within the training range, its end, and two and four times its end."""
    low, high = task.train_lengths
    wanted = {min(8, high), -(-high // 2), high, 2 * high, 4 * high}
    most = math.inf if task.endless else max(task.curve_lengths)
    return [length for length in occurring(task, wanted) if max(low, 1) <= length <= most]


def about_of(shown: Shown) -> dict[str, Any]:
    """The data of a network on the page that do not depend on an example."""
    experiment, curve = shown.run.experiment, shown.curve
    task, model = experiment.task, type(experiment.model).__name__
    name = models.name_of(experiment.model)
    if name is not None and not name.replace("_", "").startswith(model.lower()):  # the class is that of another model
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
        "reach": shelf.reach_of(dict(zip(curve["lengths"], best, strict=False)), task.train_lengths[0]),
        "seed": shown.seed,
        "seeds": experiment.training.seeds,
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(shown.run.params)),
        "curve": curve,
    }


def _json(value: Any) -> str:
    """JSON that is also valid JavaScript in a page: `<` and the two line separators are escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
