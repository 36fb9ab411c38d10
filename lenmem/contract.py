"""The requirements of a task and a network of your own, tried on a few examples.

    for requirement, problem in lenmem.check(experiment):
        print(problem or "ok", requirement)

Those of tasks are in `lenmem.tasks.contract`. A network may depend on the real part of a row and on nothing else: not
on the contents or the amount of padding, nor on the other rows of its batch; and its parameters not on the length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.evaluation.metrics import ApplyModel
from lenmem.experiment import Experiment
from lenmem.leaves import named_leaves
from lenmem.tasks.contract import Drawn, Finding, broken, check_examples, check_form, examples, soil
from lenmem.training.step import initial_parameters, total_loss, training_outputs
from lenmem.types import STREAMS, Batch, PyTree

TOLERANCE = 1e-3
"""Largest difference of outputs that should be equal, relative to the largest output. A program of another size rounds
differently; a network that reads padding differs by more."""


class Outcome(NamedTuple):
    """What a network makes of a batch."""

    answers: Any
    """Outputs as in an evaluation."""
    outputs: Any
    """Outputs as in a training."""
    loss: Any
    gradients: PyTree


class Tried(NamedTuple):
    """A network with parameters, the examples it is tried on, and its outcome."""

    experiment: Experiment
    drawn: Drawn
    params: PyTree
    run: Callable[[Batch], Outcome]
    outcome: Outcome

    def same(self, got: Any, mask: Any, wanted: Any = None, of: Any = None) -> bool:
        """Whether outputs are equal at real slots: `got` at `mask`, and `wanted` (the answers) at `of`."""
        wanted = self.outcome.answers if wanted is None else wanted
        got, wanted = np.asarray(got)[mask], np.asarray(wanted)[mask if of is None else of]
        return np.allclose(got, wanted, rtol=0, atol=TOLERANCE * max(1e-3, float(np.max(np.abs(wanted), initial=0))))


def check(experiment: Experiment) -> list[Finding]:
    """Tries the requirements of the task, then, if it keeps all, those of the model, on examples of up to four training
    lengths. Takes about as long as the compilation of a training.

    A model that cannot be run on the examples raises its own error.
    """
    form = check_form(experiment.task)
    if form.problem is not None:
        return [form]
    drawn = examples(experiment.task)
    findings = [form, *check_examples(drawn)]
    return findings if any(broken(findings)) else findings + check_model(experiment, drawn)


def check_model(experiment: Experiment, drawn: Drawn | None = None) -> list[Finding]:
    """The requirements of the model, on examples of its task; None: they are drawn here.

    Nothing else is tried after parameters or outputs of a wrong form, or values that are not finite.
    """
    findings = []
    for requirement, form in FORM.items():
        findings.append(Finding(requirement, form(experiment)))
        if findings[-1].problem is not None:
            return findings
    tried = trial(experiment, drawn or examples(experiment.task))
    findings.append(Finding("outputs, loss and gradients are finite at the start", finite_problem(tried)))
    if findings[-1].problem is None:
        findings += [Finding(requirement, find(tried)) for requirement, find in VALUES.items()]
    return findings


def trial(experiment: Experiment, drawn: Drawn) -> Tried:
    """The network at the start of a training, without pretrained parameters, and its outcome on the examples."""
    model, task = experiment.bound_model, experiment.task

    def loss(params: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
        rngs = {name: jax.random.key(i) for i, name in enumerate(STREAMS)}
        outputs, sown = training_outputs(model, task, params, batch, rngs)
        return total_loss(task, outputs, sown, batch)[0], outputs

    @jax.jit
    def outcome(params: PyTree, batch: Batch) -> Outcome:
        answers = ApplyModel(model)(params, batch.inputs, batch.input_mask, batch.target_mask)
        (value, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return Outcome(answers, outputs, value, gradients)

    params = jax.jit(functools.partial(initial_parameters, model, task))(jax.random.key(0))

    def run(batch: Batch) -> Outcome:
        return jax.tree.map(np.asarray, outcome(params, batch))

    return Tried(experiment, drawn, params, run, run(drawn.tight))


def parameters_problem(experiment: Experiment) -> str | None:
    """Parameters whose shapes depend on the length of the examples."""
    model, task = experiment.bound_model, experiment.task
    if not task.endless:
        return None
    _, longest = task.train_lengths
    one, other = longest, 2 * longest + 1

    def shapes(capacity: int) -> dict[str, tuple[int, ...]]:
        def start(key: jax.Array) -> PyTree:
            example = task.sample(key, jnp.asarray(longest), capacity)
            batch = jax.tree.map(lambda x: x[None], example)
            return model.init(key, batch.inputs, batch.input_mask, batch.target_mask)["params"]

        return {name: leaf.shape for name, leaf in named_leaves(jax.eval_shape(start, jax.random.key(0))).items()}

    first, second = shapes(one), shapes(other)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            return f"{name} is {first.get(name)} at capacity {one} and {second.get(name)} at {other}"
    return None


def output_problem(experiment: Experiment) -> str | None:
    """An output of a wrong shape or type."""
    model, task = experiment.bound_model, experiment.task
    params = jax.eval_shape(functools.partial(initial_parameters, model, task), jax.random.key(0))
    for length in dict.fromkeys(task.train_lengths):
        inputs, answers = task.shapes(length)
        example = jax.eval_shape(lambda key, n=length: task.sample(key, jnp.asarray(n), n), jax.random.key(0))
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), example)
        got = jax.eval_shape(
            lambda p, b: model.apply({"params": p}, b.inputs, b.input_mask, b.target_mask), params, batch
        )
        wanted = (2, answers, task.spec.output_size)
        if getattr(got, "shape", None) != wanted or not jnp.issubdtype(got.dtype, jnp.floating):
            seen = f"{got.dtype}{list(got.shape)}" if hasattr(got, "shape") else f"a {type(got).__name__}"
            return f"for 2 rows of {inputs} inputs and {answers} answer slots it is {seen}, not float{list(wanted)}"
    return None


def finite_problem(tried: Tried) -> str | None:
    """Values that are not finite, and a loss that depends on no parameter."""
    mask, outcome = tried.drawn.tight.target_mask, tried.outcome
    if not all(np.all(np.isfinite(values[mask])) for values in (outcome.answers, outcome.outputs)):
        return "an output at a real answer slot is not finite"
    if not np.isfinite(outcome.loss):
        return f"the loss is {outcome.loss}"
    for name, leaf in named_leaves(outcome.gradients).items():
        if not np.all(np.isfinite(leaf)):
            return f"the gradient of {name} is not finite"
    if not any(np.any(leaf != 0) for leaf in jax.tree.leaves(outcome.gradients)):
        return "the gradient of every parameter is 0"
    return None


def padding_problem(tried: Tried) -> str | None:
    """Answers or gradients that depend on the contents of padding."""
    batch = tried.drawn.tight
    dirty = batch._replace(inputs=soil(batch.inputs, batch.input_mask), targets=soil(batch.targets, batch.target_mask))
    got = tried.run(dirty)
    if not tried.same(got.answers, batch.target_mask):
        return "other padding in `inputs` gives other answers; use `input_mask`"
    pairs = zip(*(jax.tree.leaves((one.loss, one.gradients)) for one in (got, tried.outcome)), strict=True)
    if not all(np.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE) for pair in pairs):
        return "other padding gives another loss or gradient"
    return None


def capacity_problem(tried: Tried) -> str | None:
    """Answers that depend on the amount of padding."""
    wide = tried.drawn.wide
    apply = jax.jit(ApplyModel(tried.experiment.bound_model))
    answers = apply(tried.params, wide.inputs, wide.input_mask, wide.target_mask)
    if tried.same(answers, wide.target_mask, of=tried.drawn.tight.target_mask):
        return None
    return "the same rows with more padding have other answers"


def rows_problem(tried: Tried) -> str | None:
    """Answers that depend on the other rows of the batch."""
    for order, what in ((slice(None, None, -1), "in another order"), ([0] * len(tried.drawn.lengths), "alone")):
        batch = jax.tree.map(lambda x, order=order: x[order], tried.drawn.tight)
        if not tried.same(tried.run(batch).answers, batch.target_mask, tried.outcome.answers[order]):
            return f"the same rows {what} have other answers"
    return None


def causality_problem(tried: Tried) -> str | None:
    """Answers that depend on later inputs, where the task forbids it."""
    spec, batch = tried.experiment.task.spec, tried.drawn.tight
    if not (spec.causal and spec.alignment == "aligned"):
        return None
    last = np.sum(batch.input_mask, axis=1) - 1
    inputs = batch.inputs.copy()
    rows = np.arange(len(last))
    inputs[rows, last] = (inputs[rows, last] + 1) % spec.vocabulary if spec.takes_tokens else 1 - inputs[rows, last]
    earlier = batch.target_mask & (np.arange(batch.target_mask.shape[1]) < last[:, None])
    if tried.same(tried.run(batch._replace(inputs=inputs)).answers, earlier):
        return None
    return "another last input changes earlier answers; the task is causal"


def leak_problem(tried: Tried) -> str | None:
    """Outputs in training that depend on the target of their own slot."""
    spec, batch = tried.experiment.task.spec, tried.drawn.tight
    last = np.sum(batch.target_mask, axis=1) - 1
    rows = np.arange(len(last))
    targets = batch.targets.copy()
    targets[rows, last] = (targets[rows, last] + 1) % spec.output_size if spec.outputs == "tokens" else 1.5
    got = tried.run(batch._replace(targets=targets)).outputs
    if tried.same(got, batch.target_mask, tried.outcome.outputs):
        return None
    return "in training, the target of the last slot changes the output at that slot or before"


FORM: dict[str, Callable[[Experiment], str | None]] = {
    "the parameters do not depend on the length": parameters_problem,
    "the output has one row of `output_size` numbers per answer slot": output_problem,
}
"""requirement of a model's shapes -> the function that finds a problem."""
VALUES: dict[str, Callable[[Tried], str | None]] = {
    "the contents of padding have no influence": padding_problem,
    "the amount of padding has no influence": capacity_problem,
    "rows of a batch do not see each other": rows_problem,
    "causal answers do not see later inputs": causality_problem,
    "outputs do not see the targets of their own slots": leak_problem,
}
"""requirement of a model's values -> the function that finds a problem."""


def report(findings: list[Finding]) -> str:
    """The findings as lines of text."""
    return "\n".join(
        f"ok      {what}" if problem is None else f"BROKEN  {what}: {problem}" for what, problem in findings
    )
