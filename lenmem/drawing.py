"""Pictures of a run: its training, its accuracy by length, and what the network did on an example."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from lenmem import models, tasks
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.traces import collect
from lenmem.experiment import Experiment, Run
from lenmem.runs import example_batch, measure, typed_batch
from lenmem.tasks.base import draw
from lenmem.training.run_directory import METRICS, read_metrics
from lenmem.types import Batch

if TYPE_CHECKING:
    from lenmem.evaluation.plots import Scene


def draw_run(
    run: Run,
    *,
    length: int | None = None,
    seed: int | None = None,
    example: int = 0,
    text: str | None = None,
    only_trace: bool = False,
) -> list[Path]:
    """Pictures of a run: training, what the network did on one example (where it sows traces), and its curve.

    They go to the run's folder, those of a step from the middle of training to `step-<n>/`.

    Args:
        run: what is drawn.
        length: length of the example; None: the longest of training.
        seed: whose network; None: that of the first seed that lives.
        example: which example of that length.
        text: the example itself, typed as for `predict`.
        only_trace: not training and curve, but of what the network did everything: each head's attention by itself.

    With `only_trace` a network that sows no traces is a ValueError.
    """
    from lenmem.evaluation import plots

    task = run.experiment.task
    length = length or task.train_lengths[1]
    batch = example_batch(task, length, example) if text is None else typed_batch(task, text)
    what = f"length {length}" if text is None else f"{int(batch.input_mask.sum())} inputs typed"
    scene = _scene(run, batch, seed, what, required=only_trace, everything=only_trace)
    folder, written = _folder(run), []
    target = _target(folder, written)
    if not only_trace and (run.directory / METRICS).exists():  # A file need not have them.
        plots.plot_training(read_metrics(run.directory), target("training.png"), title=subject_of(run.experiment))
    plots.draw(scene, target)
    if not only_trace:
        plots.plot_curves([_own_curve(run, folder)], target("curve.png"))
    return written


def subject_of(experiment: Experiment) -> str:
    """`<model> on <task>`, by the names they go by."""
    model = models.name_of(experiment.model) or type(experiment.model).__name__
    return f"{model} on {tasks.name_of(experiment.task)}"


def draw_states(
    run: Run, *, length: int | None = None, seed: int | None = None, examples: int = 64, tsne: bool = False
) -> list[Path]:
    """What a network did on many examples: maps of its controller's states, and whatever else its traces show.

    ValueError where nothing that it sows is drawn so.

    Args:
        run: what is drawn.
        length: of the examples; None: that of the task's split `selection`, where there is one, else the longest of
            training.
        seed: whose network; None: that of the first seed that lives.
        examples: how many.
        tsne: maps by t-SNE, which needs scikit-learn, instead of principal components.
    """
    from lenmem.evaluation import plots

    task = run.experiment.task
    length = length or task.splits.get("selection", task.train_lengths)[1]
    batch = draw(task, jax.random.key(0), jnp.full(examples, length), length)
    written: list[Path] = []
    scene = _scene(run, batch, seed, f"length {length}", tsne=tsne)
    plots.draw_examples(scene, _target(_folder(run), written))
    return written


def _scene(run: Run, batch: Batch, seed: int | None, what: str, *, required: bool = True, **options: bool) -> Scene:
    """What the network of a seed did on a batch, for pictures; `options` are fields of `Scene`."""
    from lenmem.evaluation.plots import Scene

    task = run.experiment.task
    traces = collect(run.experiment.bound_model, run.seed_params(seed), batch, required=required)
    title = f"{subject_of(run.experiment)}, {what}"
    return Scene(task.spec, batch, traces, task.input_names, task.answer_names, title, **options)


def _folder(run: Run) -> Path:
    """Where pictures of a run go: to its directory, or for a step from the middle of training to a folder in it."""
    return run.directory if run.step == run.experiment.training.steps else run.directory / f"step-{run.step}"


def _target(folder: Path, written: list[Path]) -> Callable[[str], Path]:
    """A function from the name of a picture to its path, which is noted in `written`."""
    folder.mkdir(parents=True, exist_ok=True)

    def target(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    return target


def _own_curve(run: Run, folder: Path) -> LengthCurve:
    """The run's curve as it was measured; that of a step from the middle is measured now."""
    saved = folder / "curve.json"
    if folder != run.directory or not saved.exists():
        return measure(run)
    return LengthCurve.from_dict(json.loads(saved.read_text()))
