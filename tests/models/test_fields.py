"""No field of a model is forgotten on its way into the network."""

from __future__ import annotations

import functools
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jax.numpy as jnp
import pytest

from lenmem import models
from lenmem.nn.interfaces import FlatModel
from lenmem.types import Dtype, Spec
from tests.test_bad_input import CLASSES, READ, blank, fields, small

ELSEWHERE = {"computation_steps", "rules", "weights"}
"""Tokens in the input (`tests/nn/test_computation.py`), classes of one's own (`tests/models/test_nam.py`), a file that
is read once (`tests/models/test_bert.py`)."""


def others(kind: Any, value: Any) -> list[Any]:
    """Some other values of a declared type."""
    if kind == Dtype:
        return [jnp.bfloat16]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return others(arguments[0], value)
    if origin in (Union, types.UnionType):
        return [other for argument in arguments for other in others(argument, value)]
    if origin is Literal:
        return [argument for argument in arguments if argument != value]
    more = {bool: [True, False], int: [1, 2, 3, 4], float: [0.25, 0.5, 2.0]}
    return [other for other in more.get(kind, []) if other != value]


def allowed(kind: Any, base: dict[str, Any], field: str, value: Any) -> bool:
    """Whether a model may have this value in a field."""
    try:
        kind(**base | {field: value})
    except ValueError:
        return False
    return True


def built(model: Any, spec: Spec, answers: int) -> str | None:
    """The network in and outside training, with all its fields, as text; None if there is no such network."""
    try:
        model = model.clone(spec=spec)
        parts = [model.reader(answers=answers, train=train) for train in (False, True)]
        parts += [model.mixer(depth=0.5, name="mixer")] if hasattr(model, "mixer") else []
    except ValueError:
        return None
    return re.sub(r"0x[0-9a-f]+", "", repr(parts))


@pytest.mark.parametrize("name", [name for kind, name in CLASSES.items() if kind.__call__ is FlatModel.__call__])
def test_every_field_changes_the_network(name):
    """For some task and some value of another field: a rule of halting, say, matters only where columns halt."""
    kind, preset = models.MODELS[name]
    base = small(kind, preset)
    kinds = {field: hint for field, hint in fields(kind).items() if field not in ELSEWHERE}
    changes = {field: others(hint, base.get(field, getattr(kind, field))) for field, hint in kinds.items()}
    changes = {field: [x for x in values if allowed(kind, base, field, x)] for field, values in changes.items()}
    specs = [(task.spec, blank(task).targets.shape[1]) for task in READ]
    specs = [asked for asked in specs if models.supports(kind(**base), asked[0]) is None]

    @functools.cache
    def made(number: int, **changed: Any) -> str | None:
        return built(kind(**base | changed), *specs[number])

    def matters(field: str, context: dict[str, Any]) -> bool:
        """Beside the other changes of the context."""
        pairs = (
            (made(number, **context), made(number, **context | {field: value}))
            for value in changes[field]
            for number in range(len(specs))
        )
        return any(before != after for before, after in pairs if before and after)

    # No size alone decides whether another field matters.
    switches = [{field: value} for field, values in changes.items() for value in values if type(value) is not int]
    contexts = [{}, *switches]
    forgotten = [field for field in changes if not any(matters(field, c) for c in contexts if field not in c)]
    assert not forgotten
