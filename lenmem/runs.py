"""The verbs of the command line as functions, for use in a notebook: measure a run, query it, compare runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import configs, models, tasks
from lenmem.evaluation.lengths import LengthCurve, curve_of
from lenmem.evaluation.metrics import Apply, ApplyModel, score
from lenmem.evaluation.sets import set_scores
from lenmem.experiment import SUFFIX, Experiment, Run, load
from lenmem.serialize import to_plain, write_json, write_whole
from lenmem.tasks.base import Task, draw
from lenmem.training import checkpoint, processes
from lenmem.training.configuration import Training
from lenmem.training.loop import Result, train
from lenmem.training.optimizer import Optimizer
from lenmem.training.resume import same_experiment
from lenmem.training.run_directory import CHECKPOINTS, holds_run
from lenmem.types import Batch, PyTree
from lenmem.zoo import shelf

Report = Callable[[dict[str, Any]], None]


def numbered(directory: Path) -> Iterator[Path]:
    """`directory`, then the same with -2, -3, ... appended."""
    yield directory
    for number in itertools.count(2):
        yield directory.with_name(f"{directory.name}-{number}")


def fresh_directory(directory: Path) -> Path:
    """`directory`, or with -2, -3, ... appended if it holds a run already. Nothing is overwritten."""
    return next(candidate for candidate in numbered(directory) if not holds_run(candidate))


def without_dead(params: PyTree, alive: np.ndarray) -> PyTree:
    """The parameters [S, ...] with NaN for diverged seeds (`alive` bool[S] False), so they count as unmeasured."""
    return jax.tree.map(lambda x: np.where(alive.reshape(-1, *[1] * (x.ndim - 1)), x, np.nan), params)


def measure(
    trained: Run | Result | Experiment,
    params: PyTree = None,
    *,
    label: str = "",
    alive: np.ndarray | None = None,
    apply: Apply | None = None,
) -> LengthCurve:
    """The length curve of an experiment for trained parameters: `measure(result)`, `measure(run)`, or
    `measure(experiment, params)`. Diverged seeds (`alive` False) are NaN.

    `apply` is the network, if it is not the experiment's model.
    """
    if isinstance(trained, Experiment):
        experiment = trained
        if params is None:
            raise ValueError("to measure an experiment, pass its parameters: measure(experiment, params)")
    else:
        experiment = trained.experiment
        params, alive = (trained.params if params is None else params), trained.alive if alive is None else alive
    if alive is not None:
        params = without_dead(params, alive)
    evaluation = experiment.evaluation
    return curve_of(
        apply or ApplyModel(experiment.bound_model),
        params,
        experiment.task,
        evaluation.lengths_for(experiment.task),
        evaluation.samples,
        jax.random.key(evaluation.seed),
        label=label or type(experiment.model).__name__,
        batch_size=evaluation.batch_size,
        smallest_capacity=evaluation.smallest_capacity,
    )


def whole_scores(experiment: Experiment, params: PyTree, alive: np.ndarray) -> list[str]:
    """The scores of the whole test, and its perplexity, of every seed, in words; nothing for a task without these."""
    task, evaluation = experiment.task, experiment.evaluation
    if not (task.forced or task.scores_sets):
        return []
    params, size, model = without_dead(params, alive), evaluation.batch_size, experiment.bound_model
    samples = min(evaluation.test_examples, task.examples_of("test") or evaluation.test_examples)
    lines = []
    if task.forced:
        perplexity = score(model, params, task, samples, size)["perplexity"]
        told = f"{samples} answers, per {task.unit.removesuffix('s')}"
        lines.append(f"perplexity on the test: {_two_places(perplexity)} ({told})")
    try:
        found = set_scores(model, params, task, samples, batch_size=size) if task.scores_sets else {}
    except ValueError as missing:
        return [*lines, str(missing)]
    for name, of_seeds in found.items():
        lines.append(f"{name.upper()} on the test: {_two_places(100 * of_seeds.values)} ({of_seeds.told})")
    return lines


def _two_places(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def save_curves(directory: Path, curves: Sequence[LengthCurve]) -> None:
    """Writes `curve.png` with all curves, and `curve.csv` and `curve.json` of the first.

    `curve.json` is written last and atomically: a run that has it is finished.
    """
    from lenmem.evaluation.plots import plot_curves

    directory.mkdir(parents=True, exist_ok=True)
    curves[0].save_csv(directory / "curve.csv")
    plot_curves(curves, directory / "curve.png")
    write_whole(directory / "curve.json", (json.dumps(curves[0].to_dict()) + "\n").encode())


def train_and_measure(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool = False,
    report: Report | None = None,
    tensorboard: bool = False,
    label: str = "",
) -> tuple[Result, LengthCurve | None]:
    """Trains into `directory`, and measures unless the run was interrupted."""
    result = train(experiment, directory=directory, resume=resume, report=report, tensorboard=tensorboard)
    if result.interrupted:
        return result, None
    curve = measure(result, label=label)
    if processes.is_first():
        save_curves(directory, [curve])
    return result, curve


def finished(experiment: Experiment, directory: Path) -> bool:
    """Whether `directory` holds a finished run of this exact experiment."""
    if checkpoint.latest(directory / CHECKPOINTS) != experiment.training.steps:
        return False
    return (directory / "curve.json").exists() and _same(experiment, directory)


def compare(
    experiments: Mapping[tuple[str, str], Experiment | str],
    directory: Callable[[str, str], Path],
    *,
    report: Callable[[str, str, Experiment], Report | None] = lambda task, model, experiment: None,
) -> dict[tuple[str, str], LengthCurve | str]:
    """Trains and measures every (task, model) cell. A cell that is a reason, not an experiment, is returned unchanged.

    The run of a cell is in `directory(task, model)`, possibly with -2, -3, ... appended. A finished run of the same
    experiment is not trained again; an unfinished one is resumed.
    """
    cells: dict[tuple[str, str], LengthCurve | str] = {}
    for (task, model), experiment in experiments.items():
        if isinstance(experiment, str):
            cells[task, model] = experiment
            continue
        where = directory(task, model)
        same = [place for place in itertools.takewhile(holds_run, numbered(where)) if _same(experiment, place)]
        done = next((place for place in same if finished(experiment, place)), None)
        if done is not None:
            curve = LengthCurve.from_dict(json.loads((done / "curve.json").read_text()))
            cells[task, model] = dataclasses.replace(curve, label=model)
            continue
        resume = bool(same)
        where = same[0] if same else fresh_directory(where)
        _, curve = train_and_measure(
            experiment, where, resume=resume, report=report(task, model, experiment), label=model
        )
        if curve is None:
            raise KeyboardInterrupt(f"stopped while training {model} on {task}; the same command continues")
        cells[task, model] = curve
    return cells


def save_comparison(
    path: Path,
    command: str,
    environment: Mapping[str, Any],
    experiments: Mapping[tuple[str, str], Experiment | str],
    cells: Mapping[tuple[str, str], LengthCurve | str],
) -> None:
    """Writes the results of `compare` as JSON: every curve with its whole experiment, the command, the machine."""
    networks = [
        {"task": task, "model": model, "experiment": to_plain(experiments[task, model]), "curve": cell.to_dict()}
        for (task, model), cell in cells.items()
        if isinstance(cell, LengthCurve)
    ]
    write_json(path, {"command": command, "environment": environment, "networks": networks})


def comparison_directory(directory: Path, command: str) -> Path:
    """The output directory of `lenmem compare`: `directory`/comparison, or with -2, -3, ... appended.

    It is never the directory of another command, nor of a run.
    """

    def free(candidate: Path) -> bool:
        if holds_run(candidate):
            return False
        saved = candidate / "comparison.json"
        return not saved.exists() or json.loads(saved.read_text()).get("command") == command

    return next(filter(free, numbered(directory / "comparison")))


def _same(experiment: Experiment, directory: Path) -> bool:
    """Whether `directory` holds a checkpoint of this exact experiment."""
    saved = directory / CHECKPOINTS
    if checkpoint.latest(saved) is None:
        return False
    return same_experiment(checkpoint.read_manifest(saved)["experiment"], experiment)


def cross(
    task_names: Sequence[str],
    model_names: Sequence[str],
    training: Training,
    base: Experiment | None = None,
    optimizers: Mapping[str, Optimizer] = MappingProxyType({}),
    named: Mapping[str, nn.Module] = MappingProxyType({}),
    made: Task | None = None,
) -> dict[tuple[str, str], Experiment | str]:
    """The cells of a cross table: an experiment, or the reason why the pair cannot work.

    With `base`, its task (under the only name in `task_names`) and evaluation are used, and its model under that
    model's own name. `optimizers` maps model names to their optimisers, since no learning rate suits all models.
    `named` maps names to models and takes precedence over other models with these names. `made` is a task that replaces
    the one in `task_names`.
    """
    cells: dict[tuple[str, str], Experiment | str] = {}
    for task_name in task_names:
        task: Task = made or (base.task if base else task_named(task_name))
        for model_name in model_names:
            own = base is not None and models.name_of(base.model) == model_name
            if model_name in named:
                model = named[model_name]
            else:
                model = base.model if base is not None and own else models.make(model_name)
            recipe = training
            if model_name in optimizers and not own:
                recipe = dataclasses.replace(training, optimizer=optimizers[model_name])
            try:
                cells[task_name, model_name] = (
                    Experiment(task, model, recipe, base.evaluation) if base else Experiment(task, model, recipe)
                )
            except ValueError:
                reason = models.supports(model, task.spec)
                if reason is None:
                    raise
                cells[task_name, model_name] = reason
    return cells


def task_named(name: str) -> Task:
    """The task with that name, or the task of a named configuration."""
    return configs.load_config(name).task if name in configs.names() else tasks.make(name)


def example_batch(task: Task, length: int, seed: int = 0) -> Batch:
    """One example of a length, as a batch of one."""
    return next(example_batches(task, [length], seed))


def example_batches(task: Task, lengths: Sequence[int], seed: int = 0) -> Iterator[Batch]:
    """The examples of `example_batch`, all padded to the longest of the lengths."""
    if not lengths or min(lengths) < 1:
        raise ValueError(f"length must be at least 1, got {min(lengths, default='none')}")
    longest = max(lengths)
    # Compiled: some tasks take many small steps for each symbol.
    program = jax.jit(lambda length: draw(task, jax.random.key(seed), length, longest))
    for length in lengths:
        yield program(jnp.array([length]))


def predict(run: Run, text: str, *, seed: int | None = None, answers: int | None = None) -> list[str]:
    """The answer of one seed's network to an input typed as text (see `typed_batch`), up to the end symbol.

    A task whose inputs are texts has its own form (`Task.reply`).
    """
    task = run.experiment.task
    reply = task.reply(text, lambda batch: run.apply(batch.inputs, batch.input_mask, batch.target_mask, seed=seed))
    if reply is not None:
        return reply
    batch = typed_batch(task, text, answers)
    outputs = np.asarray(run.apply(batch.inputs, batch.input_mask, batch.target_mask, seed=seed)[0])
    if task.spec.outputs == "tokens" and task.spec.end_id is not None:
        ends = np.flatnonzero(np.argmax(outputs, axis=-1) == task.spec.end_id)
        outputs = outputs[: ends[0]] if ends.size else outputs
    return _names_of_answers(task, outputs)


@dataclasses.dataclass(frozen=True)
class AnsweredExample:
    """A network's answer to an example of its task, slot by slot."""

    inputs: list[str]
    right: list[str]
    given: list[str]
    hits: list[bool]
    """Whether the task counts the slot as right; slots that are not scored count as right."""


def answer_example(run: Run, length: int, *, seed: int | None = None, example: int = 0) -> AnsweredExample:
    """One seed's answer to number `example` of the task's examples of a length, beside the right answer."""
    task = run.experiment.task
    batch = example_batch(task, length, example)
    outputs = run.apply(batch.inputs, batch.input_mask, batch.target_mask, seed=seed)
    return answered(task, batch, np.asarray(outputs), np.asarray(slots_right(task, batch, outputs)))


def slots_right(task: Task, batch: Batch, outputs: jax.Array) -> jax.Array:
    """bool[M]: whether the task counts each slot of a batch of one as right; slots that are not scored are right."""

    def alone(slot: jax.Array) -> jax.Array:
        """Whether a slot is right if it alone is scored."""
        scored = batch.score_mask & (jnp.arange(batch.score_mask.shape[1]) == slot)
        scores = task.metrics(outputs, batch._replace(score_mask=scored))
        return scores.get("exact_match", next(iter(scores.values())))[0] == 1

    return jax.lax.map(alone, jnp.arange(batch.score_mask.shape[1])) | ~batch.score_mask[0]


def answered(task: Task, batch: Batch, outputs: np.ndarray, hits: np.ndarray) -> AnsweredExample:
    """The example in a batch of one as text, with the answer in outputs [1, M, K] and its marks bool[M]."""
    there = np.flatnonzero(batch.target_mask[0])
    targets = np.asarray(batch.targets[0])[there]
    symbols = np.asarray(batch.inputs[0])[np.asarray(batch.input_mask[0])]
    inputs = [task.input_names[i] for i in symbols] if task.spec.takes_tokens else _values(symbols)
    right = [task.answer_names[i] for i in targets] if task.spec.outputs == "tokens" else _written(task, targets)
    given = _names_of_answers(task, outputs[0][there])
    return AnsweredExample(inputs, right, given, hits[there].tolist())


def _names_of_answers(task: Task, outputs: np.ndarray) -> list[str]:
    """The outputs [M, K] of a network as text, slot by slot."""
    if task.spec.outputs == "tokens":
        return [task.answer_names[i] for i in np.argmax(outputs, axis=-1)]
    return _written(task, outputs > 0 if task.spec.outputs == "multi_hot" else outputs)


def _written(task: Task, slots: np.ndarray) -> list[str]:
    """Bits or values [M, K] of answer slots as text."""
    if task.spec.outputs == "multi_hot":
        return ["".join(str(int(bit)) for bit in slot) for slot in slots]
    return _values(slots)


def _values(slots: np.ndarray) -> list[str]:
    return [" ".join(f"{value:.4g}" for value in slot) for slot in slots]


def typed_batch(task: Task, text: str, answers: int | None = None) -> Batch:
    """A batch of one with a typed input and an unknown answer.

    Token tasks: names of tokens (`Task.input_names`) separated by spaces. Float tasks: one step's values separated by
    spaces, steps by semicolons. There are `answers` slots; by default as many as the task has for an input of that
    size. Raises ValueError for an input that the task cannot take.
    """
    spec = task.spec
    inputs = _parse(text, task)
    count = inputs.shape[0]
    capacity = next((n for n in range(1, count + 1) if task.shapes(n)[0] >= count), None)
    if capacity is None:
        raise ValueError(f"the task takes at most {task.shapes(count)[0]} inputs, got {count}")
    slots = answers or task.shapes(capacity)[1]
    shape = (1, slots) if spec.outputs == "tokens" else (1, slots, spec.output_size)
    targets = jnp.zeros(shape, jnp.int32 if spec.outputs == "tokens" else jnp.float32)
    asked = jnp.ones((1, slots), bool)
    return Batch(inputs[None], jnp.ones((1, count), bool), targets, asked, jnp.zeros_like(asked))


def _parse(text: str, task: Task) -> jax.Array:
    spec = task.spec
    if spec.takes_tokens:
        ids = {name: number for number, name in enumerate(task.input_names)}
        words = text.split()
        unknown = [word for word in words if word not in ids]
        if unknown or not words:
            raise ValueError(
                f"the input must be tokens separated by spaces, out of {_listed(task.input_names)}; "
                f"got {', '.join(map(repr, unknown)) or 'nothing'}"
            )
        return jnp.array([ids[word] for word in words])
    try:
        rows = [[float(word) for word in row.split()] for row in text.split(";")]
        if any(len(row) != spec.input_width for row in rows):
            raise ValueError(f"got {[len(row) for row in rows]} values")
        return jnp.array(rows)
    except ValueError as error:
        raise ValueError(
            f"the input must be {spec.input_width} numbers per step, with steps separated by semicolons; {error}"
        ) from None


def _listed(names: Sequence[str], most: int = 40) -> str:
    """The names of tokens: numbers as a range, others one by one; if there are very many, the first ones."""
    if names[-1] == str(len(names) - 1):
        return f"0 to {names[-1]}"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " ".join(names[:most]) + more


def open_run(directory: str | Path, step: int | None = None, modules: Iterable[type | ModuleType] = ()) -> Run:
    """`lenmem.load` for a run's path, its name under `runs/`, a file, or a name of the zoo."""
    return load(find_run(directory), step=step, modules=modules)


def is_run(name: str) -> bool:
    """Whether a word on the command line means a trained network: a run, a file, or a name of the zoo."""
    return shelf.is_name(name) or name.endswith(SUFFIX) or holds_run(find_run(name))


def find_run(directory: str | Path) -> Path:
    """A run's path, given as a path or as a name under `runs/`. Names of the zoo are left as they are."""
    path = Path(directory)
    return Path("runs") / path if not path.is_dir() and (Path("runs") / path).is_dir() else path
