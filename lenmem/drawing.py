"""Pictures of a run: its training, its accuracy by length, and what the network did on an example."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from lenmem import models, tasks
from lenmem.evaluation import pictures
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.traces import collect
from lenmem.experiment import Experiment, Run
from lenmem.runs import example_batch, measure, typed_batch
from lenmem.tasks.base import draw
from lenmem.training.loop import METRICS, read_metrics


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
    subject = subject_of(run.experiment)
    length = length or task.train_lengths[1]
    batch = example_batch(task, length, example) if text is None else typed_batch(task, text)
    traces = collect(run.experiment.bound_model, run.seed_params(seed), batch, required=only_trace)
    folder = run.directory if run.step == run.experiment.training.steps else run.directory / f"step-{run.step}"
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def target(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    if not only_trace and (run.directory / METRICS).exists():  # A file need not have them.
        plots.plot_training(read_metrics(run.directory), target("training.png"), title=subject)
    typed = f"{int(batch.input_mask.sum())} inputs typed"
    title = f"{subject}, {f'length {length}' if text is None else typed}"
    names = task.input_names, task.answer_names
    pictures.draw(pictures.Scene(task.spec, batch, traces, *names, title), target, everything=only_trace)
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
    """Maps of a controller's states by phase, and histograms of its modes of reading and writing if it has any.

    Args:
        run: what is drawn.
        length: of the examples; None: that of the task's split `selection`, where there is one, else the longest of
            training.
        seed: whose network; None: that of the first seed that lives.
        examples: how many.
        tsne: maps by t-SNE, which needs scikit-learn, instead of principal components.
    """
    from lenmem.evaluation import plots, states

    task = run.experiment.task
    length = length or task.splits.get("selection", task.train_lengths)[1]
    batch = draw(task, jax.random.key(0), jnp.full(examples, length), length)
    traces = collect(run.experiment.bound_model, run.seed_params(seed), batch)
    make_map = states.tsne_map if tsne else states.pca_map
    maps = {phase: make_map(traces, phase) for phase in states.PHASES}
    run.directory.mkdir(parents=True, exist_ok=True)
    written = [run.directory / "states.png"]
    bend = states.curvature(traces).mean
    plots.plot_states(
        maps,
        written[0],
        symbols=states.symbols_of(traces, batch),
        title=f"{subject_of(run.experiment)}, length {length}: curvature {bend:.3f}",
    )
    if {"read_modes", "allocation_gate"} <= set(traces):
        written.append(run.directory / "modes.png")
        plots.plot_modes(traces, written[1], title=f"{subject_of(run.experiment)}, length {length}")
    return written


def _own_curve(run: Run, folder: Path) -> LengthCurve:
    """The run's curve as it was measured; that of a step from the middle is measured now."""
    saved = folder / "curve.json"
    if folder != run.directory or not saved.exists():
        return measure(run)
    return LengthCurve.from_dict(json.loads(saved.read_text()))
