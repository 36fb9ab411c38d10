"""What a resumed training has to have in common with its run, and in which fields it differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from lenmem.serialize import classes_in, from_plain, to_plain

FREE = ("devices", "seeds_at_once")
"""Fields of the training that only say how it is computed: a run may go on with others."""
_ABSENT = object()


def same_experiment(saved: Any, experiment: Any) -> bool:
    """`saved`, plain data, describes the experiment, but for `FREE` fields."""
    return not experiment_differences(saved, experiment)


def experiment_differences(saved: Any, experiment: Any) -> list[str]:
    """As `differences`, but for `FREE` fields."""
    free = {name: getattr(experiment.training, name) for name in FREE}
    with suppress(KeyError, TypeError):  # Then it describes none.
        saved = saved | {"training": saved["training"] | free}
    return differences(saved, experiment)


def differences(data: Any, value: Any) -> list[str]:
    """Field by field, how the object that `to_plain` wrote as `data` differs from `value`; empty where it does not.

    Each as `training.steps: the run has 1000, asked for 2000`. Fields that classes got since have their defaults: what
    was saved before a class had one goes on to be known.
    """
    plain = to_plain(value)
    if data != plain:
        with suppress(ValueError):
            data = to_plain(from_plain(data, classes_in(value)))
    return list(_differences(data, plain, ""))


def _differences(saved: Any, asked: Any, where: str) -> Iterator[str]:
    if _kind(saved) is not None and _kind(saved) == _kind(asked):
        for name in dict.fromkeys([*saved, *asked]):
            there = saved.get(name, _ABSENT), asked.get(name, _ABSENT)
            yield from _differences(*there, f"{where}.{name}" if where else name)
    elif saved != asked:
        yield f"{where or 'all of it'}: the run has {_shown(saved)}, asked for {_shown(asked)}"


def _kind(plain: Any) -> str | None:
    """The class of a saved object with fields."""
    kind = plain.get("class", "dict") if isinstance(plain, Mapping) else None
    return None if kind in ("float", "dtype", "function") else kind


def _shown(plain: Any) -> str:
    """Plain data in a few words: an object by its class."""
    if plain is _ABSENT:
        return "nothing"
    if isinstance(plain, Mapping) and "class" in plain:
        return str(plain.get("value") or plain.get("name") or plain["class"].rpartition(".")[2])
    text = "None" if plain is None else json.dumps(plain)
    return text if len(text) <= 60 else f"{text[:60]}..."
