"""A paper's figure, redrawn from runs, files or records: `lenmem plot RUN ... --figure NAME`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem import drawing
from lenmem.evaluation.lengths import Evaluation, LengthCurve
from lenmem.evaluation.states import scored_by
from lenmem.evaluation.statistics import mean_over_lengths
from lenmem.experiment import Run
from lenmem.files import make_directory, read_json
from lenmem.runs import find_run, open_run, read_curve
from lenmem.tasks.base import draw, evenly_spaced
from lenmem.zoo import shelf

MOST_LENGTHS = 8
"""Most lengths of a figure over lengths, evenly spaced from the shortest training to the longest test length."""


def draw_figure(
    name: str,
    runs: Sequence[str],
    *,
    output: Path = Path("figures"),
    step: int | None = None,
    length: int | None = None,
    seed: int | None = None,
    example: int = 0,
    text: str | None = None,
    examples: int = 64,
    tsne: bool = False,
    modules: Iterable[type | ModuleType] = (),
) -> list[Path]:
    """Draws one of `plots.FIGURES` in the directory `output`; returns the files, `<name>.png` or one for each part.

    Args:
        name: the figure's name.
        runs: runs, exported files or names of the zoo; for figures of accuracy by length also records.
        output: directory of the pictures.
        step: for figures of one example: also draw the network at this step of the training.
        length: length of the examples; None: that of the paper, or a default.
        seed: the seed that is drawn; None: all seeds in figures with a point for each, otherwise the first that did not
            diverge (for the zoo: the best).
        example: number of the example.
        text: an input typed as for `predict`, instead of an example.
        examples: number of examples, in figures of many.
        tsne: draw maps of states by t-SNE.
        modules: the user's classes, or Python modules with them.

    Raises ValueError for an unknown figure or run, or a network without the traces of the figure.
    """
    from lenmem.evaluation.plots import Trial, figure

    chosen = figure(name)
    length = chosen.length if length is None else length
    if step is not None and chosen.of != "example":
        raise ValueError(f"{name} is not a figure of one example, so it cannot show step {step} of a training")
    names = _names(runs)

    def opened(step: int | None = None) -> Iterable[tuple[str, Run]]:
        return ((own, open_run(run, step, modules)) for own, run in zip(names, runs, strict=True))

    drawn: list[Any] = []
    if chosen.of == "curves":
        found = [curves_of(run) for run in runs]
        drawn = [curve for curves in found for curve in curves]
        missing = [run for run, curves in zip(runs, found, strict=True) if not curves]
        if missing:
            raise ValueError(f"{', '.join(missing)}: no curve; for a run, lenmem evaluate RUN --save measures it")
    elif chosen.of == "example":
        for at in (None,) if step is None else (step, None):
            for own, run in opened(at):
                asked = run.experiment.task.train_lengths[1] if length is None else length
                shown = own if step is None else "-".join(filter(None, (own * (len(runs) > 1), f"step-{run.step}")))
                batch, what = drawing.example_of(run, asked, example, text)
                what += "" if at is None else f", step {run.step}"
                drawn.append(Trial(shown, run.chosen_seed(seed), drawing.scene(run, batch, seed, what), asked))
    else:
        for source, (own, run) in zip(runs, opened(), strict=True):
            scores = _scores(source) if chosen.of == "trials" else None
            for asked in _lengths(run, chosen.of, length):
                batch = draw(run.experiment.task, jax.random.key(0), jnp.full(examples, asked), asked)
                for number in _seeds(run, seed, every=chosen.of == "trials"):
                    scene = drawing.scene(run, batch, number, f"length {asked}", tsne=tsne)
                    score = None if scores is None else float(scores[number])
                    drawn.append(Trial(own, number, scene, asked, score))
    with tempfile.TemporaryDirectory() as folder:  # all pictures appear, or none
        chosen.draw(drawn, lambda part: Path(folder, f"{'-'.join(filter(None, (name, part)))}.png"))
        make_directory(output)
        return [Path(shutil.copy(path, output / path.name)) for path in sorted(Path(folder).iterdir())]


def curves_of(name: str) -> list[LengthCurve]:
    """The saved curve of accuracy by length of a run, or of the record of a row or of a network of the zoo.

    A record may have a second curve, far beyond the training lengths; the two are then merged. Empty if the run or file
    has no curve. The label is the name of the run without that of its task.
    """
    path = find_run(name)
    if shelf.is_name(name):
        record = shelf.find(name).record
    elif path.is_dir():
        saved = read_curve(path)
        return [_labelled(saved, path.name, saved.task)] if saved else []
    elif path.with_suffix(".json").exists():
        record = read_json(path.with_suffix(".json"))
    elif path.exists():
        return []
    else:
        raise ValueError(f"there is no run, file or record {name}")
    if "curves" not in record:
        raise ValueError(f"{name} is not the record of a network: it has no curves")
    curve = LengthCurve.merged([LengthCurve.from_dict(curve) for curve in record["curves"]])
    task = record.get("where", {}).get("task", curve.task)
    return [_labelled(curve, record.get("row", name.removeprefix(shelf.PREFIX)), task)]


def _labelled(curve: LengthCurve, name: str, task: str) -> LengthCurve:
    curve.label, curve.task = name.removeprefix(f"{task}-"), task
    return curve


def _scores(name: str) -> np.ndarray | None:
    """float[S]: the mean score over the measured range within lengths 2 to 45 (Ofner & Kern 2021)."""
    curves = curves_of(name)
    if not curves:
        return None
    lengths = curves[0].lengths
    ends = {"first": max(2, int(lengths.min())), "last": min(45, int(lengths.max()))}
    return mean_over_lengths(lengths, curves[0].values[scored_by(curves[0].values)], **ends)


def _names(runs: Sequence[str]) -> list[str]:
    """Short names of runs: the last part of each, or the complete names if two of these are the same."""
    short = [Path(run.removeprefix(shelf.PREFIX)).name.removesuffix(".safetensors") for run in runs]
    return short if len(set(short)) == len(short) else [run.strip("/").replace("/", "-") for run in runs]


def _lengths(run: Run, of: str, length: int | None) -> list[int]:
    """The lengths of the examples."""
    task = run.experiment.task
    if of == "trials" or length is not None:
        return [task.train_lengths[1] if length is None else length]
    known = [n for n in Evaluation().lengths_for(task) if n >= task.train_lengths[0]]
    return evenly_spaced(known, MOST_LENGTHS)


def _seeds(run: Run, seed: int | None, *, every: bool) -> list[int]:
    """The seeds to draw: `seed`, or by default all living seeds if `every`, else one."""
    return np.flatnonzero(run.alive).tolist() if seed is None and every else [run.chosen_seed(seed)]
