"""Plain data: round trips, and untrusted files that must not run anything."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.evaluation.lengths import Evaluation
from lenmem.models.looped import LoopedTransformer
from lenmem.models.nam_baselines import UniversalEncoder
from lenmem.models.tapes import Shift
from lenmem.nn.transformer import TransformerEncoder
from lenmem.serialize import CHANGED, DTYPES, FUNCTIONS, MOVED, class_path, from_plain, to_plain
from lenmem.training.optimizer import Cosine, LinearDecay, Optimizer, StepDecay
from lenmem.types import Spec


@dataclasses.dataclass(frozen=True)
class Leaf:
    size: int = 3
    rate: float = 0.1
    label: str | None = None
    lengths: tuple[Any, ...] = ()
    anything: Any = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A custom rule instead of a function."""

    slope: float

    def __call__(self, x):
        return self.slope * x


@dataclasses.dataclass(frozen=True)
class Derived:
    width: int
    total: int = dataclasses.field(init=False)

    def __post_init__(self):
        if self.width < 0:
            raise ValueError(f"width must not be negative, got {self.width}")
        object.__setattr__(self, "total", 2 * self.width)


class Cell(nn.Module):
    size: int
    activation: Callable = nn.relu
    kernel_init: Callable = nn.initializers.lecun_normal()
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        return self.activation(nn.Dense(self.size, kernel_init=self.kernel_init, dtype=self.dtype)(x))


class Model(nn.Module):
    cell: nn.Module
    layers: tuple[int, ...] = (1, 2)
    options: Any = None
    spec: Spec | None = None

    @nn.compact
    def __call__(self, x):
        return self.cell(x)


MODULES = [Leaf, Rule, Derived, Cell, Model]


def round_trip(value, modules=MODULES):
    return from_plain(json.loads(json.dumps(to_plain(value), allow_nan=False)), modules)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4).filter(lambda key: key != "class"), inner, max_size=3)
        | st.builds(Leaf, anything=inner, lengths=st.lists(inner, max_size=2).map(tuple))
        | st.builds(Rule, slope=st.floats(allow_nan=False))
    ),
    max_leaves=8,
)


@given(plain)
def test_round_trip_of_any_value(value):
    again = round_trip(value)
    assert again == value
    assert repr(again) == repr(value)  # 1, 1.0 and True are equal, -0.0 and 0.0 too


@given(st.builds(Leaf, st.integers(), st.floats(allow_nan=False), st.none() | st.text(), st.tuples(st.integers())))
def test_round_trip_of_a_dataclass(value):
    assert round_trip(value) == value


def test_round_trip_of_lenmems_own():
    value = Optimizer("rmsprop", 0.01, StepDecay(0.5), clip_norm=32.0, decay_mask="kernels")
    data = to_plain(value)
    assert data["class"] == "lenmem.training.optimizer.Optimizer"
    assert data["schedule"] == {
        "class": "lenmem.training.optimizer.StepDecay", "factor": 0.5, "every": 20, "delay": 3000
    }  # fmt: skip
    assert round_trip(value, ()) == value
    assert round_trip(Optimizer(schedule=Cosine(10)), ()) == Optimizer(schedule=Cosine(10))
    assert round_trip(Spec(vocabulary=3, output_size=4), ()) == Spec(vocabulary=3, output_size=4)


def test_round_trip_of_linen_modules():
    model = Model(Cell(7, nn.tanh, dtype=jnp.bfloat16), options={"a": (1, None)}, spec=Spec(3, 4))
    data = to_plain(model)
    assert set(data) == {"class", "cell", "layers", "options"}
    assert set(data["cell"]) == {"class", "size", "activation", "dtype"}
    again = round_trip(model)
    assert again == model.clone(spec=None)
    x = jnp.ones((2, 3))
    variables = model.init(jax.random.key(0), x)
    np.testing.assert_array_equal(again.apply(variables, x), model.apply(variables, x))
    assert round_trip(Cell(3, name="mine")).name == "mine"
    assert round_trip(Cell(3, Rule(2.0))) == Cell(3, Rule(2.0))


def test_flax_modules():
    value = Model(nn.LSTMCell(5))
    for modules in ([Model], [Model, nn.LSTMCell], [Model, nn], [sys.modules[__name__]]):
        assert round_trip(value, modules) == value
    with pytest.raises(ValueError, match=r"flax.linen.recurrent.Nothing.* modules=\[Nothing\]"):
        from_plain({"class": "flax.linen.recurrent.Nothing"})
    with pytest.raises(ValueError, match=r"flax.linen.jit"):
        from_plain({"class": "flax.linen.jit"})


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinities(value):
    assert to_plain(Leaf(rate=value))["rate"]["class"] == "float"
    assert round_trip(Leaf(rate=value)) == Leaf(rate=value)


def test_nan_and_numpy_scalars():
    assert math.isnan(round_trip(math.nan))
    assert round_trip((np.float64(0.5), np.int32(3), np.bool_(True))) == (0.5, 3, True)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name):
    kind = getattr(jnp, name)
    for value in (kind, np.dtype(name)):
        assert round_trip(value) is kind
    assert round_trip(np.float32) is jnp.float32


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    assert round_trip(FUNCTIONS[name]) is FUNCTIONS[name]
    assert FUNCTIONS[name] is getattr(nn, name)


def test_lists_come_back_as_tuples():
    assert round_trip(Leaf(anything=[1, [2]])) == Leaf(anything=(1, (2,)))


def test_fields_outside_init_are_computed_again():
    assert "total" not in to_plain(Derived(4))
    assert round_trip(Derived(4)).total == 8


@pytest.mark.parametrize(
    "value, message",
    [
        (Leaf(anything=lambda x: x), "Leaf.anything: <function.*frozen dataclass with __call__"),
        (Cell(3, kernel_init=nn.initializers.lecun_normal()), "Cell.kernel_init: <function"),
        (Leaf(anything=(1, print)), r"Leaf.anything\[1\]: <built-in function print"),
        (Leaf(anything={"a": np.zeros(3)}), r"Leaf.anything\['a'\]: a ndarray cannot"),
        (Leaf(anything={1: 2}), "string keys"),
        (Leaf(anything={"class": "os.system"}), "string keys"),
        (Leaf(anything=b"x"), "a bytes cannot"),
        (Leaf(anything={1}), "a set cannot"),
        (Leaf(anything=Leaf), "cannot be saved as data"),
    ],
)
def test_what_cannot_be_saved(value, message):
    with pytest.raises(ValueError, match=message):
        to_plain(value)


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "lenmem",
        "lenmem.",
        "lenmem.cli.main",
        "lenmem.__main__.main",
        "lenmem._configs.quickstart.experiment",
        "lenmem.serialize.to_plain",
        "lenmem.serialize.nn.Dense",
        "lenmem.serialize.importlib.import_module",
        "lenmem.training.optimizer.dataclasses.Field",
        "lenmem.training.optimizer.Schedule",
        "lenmem.training.checkpoint.CheckpointError",
        "lenmem.training.optimizer.Optimizer.build",
        "lenmem.nowhere.Optimizer",
        "lenmem..types.Spec",
        "lenmem.types.Batch",
        "lenmem.tasks.base.Spec",
        "lenmem.types.Spec\n",
        "lenmemx.types.Spec",
        "jax.numpy.float32",
        "",
        3,
        None,
        ["lenmem.types.Spec"],
    ],
)
def test_hostile_classes(path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    before = {name for name in sys.modules if not name.startswith("lenmem")}
    with pytest.raises(ValueError):
        from_plain({"class": path})
    with pytest.raises(ValueError):
        from_plain(["a", {"class": path, "args": ["touch /tmp/x"]}], MODULES)
    if not str(path).startswith("lenmem."):
        assert {name for name in sys.modules if not name.startswith("lenmem")} == before


@pytest.mark.parametrize(
    "data, message",
    [
        ({"class": "lenmem.types.Spec", "vocabulari": 3}, "has no field 'vocabulari'. Did you mean 'vocabulary'"),
        ({"class": "lenmem.types.Spec", "__init__": 3}, "has no field '__init__'"),
        ({"class": "lenmem.types.Spec", "zzz": 3}, "There are .*, such as vocabulary, output_size"),
        ({"class": "lenmem.types.Spec", "vocabulary": 3}, "needs output_size"),
        ({"class": class_path(Derived), "width": -1}, "width must not be negative"),
        ({"class": class_path(Derived), "width": "x"}, "cannot be built"),
        ({"class": class_path(Derived), "width": 1, "total": 2}, "no field 'total'"),
        ({"class": class_path(Model), "cell": None, "spec": None}, "no field 'spec'"),
        ({"class": class_path(Model), "cell": None, "parent": None}, "no field 'parent'"),
        ({"class": "dtype", "name": "object"}, "a saved dtype must be one of"),
        ({"class": "dtype", "name": ["float32"]}, "a saved dtype must be one of"),
        ({"class": "dtype"}, "a saved dtype must be one of"),
        ({"class": "function", "name": "eval"}, "a saved function must be one of relu"),
        ({"class": "function", "name": {}}, "a saved function must be one of relu"),
        ({"class": "float", "value": "1e400"}, "a saved float must be"),
        ({"class": "float", "value": "inf", "more": 1}, "a saved float must be"),
        (object(), "saved data must be JSON"),
    ],
)
def test_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        from_plain(data, MODULES)


def test_depth_is_bounded():
    data: Any = 1
    for _ in range(500):
        data = [data]
    with pytest.raises(ValueError, match="nested"):
        from_plain(data)
    deep: Any = ()
    for _ in range(500):
        deep = (deep,)
    with pytest.raises(ValueError, match="nested"):
        to_plain(deep)


def test_a_class_that_moved_is_found_by_its_name():
    data = to_plain(Leaf(5))
    data["class"] = "__main__.Leaf"
    assert from_plain(data, [Leaf]) == Leaf(5)
    data["class"] = "__main__.Leave"
    with pytest.raises(ValueError, match="not part of lenmem"):
        from_plain(data, [Leaf])
    data["class"] = "lenmem.somewhere.Leaf"
    with pytest.raises(ValueError, match="not a dataclass or Linen module of this version"):
        from_plain(data, [Leaf])
    twin = dataclasses.make_dataclass("Leaf", [("size", int)], frozen=True)
    twin.__module__ = "elsewhere"
    data["class"] = "__main__.Leaf"
    with pytest.raises(ValueError, match="not part of lenmem"):
        from_plain(data, [Leaf, twin])


def test_a_class_of_lenmem_that_moved_is_found_where_it_is_now():
    """Runs that were saved before the move have the old name."""
    assert MOVED
    for before, after in MOVED.items():
        made = from_plain({"class": before})
        assert class_path(type(made)) == after
        assert from_plain(to_plain(made)) == made


def test_a_module_that_became_a_folder_still_gives_its_classes():
    """Under their old paths, but not what a module only imports from elsewhere."""
    for name, home in (
        ("chomsky.ParityCheck", "chomsky.regular"),
        ("dnc.Logic", "dnc.logic"),
        ("nam.Reduce", "nam.digits"),
    ):
        made = from_plain({"class": f"lenmem.tasks.{name}"})
        assert class_path(type(made)) == f"lenmem.tasks.{home}.{type(made).__name__}"
    with pytest.raises(ValueError, match="'lenmem.tasks.panm.Task' is not a dataclass or Linen module of this version"):
        from_plain({"class": "lenmem.tasks.panm.Task"})


def test_fields_of_lenmem_that_changed_names_are_carried_over():
    """Also fields that a class gained when it replaced a more special one."""
    assert from_plain({"class": "lenmem.nn.nam.Shift", "cells": 3}) == Shift(3)
    saved = {"layers": 2, "heads": 4, "positions": "absolute", "shared_layers": True, "position_scale": 0.5}
    encoder = from_plain({"class": "lenmem.nn.transformer_decoder.PostNormEncoder", **saved})
    same = {"shared_weights": True, "initialization": "glorot", "positions": "absolute", "position_scale": 0.5}
    assert encoder == TransformerEncoder(layers=2, heads=4, **same)
    assert from_plain({"class": class_path(UniversalEncoder), "steps": 3}) == UniversalEncoder(layers=3)
    assert from_plain({"class": class_path(LoopedTransformer), "column": "last"}) == LoopedTransformer()
    for path, (names, more) in CHANGED.items():
        assert {*names.values(), *more} - {None} <= set(from_plain({"class": path}).__dataclass_fields__), path


def test_modules_must_be_classes():
    for wrong in (print, "os", int, Leaf()):
        with pytest.raises(ValueError, match="modules must be"):
            from_plain(1, [wrong])  # pyright: ignore[reportArgumentType]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["class", "name", "value", "vocabulary", "output_size"]) | st.text(max_size=3),
                inner | st.sampled_from(["lenmem.types.Spec", "dtype", "function", "float", "os.system", "float32"]),
                max_size=4,
            )
        ),
        max_leaves=10,
    )
)
def test_any_json_gives_a_value_or_a_value_error(data):
    try:
        from_plain(data)
    except ValueError:
        pass


def test_old_names_of_classes_and_fields_load():
    evaluation = to_plain(Evaluation(test_examples=7))
    evaluation["scored"] = evaluation.pop("test_examples")
    assert from_plain(evaluation) == Evaluation(test_examples=7)
    schedule = to_plain(LinearDecay(warmup=3)) | {"class": "lenmem.training.optimizer.Linear"}
    assert from_plain(schedule) == LinearDecay(warmup=3)
