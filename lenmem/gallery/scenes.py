"""A network at work on an example: its steps, its answer, and the views of its traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from lenmem.drawing import scene_of
from lenmem.evaluation.traces import observed
from lenmem.experiment import Run
from lenmem.gallery.pack import Packer
from lenmem.runs import answered, example_batches, slots_right

if TYPE_CHECKING:
    from lenmem.evaluation.plots.scene import Scene


@dataclasses.dataclass(frozen=True)
class Clock:
    """The steps of a network on one example, which are those of the slider."""

    names: list[str]
    """A description of each step."""
    reads: list[int]
    """The input that is read at each step; -1: none."""
    answers: list[int]
    """The slot that is answered at each step; -1: none."""
    static: int
    """The size of the step axis in traces, including padding."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.names)


def clock_of(scene: Scene) -> Clock:
    """The steps of a network: those of its recurrence, its layers (routers), its columns (tapes), or its answers."""
    count, slots = len(scene.inputs), int(np.sum(scene.batch.target_mask[0]))
    columns = scene.batch.input_mask.shape[1] + scene.batch.target_mask.shape[1]
    if scene.recurrent:
        return _recurrent(scene, count, slots)
    attention = scene.traces.get("attention")
    if attention is not None and attention.ndim == 5:
        depth = attention.shape[1]
        names = [f"layer {step + 1}" for step in range(depth)]
        return Clock(names, [-1] * depth, [-1] * (depth - 1) + [0], depth)
    if any(name.endswith("read_position") for name in scene.traces):
        aligned = scene.spec.alignment == "aligned"
        reads = list(range(count)) + ([] if aligned else [-1] * slots)
        answers = list(range(count)) if aligned else [-1] * count + list(range(slots))
        static = scene.batch.input_mask.shape[1] if aligned else columns
        return Clock(_names(scene, reads, answers), reads, answers, static)
    answers = list(range(slots))
    return Clock(_names(scene, [-1] * slots, answers), [-1] * slots, answers, scene.batch.target_mask.shape[1])


def _recurrent(scene: Scene, count: int, slots: int) -> Clock:
    """The steps of a recurrence: inputs are read one by one, after the begin symbol if there is one; the last steps
    answer."""
    valid = scene.traces["valid"][0]
    steps, static = int(valid.sum()), len(valid)
    if scene.spec.alignment == "aligned":
        same = list(range(steps))
        return Clock(_names(scene, same, same), same, same, static)
    # The last steps of reading are the inputs; one before them is the begin symbol. Larger ids are those of a delimiter
    # and of steps without an input.
    start = int(np.sum(scene.traces["token"][0][:steps] <= scene.spec.vocabulary)) - count
    reads = [step - start if start <= step < start + count else -1 for step in range(steps)]
    answers = [step - (steps - slots) if step >= steps - slots else -1 for step in range(steps)]
    return Clock(_names(scene, reads, answers), reads, answers, static)


def _names(scene: Scene, reads: list[int], answers: list[int]) -> list[str]:
    """`reads 47`, `answer 3`, or both; `begins` and `waits` for other steps."""
    inputs = scene.inputs
    names = []
    for step, (read, answer) in enumerate(zip(reads, answers, strict=True)):
        said = [f"reads {inputs[read]}"] if read >= 0 else []
        said += [f"answer {answer + 1}"] if answer >= 0 else []
        names.append(", ".join(said) or ("begins" if step == 0 else "waits"))
    return names


def moments(run: Run, lengths: Sequence[int], *, example: int = 0, seed: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the data for the page about an example of each length: input, right and given answer, steps, views.

    All examples are padded to the longest length, so that one program runs them all.
    """
    from lenmem.gallery.views import views_of

    experiment = run.experiment
    task = experiment.task
    batches = list(example_batches(task, lengths, example))
    marks = jax.jit(lambda batch, outputs: slots_right(task, batch, outputs))
    at_work = observed(experiment.bound_model, run.seed_params(seed), batches)
    for length, batch, (outputs, traces) in zip(lengths, batches, at_work, strict=True):
        scene = scene_of(experiment, batch, traces)
        clock = clock_of(scene)
        packer = Packer()
        views = [view.plain(packer) for view in views_of(scene, clock.steps, clock.static)]
        example_of = answered(task, batch, outputs, np.asarray(marks(batch, outputs)))
        yield {
            "length": length,
            "inputs": example_of.inputs,
            "right": example_of.right,
            "given": example_of.given,
            "hits": "".join(str(int(hit)) for hit in example_of.hits),
            "steps": clock.names,
            "reads": clock.reads,
            "answers": clock.answers,
            "views": views,
            "data": packer.text(),
        }
