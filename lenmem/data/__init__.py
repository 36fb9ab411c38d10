"""Data sets from files and from TFDS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy

if TYPE_CHECKING:
    from lenmem.data import (
        babi,
        brackets,
        cache,
        cifar10,
        ctl,
        digits,
        expressions,
        files,
        flare,
        imdb,
        listops,
        mathematics,
        pairs,
        parallel_text,
        rows,
        scan,
        squad,
        stories,
        subwords,
        tfds,
        trees,
        wordpiece,
    )
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "babi",
    "brackets",
    "cache",
    "cifar10",
    "ctl",
    "digits",
    "expressions",
    "files",
    "flare",
    "imdb",
    "listops",
    "mathematics",
    "pairs",
    "parallel_text",
    "rows",
    "scan",
    "squad",
    "stories",
    "subwords",
    "tfds",
    "trees",
    "wordpiece",
]
