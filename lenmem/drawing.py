"""Pictures of a run: its training, its accuracy by length, and the traces of the network on an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from lenmem import models, tasks
from lenmem.evaluation.traces import collect
from lenmem.experiment import Experiment, Run
from lenmem.files import make_directory
from lenmem.nn.interfaces import computing, with_computation
from lenmem.runs import example_batch, own_curve, typed_batch
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
    """Draws a run: its training, the traces of the network on one example (if it sows any), and its curve.

    Pictures are written to the run's directory, or, for a step before the end of training, to `step-<n>/` in it.

    Args:
        run: the run.
        length: length of the example; None: the longest training length.
        seed: seed whose network is used; None: the first seed that did not diverge.
        example: number of the example of that length.
        text: an input typed as for `predict`, instead of an example.
        only_trace: draw only the traces, but all of them, including the attention of each head.

    With `only_trace`, raises ValueError for a network without a trace that has a picture.
    """
    from lenmem.evaluation import plots

    task = run.experiment.task
    length = task.train_lengths[1] if length is None else length
    batch, what = example_of(run, length, example, text)
    shown = scene(run, batch, seed, what, required=only_trace, everything=only_trace)
    folder, written = _folder(run), []
    target = _target(folder, written)
    if not only_trace and (run.directory / METRICS).exists():  # an exported file may have no metrics
        plots.plot_training(read_metrics(run.directory), target("training.png"), title=subject_of(run.experiment))
    plots.draw(shown, target)
    if only_trace and not written:
        raise ValueError(f"this network has no traces to draw; it has {', '.join(sorted(shown.traces)) or 'none'}")
    if not only_trace:
        plots.plot_curves([own_curve(run)], target("curve.png"))
    return written


def example_of(run: Run, length: int, example: int, text: str | None) -> tuple[Batch, str]:
    """(an example of the run's task, or with `text` the input typed, and a description of it)."""
    if text is None:
        return example_batch(run.experiment.task, length, example), f"length {length}"
    batch = typed_batch(run.experiment.task, text)
    return batch, f"{int(batch.input_mask.sum())} inputs typed"


def subject_of(experiment: Experiment) -> str:
    """`<model> on <task>`, with their names."""
    model = models.name_of(experiment.model) or type(experiment.model).__name__
    return f"{model} on {tasks.name_of(experiment.task)}"


def draw_states(
    run: Run, *, length: int | None = None, seed: int | None = None, examples: int = 64, tsne: bool = False
) -> list[Path]:
    """Draws the traces of a network on many examples: maps of the controller's states, and other pictures.

    Raises ValueError if no trace has such a picture.

    Args:
        run: the run.
        length: length of the examples; None: the longest of the task's split `selection` if there is one, else the
            longest training length.
        seed: seed whose network is used; None: the first seed that did not diverge.
        examples: number of examples.
        tsne: draw maps by t-SNE, which needs scikit-learn, instead of principal components.
    """
    from lenmem.evaluation import plots

    task = run.experiment.task
    length = task.splits.get("selection", task.train_lengths)[1] if length is None else length
    batch = draw(task, jax.random.key(0), jnp.full(examples, length), length)
    written: list[Path] = []
    shown = scene(run, batch, seed, f"length {length}", tsne=tsne)
    plots.draw_examples(shown, _target(_folder(run), written))
    return written


def scene(run: Run, batch: Batch, seed: int | None, what: str, *, required: bool = True, **options: bool) -> Scene:
    """The traces of one seed's network on a batch, for pictures; `options` are fields of `Scene`."""
    traces = collect(run.experiment.bound_model, run.seed_params(seed), batch, required=required)
    return scene_of(run.experiment, batch, traces, what, **options)


def scene_of(
    experiment: Experiment, batch: Batch, traces: Mapping[str, np.ndarray], what: str = "", **options: bool
) -> Scene:
    """Traces of a network on a batch, with the names that pictures need; `options` are fields of `Scene`."""
    from lenmem.evaluation.plots import Scene

    task = experiment.task
    title = f"{subject_of(experiment)}, {what}"
    spec, names = task.spec, task.input_names
    if steps := getattr(experiment.model, "computation_steps", 0):
        inputs, mask = computing(batch.inputs, batch.input_mask, spec, steps)
        batch = batch._replace(inputs=inputs, input_mask=mask)
        names = (*names, "·") if spec.takes_tokens else names
        spec = with_computation(spec, steps)
    return Scene(spec, batch, traces, names, task.answer_names, title, **options)


def _folder(run: Run) -> Path:
    """The directory for pictures of a run: that of the run, or a subdirectory for a step before the end of training."""
    return run.directory if run.step == run.experiment.training.steps else run.directory / f"step-{run.step}"


def _target(folder: Path, written: list[Path]) -> Callable[[str], Path]:
    """A function from the name of a picture to its path; it appends the path to `written`."""
    make_directory(folder)

    def target(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    return target
