"""All combinations of the values of a sweep, and the programs that train them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from lenmem.evaluation.lengths import LengthCurve
from lenmem.experiment import Experiment
from lenmem.serialize import to_plain
from lenmem.training.lanes import TRACEABLE, Numbers, owner_of, replaced, untraceable

SCORE, PLAN = "score.json", "sweep.json"


@dataclasses.dataclass(frozen=True)
class Combination:
    """One experiment of a sweep."""

    name: str
    """Name of its directory: `learning_rate=0.01,hidden_size=50`."""
    values: Mapping[str, Any]
    """Path of each swept field -> its value."""
    experiment: Experiment


@dataclasses.dataclass(frozen=True)
class JointTraining:
    """Combinations that are trained by one program."""

    combinations: tuple[Combination, ...]
    numbers: Numbers
    """The numbers in which they differ, by field; empty for a single combination."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a combination."""

    combination: Combination
    scores: Mapping[str, np.ndarray]
    """metric (or `loss`) -> float[S] on the split used for selection; NaN for diverged seeds. Empty if all seeds
    diverged."""
    curve: LengthCurve | None


def combine(experiment: Experiment, over: Mapping[str, Sequence[Any]]) -> tuple[Combination, ...]:
    """All combinations of the values; the last field changes fastest. Raises ValueError for invalid values."""
    if not over:
        raise ValueError(
            "nothing to sweep over; name fields with values: --over training.optimizer.learning_rate 0.01 0.02"
        )
    for path, values in over.items():
        owner_of(experiment, path)
        if not values:
            raise ValueError(f"no values for {path}: give at least one")
        if any(isinstance(value, optax.GradientTransformation) for value in values):
            raise ValueError(
                f"values of {path} cannot be an optax.GradientTransformation: a saved sweep cannot tell two of them "
                "apart; sweep over the fields of lenmem.Optimizer, or train an experiment for each"
            )
    names = short_names(over)
    combinations = []
    for values in itertools.product(*over.values()):
        chosen = dict(zip(over, values, strict=True))
        name = ",".join(f"{names[path]}={as_typed(value)}" for path, value in chosen.items())
        combinations.append(Combination(re.sub(r"[^\w.=+,-]+", "_", name), chosen, replaced(experiment, chosen)))
    twice = [name for name, count in Counter(c.name for c in combinations).items() if count > 1]
    if twice:
        raise ValueError(f"the directory {twice[0]} occurs twice: give each value once")
    return tuple(combinations)


def as_python(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values, with NumPy's and JAX's numbers as Python's."""
    listed = values.tolist() if isinstance(values, np.ndarray | jax.Array) else values
    return tuple(x.item() if isinstance(x, np.generic | jax.Array) else x for x in listed)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """path -> its last part, or the complete path if several have the same last part."""
    paths = list(paths)
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def plan(combinations: Sequence[Combination]) -> tuple[tuple[JointTraining, ...], tuple[str, ...]]:
    """(programs, remarks): the groups of combinations that are trained together, and the reasons why combinations with
    different values of certain numbers are not."""
    paths = combinations[0].values
    numbers = [path for path in paths if all(_is_number(path, c.values[path]) for c in combinations)]
    programs, remarks = [], {}
    for alike in _grouped(combinations, lambda c: _structure(c, numbers)):
        varying = [path for path in numbers if len({c.values[path] for c in alike}) > 1]
        reasons = {}
        if varying and untraceable(alike[0].experiment, *varying):
            reasons = {path: untraceable(alike[0].experiment, path) for path in varying}
        fixed = [path for path, reason in reasons.items() if reason]
        remarks |= {
            path: f"values of {path} are trained one after another, since it cannot be traced: {reasons[path]}"
            for path in fixed
        }
        for group in _grouped(alike, lambda c, fixed=fixed: tuple(c.values[path] for path in fixed)):
            shared = {path: tuple(c.values[path] for c in group) for path in varying if path not in fixed}
            programs.append(JointTraining(tuple(group), shared if len(group) > 1 else {}))
    return tuple(programs), tuple(remarks.values())


def _is_number(path: str, value: Any) -> bool:
    """Whether the field may be traced. In a model only floats may, since integers are sizes."""
    kinds = (int, float) if path.startswith("training.optimizer.") else (float,)
    return path.startswith(TRACEABLE) and isinstance(value, kinds) and not isinstance(value, bool)


def _structure(combination: Combination, numbers: Sequence[str]) -> Hashable:
    """The values that all combinations of one program share. Zeros in the optimiser are separate from other numbers,
    since they may remove a part of the program."""
    values = combination.values
    zeros = tuple(values[path] == 0 for path in numbers if path.startswith("training."))
    return zeros, tuple(repr(values[path]) for path in values if path not in numbers)


def _grouped(
    combinations: Iterable[Combination], key: Callable[[Combination], Hashable]
) -> Iterable[list[Combination]]:
    groups: dict[Hashable, list[Combination]] = {}
    for combination in combinations:
        groups.setdefault(key(combination), []).append(combination)
    return groups.values()


def as_typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple | list):
        return " ".join(map(as_typed, value))
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    plain = to_plain(value)
    return str(plain.get("name") or plain["class"].rpartition(".")[2])
