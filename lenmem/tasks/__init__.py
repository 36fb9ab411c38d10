"""Tasks by name: `make("copy", train_lengths=(2, 16))`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from lenmem.errors import nearest
from lenmem.tasks.base import FreshSource, RepeatedSource, Source, Split, Task
from lenmem.tasks.dnc import BinaryAdd, Differentiation, Logic, QuinaryCopy, QuinaryShift, QuinarySort, Search
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.lantm import (
    BigramFlip,
    Copy,
    Double,
    InterleavedAdd,
    LantmTask,
    OddFirst,
    PrioritySort,
    RepeatCopy,
    Reverse,
)
from lenmem.tasks.lra import ByteText, ListOps, PixelImage
from lenmem.tasks.mathematics import AddOrSub, PlaceValue
from lenmem.tasks.nam import Fibonacci, Palindrome, Reduce
from lenmem.tasks.ndr import Arithmetic, DependencyListOps, TableLookup
from lenmem.tasks.pairs import Pairs
from lenmem.tasks.panm import DynamicRecall, IDSort, Mix, PanmCopy, PanmPrioritySort, PanmReverse
from lenmem.tasks.scan import Scan

_TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "reverse": Reverse,
    "bigram_flip": BigramFlip,
    "double": Double,
    "interleaved_add": InterleavedAdd,
    "odd_first": OddFirst,
    "repeat_copy": RepeatCopy,
    "priority_sort": PrioritySort,
    "fibonacci": Fibonacci,
    "palindrome": Palindrome,
    "reduce": Reduce,
    "scan": Scan,
    "lra_listops": ListOps,
    "lra_text": ByteText,
    "lra_image": PixelImage,
    "ctl": TableLookup,
    "arithmetic": Arithmetic,
    "listops": DependencyListOps,
    "dnc_sort": QuinarySort,
    "dnc_copy": QuinaryCopy,
    "dnc_differentiation": Differentiation,
    "dnc_shift": QuinaryShift,
    "dnc_add": BinaryAdd,
    "dnc_search": Search,
    "dnc_logic": Logic,
    "panm_copy": PanmCopy,
    "panm_reverse": PanmReverse,
    "panm_mix": Mix,
    "panm_dynamic_recall": DynamicRecall,
    "panm_priority_sort": PanmPrioritySort,
    "panm_id_sort": IDSort,
    "dyck": Dyck,
    "add_or_sub": AddOrSub,
    "place_value": PlaceValue,
    "pairs": Pairs,
}


def names() -> tuple[str, ...]:
    """The names `make` knows, in the order of the papers."""
    return tuple(_TASKS)


def make(name: str, **fields: Any) -> Task:
    """The task of that name, with `fields` set. Lists are taken for tuples.

    Raises:
        ValueError: for an unknown task or field; says what was got, the nearest name, and what is allowed.
    """
    if name not in _TASKS:
        raise ValueError(_unknown("task", name, _TASKS))
    task = _TASKS[name]
    allowed = [field.name for field in dataclasses.fields(task) if field.init]
    for field in fields:
        if field not in allowed:
            raise ValueError(_unknown(f"field of the task {name!r}", field, allowed))
    return task(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def _unknown(kind: str, got: str, allowed: Iterable[str]) -> str:
    allowed = tuple(allowed)
    return f"{got!r} is not a {kind}.{nearest(got, allowed)} Allowed: {', '.join(allowed)}."


__all__ = [
    "AddOrSub",
    "Arithmetic",
    "BigramFlip",
    "BinaryAdd",
    "ByteText",
    "Copy",
    "DependencyListOps",
    "Differentiation",
    "Double",
    "Dyck",
    "DynamicRecall",
    "Fibonacci",
    "FreshSource",
    "IDSort",
    "InterleavedAdd",
    "LantmTask",
    "ListOps",
    "Logic",
    "Mix",
    "OddFirst",
    "Pairs",
    "Palindrome",
    "PanmCopy",
    "PanmPrioritySort",
    "PanmReverse",
    "PixelImage",
    "PlaceValue",
    "PrioritySort",
    "QuinaryCopy",
    "QuinaryShift",
    "QuinarySort",
    "Reduce",
    "RepeatCopy",
    "RepeatedSource",
    "Reverse",
    "Scan",
    "Search",
    "Source",
    "Split",
    "TableLookup",
    "Task",
    "make",
    "names",
]
