"""Examples of tasks, and a network's answers as text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.evaluation.lengths import checked_lengths
from lenmem.experiment import Run
from lenmem.tasks.base import Task, draw
from lenmem.training.loop import Result
from lenmem.types import Batch


def example_batch(task: Task, length: int, seed: int = 0) -> Batch:
    """One example of this length, as a batch of one."""
    return next(example_batches(task, [length], seed))


def example_batches(task: Task, lengths: Sequence[int], seed: int = 0) -> Iterator[Batch]:
    """The examples of `example_batch`, all padded to the longest of the lengths."""
    longest = checked_lengths(lengths)[-1]
    for length in lengths:
        task.check_length(length)
    # Compiled, since some tasks take many small steps for each symbol.
    program = jax.jit(lambda length: draw(task, jax.random.key(seed), length, longest))
    for length in lengths:
        # Waits, since the conversion of an array that did not fit the memory ends the process.
        yield jax.block_until_ready(program(jnp.array([length])))


def predict(run: Run | Result, text: str, *, seed: int | None = None, answers: int | None = None) -> list[str]:
    """The answer of one seed's network to an input typed as text (see `typed_batch`), up to the end symbol.

    Tasks whose inputs are texts define another form (`Task.reply`).
    """
    run = Run.of(run)
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
    """Empty where the slot is not scored: any answer is right."""
    given: list[str]
    hits: list[bool]
    """Whether the task counts the slot as right; slots that are not scored count as right."""

    @property
    def scored(self) -> list[bool]:
        """Whether the task scores the slot."""
        return [bool(right) for right in self.right]


def answer_example(run: Run | Result, length: int, *, seed: int | None = None, example: int = 0) -> AnsweredExample:
    """One seed's answer to example number `example` of this length, with the right answer."""
    run = Run.of(run)
    task = run.experiment.task
    batch = example_batch(task, length, example)
    outputs = run.apply(batch.inputs, batch.input_mask, batch.target_mask, seed=seed)
    return answered(task, batch, np.asarray(outputs), np.asarray(slots_right(task, batch, outputs)))


def slots_right(task: Task, batch: Batch, outputs: jax.Array) -> jax.Array:
    """bool[M]: whether the task counts each slot of a batch of one as right. Slots without a score count as right."""

    def alone(slot: jax.Array) -> jax.Array:
        """Whether a slot is right if no other slot is scored."""
        scored = batch.score_mask & (jnp.arange(batch.score_mask.shape[1]) == slot)
        scores = task.metrics(outputs, batch._replace(score_mask=scored))
        return scores.get("exact_match", next(iter(scores.values())))[0] == 1

    return jax.lax.map(alone, jnp.arange(batch.score_mask.shape[1])) | ~batch.score_mask[0]


def answered(task: Task, batch: Batch, outputs: np.ndarray, hits: np.ndarray) -> AnsweredExample:
    """The example in a batch of one as text, with the answer in `outputs` [1, M, K] and its `hits` bool[M]."""
    there = np.flatnonzero(batch.target_mask[0])
    targets = np.asarray(batch.targets[0])[there]
    symbols = np.asarray(batch.inputs[0])[np.asarray(batch.input_mask[0])]
    inputs = [task.input_names[i] for i in symbols] if task.spec.takes_tokens else _values(symbols)
    right = [task.answer_names[i] for i in targets] if task.spec.outputs == "tokens" else _written(task, targets)
    scored = np.asarray(batch.score_mask[0])[there]
    right = [name if counts else "" for name, counts in zip(right, scored, strict=True)]
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

    Tokens are typed as their names (`Task.input_names`), separated by spaces. Values are separated by spaces within a
    step, and steps by semicolons. There are `answers` slots; by default as many as the task has for an input of that
    size, or one for each input if these are aligned. Raises ValueError for an input that the task cannot take.
    """
    if not isinstance(text, str):
        raise ValueError(f'the input must be typed as text, such as "3 1 4", got {text!r}')
    spec = task.spec
    inputs = _parse(text, task)
    count = inputs.shape[0]
    grows = task.shapes(1)[0] < task.shapes(2)[0]  # else a length is that of the answer
    capacities = range(1, count + 1) if grows else (task.test_lengths[1],)
    capacity = next((n for n in capacities if task.shapes(n)[0] >= count), None)
    if capacity is None:
        raise ValueError(f"the task takes at most {task.shapes(count)[0]} inputs, got {count}")
    if answers is not None and answers < 1:
        raise ValueError(f"the number of answers must be at least 1, got {answers}")
    if answers is None:
        answers = count if spec.alignment == "aligned" else task.shapes(capacity)[1]
    shape = (1, answers) if spec.outputs == "tokens" else (1, answers, spec.output_size)
    targets = jnp.zeros(shape, jnp.int32 if spec.outputs == "tokens" else jnp.float32)
    asked = jnp.ones((1, answers), bool)
    return Batch(inputs[None], jnp.ones((1, count), bool), targets, asked, jnp.zeros_like(asked))


def _parse(text: str, task: Task) -> jax.Array:
    spec = task.spec
    if spec.takes_tokens:
        ids = {name: number for number, name in enumerate(task.input_names)}
        words = re.findall(r"[^ \t\r\n]+", text)  # other white space may be a token
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
    """The names of tokens, for messages: numbers as a range, others as a list of at most the first `most`."""
    if names[-1] == str(len(names) - 1):
        return f"0 to {names[-1]}"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " ".join(names[:most]) + more
