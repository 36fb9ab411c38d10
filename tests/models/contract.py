"""The contract every model keeps, as checks that raise AssertionError. `test_contract.CASES` lists who is checked.

A model may depend on the real part of a row and on nothing else: not on what padding holds or how much of it there is,
not on the other rows of the batch, not on compilation. And it learns.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem.models import supports
from lenmem.tasks.base import Task, draw, masked_mean, slot_hits
from lenmem.tasks.lantm import Copy
from lenmem.types import STREAMS, Batch, PyTree
from tests.learning import briefly, fit, trained

ROWS = (3, 5, 1, 4)
"""Lengths of the rows of a ragged batch: no neighbours are alike, and none fills the capacity."""
CAPACITY = 6


@dataclasses.dataclass(frozen=True)
class Learning:
    """A tiny training (`tests.learning.fit`) of `updates` steps, after which every key has to reach `accuracy`."""

    accuracy: float
    """Least token accuracy. If `extrapolates`: of the slots beyond every answer that had a say in the training, in rows
    of up to twice the trained length; else of all slots at trained lengths."""
    worst: float | None = None
    """The lowest accuracy of 20 keys, under any instruction set that was tried; None if it was not measured."""
    extrapolates: bool = True
    updates: int = 300
    learning_rate: float = 1e-2
    b2: float = 0.999
    batch_size: int = 16
    starts: int = 1
    """Of up to so many trainings, each with parameters and rows of its own, the one that is best on rows up to half as
    long again as trained, or the first that reaches `ENOUGH` there. What is scored is longer still."""


ENOUGH = 0.999
"""With this accuracy on the rows it is chosen by, a training is not begun again."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model under contract. `model` needs no spec; it gets that of `task`."""

    name: str
    model: nn.Module
    learning: Learning
    task: Task = Copy(vocabulary=4, train_lengths=(1, 5))
    tolerance: float = 2e-5


@functools.cache
def bound(case: Case) -> Any:
    """The model with the spec of its task."""
    return case.model.clone(spec=case.task.spec)


@functools.cache
def ragged(task: Task, capacity: int = CAPACITY) -> Batch:
    """Rows of `ROWS` lengths; the contents do not depend on the capacity."""
    return draw(task, jax.random.key(7), jnp.asarray(ROWS), capacity)


@functools.cache
def initializer(case: Case) -> Callable[[jax.Array], PyTree]:
    """key -> parameters, compiled."""
    batch = ragged(case.task)
    return briefly(lambda key: bound(case).init(key, batch.inputs, batch.input_mask, batch.target_mask)["params"])


@functools.cache
def parameters(case: Case) -> PyTree:
    """The parameters of seed 0."""
    return initializer(case)(jax.random.key(0))


def apply(model: Any, params: PyTree, batch: Batch, **options: Any) -> Any:
    """The model call."""
    return model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask, **options)


class Outcome(NamedTuple):
    """What a model makes of a batch."""

    answers: jax.Array
    """Outputs as in an evaluation."""
    outputs: jax.Array
    """Outputs as in a training."""
    loss: jax.Array
    gradients: PyTree


def program(model: Any, task: Task, promotion: str = "strict") -> Callable[[PyTree, Batch], Outcome]:
    """(params, batch) -> its outcome, compiled; one program for most checks, since it takes longer than they do.

    `promotion`: other JAX projects may forbid that dtypes are promoted implicitly."""

    def loss(params: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
        rngs = {name: jax.random.key(i) for i, name in enumerate(STREAMS)}
        outputs, mutated = apply(model, params, batch, targets=batch.targets, train=True, rngs=rngs, mutable=["losses"])
        extra = sum((jnp.sum(leaf) for leaf in jax.tree.leaves(mutated.get("losses", {}))), jnp.zeros(()))
        return task.loss(outputs, batch) + extra, outputs

    def run(params: PyTree, batch: Batch) -> Outcome:
        with jax.numpy_dtype_promotion(promotion):
            (value, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch)
            return Outcome(apply(model, params, batch), outputs, value, gradients)

    return briefly(run)


@functools.cache
def running(case: Case) -> Callable[[Batch], Outcome]:
    """batch -> what the case's model makes of it with the parameters of seed 0."""
    return functools.partial(program(bound(case), case.task), parameters(case))


@functools.cache
def outcome(case: Case) -> Outcome:
    """That of the ragged batch."""
    return running(case)(ragged(case.task))


def real(outputs: Any, batch: Batch) -> np.ndarray:
    """The outputs at real answer slots, [slots, K]; what lies elsewhere is arbitrary."""
    return np.asarray(outputs)[np.asarray(batch.target_mask)]


def same(got: Any, expected: Any, tolerance: float, what: str) -> None:
    """Assert that two pytrees agree up to `tolerance`, relative to a leaf's largest value if that is above 1."""
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        mine, other = np.asarray(mine, np.float64), np.asarray(other, np.float64)
        scale = max(1.0, float(np.max(np.abs(other), initial=0)))
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * scale, err_msg=what)


def dirty(batch: Batch) -> Batch:
    """The batch with garbage in its padding: ids out of range, NaN."""

    def soil(values: jax.Array, mask: jax.Array) -> jax.Array:
        values, mask = np.array(values), np.asarray(mask)
        if np.issubdtype(values.dtype, np.integer):
            values[~mask] = np.resize([10**6, -1, 1, -(10**6), 3], (~mask).sum())
        else:
            values[~mask] = np.nan
        return jnp.asarray(values)

    return batch._replace(inputs=soil(batch.inputs, batch.input_mask), targets=soil(batch.targets, batch.target_mask))


# The checks -----------------------------------------------------------------------------------------------------------


def check_supports(case: Case) -> None:
    """The model says whether it can take a task, and takes its own."""
    assert callable(getattr(case.model, "supports", None)), "a model has `supports(spec) -> str | None`"
    assert supports(case.model, case.task.spec) is None
    other = supports(case.model, dataclasses.replace(case.task.spec, causal=True))
    assert other is None or (isinstance(other, str) and other and "\n" not in other)


def check_shapes(case: Case) -> None:
    """[B, M, K] for exactly fitting rows of the shortest and the longest length."""
    for length in case.task.lengths_of("train"):
        batch = jax.eval_shape(lambda n=length: draw(case.task, jax.random.key(0), jnp.full(2, n), n))
        outputs = jax.eval_shape(functools.partial(apply, bound(case)), parameters(case), batch)
        assert outputs.shape == (*batch.target_mask.shape, case.task.spec.output_size)
        assert jnp.issubdtype(outputs.dtype, jnp.floating)


def check_padding(case: Case) -> None:
    """What padding holds changes neither answers nor loss nor gradients."""
    clean, expected = ragged(case.task), outcome(case)
    got = running(case)(dirty(clean))
    same(real(got.answers, clean), real(expected.answers, clean), 0, "answers depend on the contents of padding")
    same(real(got.outputs, clean), real(expected.outputs, clean), 0, "outputs depend on the contents of padding")
    same((got.loss, got.gradients), (expected.loss, expected.gradients), 0, "training depends on padding's contents")


def check_batch_order(case: Case) -> None:
    """Rows do not see each other: permuting or replacing them permutes or leaves the answers."""
    batch, answers = ragged(case.task), outcome(case).answers
    order = np.array([2, 0, 3, 1])
    permuted = jax.tree.map(lambda x: np.asarray(x)[order], batch)
    got = real(running(case)(permuted).answers, permuted)
    same(got, real(np.asarray(answers)[order], permuted), case.tolerance, "answers depend on the order of rows")
    others = jax.tree.map(lambda x: np.repeat(x[:1], len(ROWS), 0), batch)
    first = jax.tree.map(lambda x: x[:1], batch)
    got = real(running(case)(others).answers[:1], first)
    same(got, real(answers[:1], first), case.tolerance, "answers depend on the other rows")


def check_capacity_and_traces(case: Case) -> None:
    """More padding, compilation and looking inside change nothing; each trace has an axis of the batch, and those of a
    scan are time-major and whole."""
    short, long = ragged(case.task), ragged(case.task, 2 * CAPACITY + 1)
    compiled = real(outcome(case).answers, short)
    outputs, mutated = apply(bound(case), parameters(case), long, mutable=["traces"])
    same(real(outputs, long), compiled, case.tolerance, "the capacity, jit or traces change the answers")
    by_name = {path[-2].key: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(mutated.get("traces", {}))}
    if "token" in by_name:  # a recurrent reading: every trace is [T, B, ...]
        valid = np.asarray(by_name["valid"])
        read, answered = (np.asarray(mask).sum(axis=1) for mask in (long.input_mask, long.target_mask))
        assert np.all(valid.sum(axis=0) >= np.maximum(read, answered)), "the traces lack steps"
        for name, leaf in by_name.items():
            assert leaf.shape[:2] == valid.shape, f"trace {name} is not time-major"
            assert np.all(np.isfinite(np.asarray(leaf, np.float64)[valid])), f"trace {name} is not finite"
    else:
        for name, leaf in by_name.items():
            assert len(ROWS) in leaf.shape, f"trace {name} has no axis of the batch"


def without_addresses(program: Any) -> str:
    """A traced program as text, without the memory addresses in it."""
    return re.sub(r"0x[0-9a-f]+", "", str(program))


def check_determinism(case: Case) -> None:
    """The same key gives the same parameters, another key others; the same call gives the same answer."""
    key = jax.random.key(0)
    same(initializer(case)(key), parameters(case), 0, "parameters of one key differ")
    start = initializer(case).__wrapped__
    again = briefly(lambda key: start(key))  # A new function: the trace of the old one is cached.
    first, second = initializer(case).trace(key).jaxpr, again.trace(key).jaxpr
    assert without_addresses(first) == without_addresses(second), "the start is another program each time"
    same(first.consts, second.consts, 0, "the start has other constants each time")
    other = initializer(case)(jax.random.key(1))
    pairs = zip(jax.tree.leaves(other), jax.tree.leaves(parameters(case)), strict=True)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in pairs), "parameters do not depend on the key"
    same(running(case)(ragged(case.task)), outcome(case), 0, "one call gives two results")


def check_finite(case: Case) -> None:
    """Outputs, loss and gradients are finite at the start, for short and long rows; some gradient is not zero."""
    batch = ragged(case.task)
    alike = jax.tree.map(lambda x: np.repeat(x[2:3], len(ROWS), 0), batch)
    for those, got in ((batch, outcome(case)), (alike, running(case)(alike))):
        leaves = jax.tree.leaves(got.gradients)
        for values in (real(got.answers, those), real(got.outputs, those), got.loss, *leaves):
            assert np.all(np.isfinite(values))
        assert any(np.any(np.asarray(leaf) != 0) for leaf in leaves)


def check_bfloat16(case: Case) -> None:
    """With `dtype=bfloat16` a training step stays finite and near float32, parameters and gradients stay float32."""
    batch, exact = ragged(case.task), outcome(case)
    got = program(bound(case).clone(dtype=jnp.bfloat16), case.task, "standard")(parameters(case), batch)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(got.gradients))
    outputs = real(got.answers, batch), real(got.outputs, batch)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((outputs, got.loss, got.gradients)))
    same(got.loss, exact.loss, 0.05, "bfloat16 changes the loss")
    rounded = np.asarray(outputs[0], np.float64) != real(exact.answers, batch)
    assert np.any(rounded), "everything is computed in float32"


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def rows(task: Task, lengths: tuple[int, int], capacity: int, shape: tuple[int, ...], key: jax.Array) -> Batch:
    """Examples [*shape]; the lengths follow each other."""
    low, high = lengths
    examples = draw(task, key, jnp.arange(math.prod(shape)) % (high - low + 1) + low, capacity)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), examples)


def learned(case: Case) -> Callable[[jax.Array], jax.Array]:
    """key -> token accuracy after a training, as `Learning` describes it."""
    task, learning, model = case.task, case.learning, bound(case)

    def loss(params: PyTree, batch: Batch, key: jax.Array) -> jax.Array:
        rngs = {name: jax.random.fold_in(key, i) for i, name in enumerate(STREAMS)}
        options = {"targets": batch.targets, "train": True, "rngs": rngs, "mutable": ["losses"]}
        outputs, mutated = apply(model, params, batch, **options)
        return task.loss(outputs, batch) + sum((jnp.sum(x) for x in jax.tree.leaves(mutated)), jnp.zeros(()))

    @trained
    def train(params: PyTree, batches: Batch, key: jax.Array) -> PyTree:
        return fit(params, loss, batches, key, learning.learning_rate, learning.b2)

    @jax.jit
    def accuracy(params: PyTree, batch: Batch, untrained: int) -> jax.Array:
        scored = batch.score_mask & (jnp.arange(batch.score_mask.shape[1]) >= untrained)
        return masked_mean(slot_hits(apply(model, params, batch), batch), scored)

    longest = task.train_lengths[1]
    near = longest + longest // 2 if learning.starts > 1 else longest
    capacity = task.test_lengths[1] if learning.extrapolates else longest

    def score(params: PyTree, low: int, high: int, untrained: int = 0) -> jax.Array:
        """Of rows of `low` to `high`; all scores share one program."""
        return accuracy(params, rows(task, (low, high), capacity, (256,), jax.random.key(99)), untrained)

    def one(key: jax.Array) -> jax.Array:
        best, found = -1.0, None
        for i in range(learning.starts):
            start, data, steps = (jax.random.fold_in(key, 3 * i + j) for j in range(3))
            batches = rows(task, task.train_lengths, longest, (learning.updates, learning.batch_size), data)
            params = train(initializer(case)(start), batches, steps)
            reached = float(score(params, longest + 1, near, task.shapes(longest)[1])) if learning.starts > 1 else 1.0
            if reached > best:
                best, found = reached, params
            if best >= ENOUGH:
                break
        if learning.extrapolates:
            return score(found, near + 1, capacity, task.shapes(near)[1])
        return score(found, *task.train_lengths)

    return one


def check_learns(case: Case, learns: Callable[..., None]) -> None:
    """It gets past the accuracy the case states, well above the best constant answer. `learns` is the fixture."""
    assert case.learning.accuracy >= case.task.spec.chance + 0.15, "the bar is too near to chance to mean anything"
    learns(learned(case), case.learning.accuracy, case.learning.worst)


CHECKS = (
    check_supports,
    check_shapes,
    check_padding,
    check_capacity_and_traces,
    check_batch_order,
    check_determinism,
    check_finite,
    check_bfloat16,
)
