"""For any values of a task's or a model's fields, a training step works, or one ValueError from lenmem says why not."""

from __future__ import annotations

import dataclasses
import functools
import math
import traceback
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lenmem
from lenmem import Experiment, Training, models, tasks
from lenmem.tasks.base import Task
from lenmem.training import Optimizer, train
from lenmem.training.step import data_key, initial_members, objective
from lenmem.types import STREAMS, Batch, Dtype, Spec
from tests.models.columns import Runs

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "feedforward_size", "mlp_size", "vocabulary", "selection_length", "longest"), 4),
    **dict.fromkeys(("embedding_size", "memory_width", "width", "sequence_length", "max_depth", "max_arguments"), 3),
    **dict.fromkeys(("key_size", "heads", "steps", "registers", "tapes", "nearest_pairs", "id_size"), 2),
    **dict.fromkeys(("layers", "encoder_layers", "decoder_layers", "read_heads"), 1),
    **dict.fromkeys(("slots", "bits", "curve_size", "held_out_examples"), 6),
    **dict.fromkeys(("small_set", "test_size", "validation_size", "held_out_size", "max_priority"), 8),
    **dict.fromkeys(("train_lengths", "validation_lengths"), (1, 3)),
    **dict.fromkeys(("test_lengths", "od_easy_lengths"), (4, 5)),
    "scored_lengths": (3, 5),
    "train_size": 64,
    "examples": 30,
    "max_positions": 32,
    "min_length": 5,
}
"""What makes the defaults small."""
OTHERWISE: dict[type, dict[str, Any]] = {
    tasks.AssociativeRecall: {"vocabulary": 16},
    tasks.Squad: {"vocabulary": "example"},
    tasks.Stories: {"train_lengths": (4, 5), "test_lengths": (6, 7)},
}
"""Where that is too small, or a field of that name is something else."""
ODD: dict[Any, tuple[Any, ...]] = {
    int: (0, -1, 1, 2, 3, 5, True, 1.5, "2"),
    float: (0.0, -0.5, 0.25, 1, 1.5, math.inf, -math.inf, math.nan, True, "0.1"),
    bool: (True, False, 1, "no"),
    str: ("", "nowhere", "tfds", 3),
    type(None): (None,),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type, and some other values."""
    if kind == Dtype:
        return st.sampled_from([None, jnp.bfloat16, jnp.float32, "float32", jnp.int32, "wrong", 3])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return values(arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is Literal:
        return st.sampled_from([*arguments, "wrong", None, True])
    if origin is tuple and arguments[-1:] == (...,):
        return st.one_of(st.lists(values(arguments[0]), max_size=3).map(tuple), st.sampled_from([None, 3, [1, 2]]))
    if origin is tuple:
        odd = [None, 3, (), (1,), [1, 2], (1, 2, 3)]
        return st.one_of(st.tuples(*map(values, arguments)), st.sampled_from(odd))
    return st.sampled_from([*ODD.get(kind, ()), None, "wrong"])


@functools.cache
def fields(kind: type) -> dict[str, Any]:
    """The fields that can be set, with their types."""
    hints = typing.get_type_hints(kind, include_extras=True)
    skipped = ("parent", "name", "spec")
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name not in skipped}  # pyright: ignore


def small(kind: type, preset: dict[str, Any]) -> dict[str, Any]:
    """Fields that make a model or a task small."""
    return {name: value for name, value in SMALL.items() if name in fields(kind)} | OTHERWISE.get(kind, {}) | preset


def settings_of(kind: type, preset: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Small fields, one to three of which are unusual."""
    kinds, base = fields(kind), small(kind, preset)

    def drawn(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: values(kinds[name]) for name in names})

    names = st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=3, unique=True)
    return names.flatmap(drawn).map(lambda odd: base | odd)


class Constant(nn.Module):
    """Always the same answer: the smallest model."""

    spec: Spec | None = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        assert self.spec is not None
        answer = self.param("answer", nn.initializers.normal(), (self.spec.output_size,))
        return jnp.broadcast_to(answer, (*target_mask.shape, self.spec.output_size))


def first_step(experiment: Experiment) -> Callable[[jax.Array], Any]:
    """key -> (loss, gradients) of the first step of a training."""
    task, model = experiment.task, experiment.bound_model

    def step(key: jax.Array) -> Any:
        member = initial_members(model, task, Optimizer().build(1), key[None], keep_best=False)
        member = jax.tree.map(lambda x: x[0], member)
        batch = task.source("train", 2).batch(data_key(member.key), 0)
        rngs = dict.fromkeys(STREAMS, key)
        return jax.value_and_grad(lambda params: objective(model, task, params, batch, rngs)[0])(member.params)

    return step


def works_or_says_why(make: Callable[[], Experiment], *, really: bool = False) -> bool:
    """Whether a step can be made (`really`: with finite numbers); otherwise lenmem must raise one ValueError."""
    refused, shapes = None, None
    try:
        step = first_step(make())
        shapes = jax.eval_shape(step, jax.random.key(0))
    except ValueError as error:
        refused = error
    if refused is not None:
        raised = traceback.extract_tb(refused.__traceback__)[-1].filename
        assert Path(raised).is_relative_to(Path(lenmem.__file__).parent), f"not ours: {refused}"
        assert 0 < len(str(refused)) < 500 and "\n" not in str(refused)
        return False
    assert shapes is not None and shapes[0].shape == ()
    if really:
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(jax.jit(step)(jax.random.key(0))))
    return True


@pytest.fixture(autouse=True)
def as_raised(tmp_path_factory):
    """Full tracebacks, to distinguish our errors from JAX's; and an empty data cache."""
    before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_filtering", "off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENMEM_CACHE", str(tmp_path_factory.getbasetemp() / "data"))
        yield
    jax.config.update("jax_traceback_filtering", before)


TINY = Training(steps=1, batch_size=2)
READ = [
    tasks.make("copy", vocabulary=4, train_lengths=(1, 3)),
    tasks.make("dnc_search", train_lengths=(1, 3)),
    tasks.make("dyck", longest=4, examples=30),
    tasks.make("panm_dynamic_recall", vocabulary=4, train_lengths=(1, 3)),
    Runs(vocabulary=5, longest=8),
    tasks.make("word_problem", group="Z2", train_lengths=(1, 3)),
]
"""Tokens, channels, aligned answers, a single answer, columns of the input, aligned answers that are tokens."""
MADE_AT_LENGTH = {"arithmetic", "listops"}
"""Tasks whose examples take seconds to make: the slow test does."""
ELSEWHERE = {"lra_text", "lra_image"}
"""Tasks whose files are neither drawn nor beside the code."""
CLASSES = {kind: name for name, (kind, preset) in reversed(models.MODELS.items()) if not preset or kind is models.PANM}
"""Each class of models, by its first name."""


def readable(name: str) -> list[Task]:
    """The tasks of `READ` that a model can take."""
    return [task for task in READ if models.supports(models.make(name), task.spec) is None]


def try_model(name: str, fields: dict[str, Any], task: Task, **options: Any) -> bool:
    """Whether the model with these fields can be trained."""
    return works_or_says_why(lambda: Experiment(task, models.MODELS[name][0](**fields), TINY), **options)


def try_task(name: str, fields: dict[str, Any], **options: Any) -> bool:
    """Whether something can be trained on the task with these fields."""
    return works_or_says_why(lambda: Experiment(type(tasks.make(name))(**fields), Constant(), TINY), **options)


def of_model(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a model."""
    return settings_of(*models.MODELS[name])


def of_task(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a task."""
    return settings_of(type(tasks.make(name)), {})


WRONG = {
    "inputs": (lambda x: x[..., None], r"inputs has shape \[2, {n}, 1\]; it must be \[B, N\], token ids"),
    "input_mask": (lambda x: x[:, 1:], r"input_mask has shape \[2, {less}\]; it must be \[2, {n}\], as inputs is"),
    "target_mask": (lambda x: x[:1], r"target_mask has shape \[1, {m}\]; it must be \[2, M\], as inputs is \[2, {n}\]"),
    "targets": (
        lambda x: x[:, 1:],
        r"targets has shape \[2, {fewer}\]; it must be \[2, {m}\], as target_mask is \[2, {m}\]",
    ),
}
"""A field of a batch: what is done to it, and what is said."""


@functools.cache
def blank(task: Task) -> Batch:
    """A batch of zeros with the shapes of a task's."""
    shapes = jax.eval_shape(lambda: task.source("train", 2).batch(jax.random.key(0), 0))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


@pytest.mark.parametrize("name", CLASSES.values())
def test_a_batch_of_other_shapes_is_one_message(name):
    task = readable(name)[0]
    batch = blank(task)
    n, m = batch.inputs.shape[1], batch.targets.shape[1]
    sizes = {"n": n, "m": m, "less": n - 1, "fewer": m - 1}
    model = models.MODELS[name][0](**small(*models.MODELS[name]), spec=task.spec)
    for field, (change, message) in WRONG.items():
        wrong = batch._replace(**{field: change(getattr(batch, field))})
        with pytest.raises(ValueError, match=message.format(**sizes)):
            jax.eval_shape(
                functools.partial(model.init, targets=wrong.targets), jax.random.key(0), *wrong[:2], wrong.target_mask
            )


class Mismatched(type(READ[0])):
    """A task whose masks are one short."""

    def sample(self, key, length, capacity):
        example = super().sample(key, length, capacity)
        return example._replace(target_mask=example.target_mask[1:])


class Narrow(Constant):
    """Answers that lack one number."""

    @nn.compact
    def __call__(self, *arguments, **options):
        return super().__call__(*arguments, **options)[..., 1:]


def test_a_task_or_a_model_of_ones_own_is_checked_too():
    with pytest.raises(ValueError, match=r"at capacity 1, `target_mask` is bool\[1\]; it must be bool\[2\]"):
        train(Experiment(Mismatched(4, (1, 3)), Constant(), TINY))
    with pytest.raises(ValueError, match=r"the model's output has shape \[2, 4, 4\]; it must be \[2, 4, 5\]"):
        train(Experiment(READ[0], Narrow(), TINY))


def test_channels_have_a_width():
    task = READ[1]
    batch = blank(task)
    model = models.make("gru", task.spec, hidden_size=2, embedding_size=2)
    wider = np.concatenate([batch.inputs, batch.inputs[..., :1]], axis=-1)
    with pytest.raises(ValueError, match=r"inputs has shape \[2, 5, 3\]; it must be \[B, N, 2\], for 0 tokens and 2"):
        jax.eval_shape(model.init, jax.random.key(0), wider, batch.input_mask, batch.target_mask)


def try_examples(trial, examples, *strategies):
    """Calls `trial` with this many draws of the strategies."""

    @settings(max_examples=examples, database=None)
    @given(st.tuples(*strategies))
    def check(drawn):
        trial(*drawn)

    check()


def try_models(name, examples, **options):
    """First the small fields, which work, then others, which may be refused."""
    assert try_model(name, small(*models.MODELS[name]), readable(name)[0], **options)
    drawn = of_model(name), st.sampled_from(readable(name))
    try_examples(lambda fields, task: try_model(name, fields, task, **options), examples, *drawn)


def try_tasks(name, examples):
    """First the small fields, which work, then others, which may be refused."""
    assert name in ELSEWHERE or try_task(name, small(type(tasks.make(name)), {}))
    try_examples(lambda fields: try_task(name, fields), examples, of_task(name))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASSES.values())
def test_a_model_with_any_fields(name):
    try_models(name, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(tasks.names()) - MADE_AT_LENGTH))
def test_a_task_with_any_fields(name):
    try_tasks(name, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_a_model_with_any_fields_at_length(name):
    try_models(name, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.names())
def test_a_task_with_any_fields_at_length(name):
    try_tasks(name, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_a_model_that_takes_its_fields_makes_a_step_of_finite_numbers(name):
    try_models(name, 5, really=True)
