"""The requirements of a task, tried on a few examples.

They are those of `lenmem.tasks.base.Task` and `lenmem.types.Batch`. Nothing else notices when a task breaks one: an id
that is too large is clipped by JAX, and an example that changes with the capacity changes with the batch it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.errors import users_line
from lenmem.tasks.base import Task, draw, occurs
from lenmem.types import Batch, Spec

NEEDS_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""JAX's errors for Python code that needs the number of a traced value."""
ROOM = 3
"""Capacity beyond the longest example that is tried."""


class Finding(NamedTuple):
    """A requirement, and how it is broken."""

    requirement: str
    problem: str | None
    """One line; None if it is kept."""


class Drawn(NamedTuple):
    """Examples of a task: at their own capacity, drawn a second time, with another key, and with more capacity."""

    task: Task
    lengths: list[int]
    tight: Batch
    again: Batch
    other: Batch
    wide: Batch


def check_task(task: Task) -> list[Finding]:
    """Tries all requirements on examples of up to four training lengths, the shortest and the longest included. After
    an example of a wrong form nothing else is tried."""
    form = check_form(task)
    return [form] if form.problem is not None else [form, *check_examples(examples(task))]


def require_task(task: Task) -> None:
    """Raises ValueError with the first requirement of the form or of `DRAWING` that a task breaks."""
    form = check_form(task)
    findings = [form] if form.problem is not None else check_examples(examples(task), DRAWING)
    for requirement, problem in broken(findings):
        raise ValueError(f"{type(task).__name__} breaks a rule of tasks ({requirement}): {problem}")


def check_form(task: Task) -> Finding:
    """Tries the requirement without which there are no examples to try the others on."""
    return Finding("examples have the sizes and types that `shapes` and `spec` describe", form_problem(task))


def check_examples(drawn: Drawn, checks: Mapping[str, Callable[[Drawn], str | None]] | None = None) -> list[Finding]:
    """Tries the requirements in `checks` on examples; None: all of `DRAWING` and `JUDGING`."""
    checks = DRAWING | JUDGING if checks is None else checks
    return [Finding(requirement, check(drawn)) for requirement, check in checks.items()]


def lengths_tried(task: Task) -> list[int]:
    """Up to four of the training lengths that occur, ascending."""
    shortest, longest = task.train_lengths
    if not 1 <= shortest <= longest:
        raise ValueError(f"train_lengths is {(shortest, longest)}; it must be (shortest, longest), ascending, from 1")
    found = [length for length in range(shortest, longest + 1) if occurs(task, length)]
    if not found:
        raise ValueError(f"no length of train_lengths, {(shortest, longest)}, passes check_length")
    return [found[i] for i in sorted({0, len(found) // 3, 2 * len(found) // 3, len(found) - 1})]


def examples(task: Task, rows: int = 8) -> Drawn:
    """Rows of the lengths that are tried, each at least once; NumPy arrays."""
    lengths = lengths_tried(task)
    capacity = lengths[-1]
    of_rows = jnp.asarray([lengths[i % len(lengths)] for i in range(max(rows, len(lengths)))])

    def program(capacity: int) -> Callable[[jax.Array], Batch]:
        return jax.jit(lambda key: draw(task, key, of_rows, capacity))  # a new one each time: it is traced again

    key, other = jax.random.key(0), jax.random.key(1)
    both = program(capacity)
    found = both(key), program(capacity)(key), both(other), program(capacity + ROOM)(key)
    return Drawn(task, of_rows.tolist(), *jax.tree.map(np.asarray, found))


def form_problem(task: Task) -> str | None:
    """The first part of an example with a wrong shape or type."""
    for name in ("train_lengths", "test_lengths", "spec", "shapes", "sample"):
        if getattr(type(task), name) is getattr(Task, name):
            return f"{type(task).__name__} does not define `{name}`"
    spec, lengths = task.spec, lengths_tried(task)
    for capacity in (lengths[0], lengths[-1]):
        sizes = task.shapes(capacity)
        if not (isinstance(sizes, tuple) and len(sizes) == 2 and all(isinstance(size, int) for size in sizes)):
            return f"`shapes` returns {sizes!r} at capacity {capacity}; it must be two integers, (inputs, answer slots)"
        inputs, answers = sizes
        try:
            example = jax.eval_shape(lambda key, n=capacity: task.sample(key, jnp.asarray(n), n), jax.random.key(0))
        except NEEDS_NUMBER as error:
            where = users_line(error) or "here"
            return f"{where}: `sample` needs the number of `length`, which is traced; sizes come from `capacity`"
        if not isinstance(example, Batch):
            return f"`sample` returns a {type(example).__name__}; it must return a lenmem.Example"
        for name, (shape, kind) in expected(spec, inputs, answers).items():
            got = getattr(example, name)
            if tuple(getattr(got, "shape", ())) != shape or not jnp.issubdtype(getattr(got, "dtype", object), kind):
                seen = f"{getattr(got, 'dtype', type(got).__name__)}{list(getattr(got, 'shape', ()))}"
                return f"at capacity {capacity}, `{name}` is {seen}; it must be {_NAMES[kind]}{list(shape)}"
    return None


_NAMES: dict[Any, str] = {jnp.integer: "int", jnp.floating: "float", jnp.bool_: "bool"}


def expected(spec: Spec, inputs: int, answers: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """part of an example -> (shape, type)."""
    tokens, classes = spec.takes_tokens, spec.outputs == "tokens"
    return {
        "inputs": ((inputs,), jnp.integer) if tokens else ((inputs, spec.vocabulary + spec.channels), jnp.floating),
        "input_mask": ((inputs,), jnp.bool_),
        "targets": ((answers,), jnp.integer) if classes else ((answers, spec.output_size), jnp.floating),
        "target_mask": ((answers,), jnp.bool_),
        "score_mask": ((answers,), jnp.bool_),
    }


# Requirements of the examples -----------------------------------------------------------------------------------------


def _first(drawn: Drawn, wrong: Any) -> str:
    """The length of the first row in which something is wrong, bool[B, ...]."""
    row = int(np.argmax(np.reshape(wrong, (len(wrong), -1)).any(axis=1)))
    return f"in an example of length {drawn.lengths[row]}"


def ids_problem(drawn: Drawn) -> str | None:
    """Ids of real tokens that the vocabulary or the classes do not have."""
    spec, batch = drawn.task.spec, drawn.tight
    for name, tokens, values, mask, size, field in (
        ("input", spec.takes_tokens, batch.inputs, batch.input_mask, spec.vocabulary, "vocabulary"),
        ("target", spec.outputs == "tokens", batch.targets, batch.target_mask, spec.output_size, "output_size"),
    ):
        if tokens and np.any(wrong := mask & ((values < 0) | (values >= size))):
            return f"{name} id {values[wrong][0]} {_first(drawn, wrong)}; spec.{field} is {size}"
    return None


def masks_problem(drawn: Drawn) -> str | None:
    """Masks with gaps, empty rows, and scored slots that are not answered."""
    batch = drawn.tight
    for name in ("input_mask", "target_mask"):
        mask = getattr(batch, name)
        if np.any(gaps := mask[:, 1:] & ~mask[:, :-1]):
            return f"`{name}` has a gap {_first(drawn, gaps)}; real positions come first, then padding"
    if np.any(empty := ~batch.input_mask.any(axis=1)):
        return f"`input_mask` is False everywhere {_first(drawn, empty)}"
    if np.any(wrong := batch.score_mask & ~batch.target_mask):
        return f"a slot is scored that is not in `target_mask`, {_first(drawn, wrong)}"
    if not np.any(batch.score_mask):
        return "no slot of any example is scored"
    if drawn.task.spec.alignment == "aligned":
        columns = min(batch.input_mask.shape[1], batch.target_mask.shape[1])
        behind = batch.target_mask.copy()
        behind[:, :columns] &= ~batch.input_mask[:, :columns]
        if np.any(behind):
            return f"an answer slot has no input {_first(drawn, behind)}; spec.alignment is 'aligned'"
    return None


def end_problem(drawn: Drawn) -> str | None:
    """Answers without the end symbol, where the network must find the end itself."""
    spec, batch = drawn.task.spec, drawn.tight
    if spec.end_id is None or spec.length_rule != "end":
        return None
    missing = ~np.any((batch.targets == spec.end_id) & batch.score_mask, axis=1)
    return f"the end symbol, {spec.end_id}, is not scored {_first(drawn, missing)}" if np.any(missing) else None


def key_problem(drawn: Drawn) -> str | None:
    """Examples that are no function of the key."""
    if _same(drawn.tight, drawn.again):
        return None
    return "the same key gave other examples; all random numbers must come from jax.random and the key"


def constant_problem(drawn: Drawn) -> str | None:
    """Examples that do not depend on the key."""
    return "two keys gave the same examples" if _same(drawn.tight, drawn.other) else None


def capacity_problem(drawn: Drawn) -> str | None:
    """Examples that change with the capacity, by more than padding."""
    for mask, parts in (("input_mask", ["inputs"]), ("target_mask", ["targets", "score_mask"])):
        real, still = getattr(drawn.tight, mask), getattr(drawn.wide, mask)
        width = real.shape[1]
        if not np.array_equal(still[:, :width], real) or np.any(still[:, width:]):
            changed = [mask]
        else:
            pairs = {name: (getattr(drawn.tight, name)[real], getattr(drawn.wide, name)[still]) for name in parts}
            changed = [name for name, (before, after) in pairs.items() if np.any(before != after)]
        if changed:
            before, after = max(drawn.lengths), max(drawn.lengths) + ROOM
            return f"`{changed[0]}` of the same key and length is another one at capacity {before} and at {after}"
    return None


def _same(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Requirements of the loss and the metrics -----------------------------------------------------------------------------


def judging_problem(drawn: Drawn) -> str | None:
    """A loss or metrics that depend on padding, or have a wrong form."""
    task, batch = drawn.task, drawn.wide

    @jax.jit
    def judged(outputs: jax.Array, batch: Batch) -> Any:
        return task.loss(outputs, batch), task.metrics(outputs, batch)

    outputs = np.random.default_rng(0).normal(size=(*batch.target_mask.shape, task.spec.output_size))
    outputs = outputs.astype(np.float32)
    loss, metrics = jax.tree.map(np.asarray, judged(outputs, batch))
    if loss.shape or not np.isfinite(loss):
        return f"the loss is {loss if not loss.shape else f'an array {list(loss.shape)}'}; it must be a finite number"
    rows = batch.target_mask.shape[0]
    if wrong := [name for name, value in metrics.items() if value.shape != (rows,)]:
        return (
            f"the metric {wrong[0]!r} has the shape {list(metrics[wrong[0]].shape)}; it must be one value per example"
        )
    soiled = batch._replace(inputs=soil(batch.inputs, batch.input_mask), targets=soil(batch.targets, batch.target_mask))
    other_loss, other_metrics = jax.tree.map(np.asarray, judged(soil(outputs, batch.target_mask), soiled))
    if not np.array_equal(loss, other_loss):
        return "the loss depends on what padding contains; mask it with `score_mask`"
    for name, value in metrics.items():
        if not np.array_equal(value, other_metrics[name], equal_nan=True):
            return f"the metric {name!r} depends on what padding contains; mask it with `score_mask`"
    return None


def soil(values: Any, mask: Any) -> np.ndarray:
    """The values with other padding: NaN, or ids that tokens may have and that no token has."""
    values, mask = np.array(values), np.asarray(mask)
    values[~mask] = np.nan if np.issubdtype(values.dtype, np.floating) else np.resize([1, -99, 0, 10**6], np.sum(~mask))
    return values


DRAWING: dict[str, Callable[[Drawn], str | None]] = {
    "ids are below `vocabulary` and `output_size`": ids_problem,
    "masks are prefixes, and scored slots are answered": masks_problem,
    "answers contain the end symbol, if the length is not given": end_problem,
    "the same key gives the same examples": key_problem,
    "more capacity is more padding": capacity_problem,
}
"""requirement of the examples -> the function that finds a problem."""
JUDGING: dict[str, Callable[[Drawn], str | None]] = {
    "another key gives other examples": constant_problem,
    "loss and metrics do not depend on padding": judging_problem,
}
"""The same for the loss and the metrics, and for examples that are valid but hardly wanted."""


def broken(findings: list[Finding]) -> Iterator[Finding]:
    """Those with a problem."""
    return (finding for finding in findings if finding.problem is not None)
