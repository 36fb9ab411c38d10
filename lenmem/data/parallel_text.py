"""Parallel texts, a sentence on each line, such as Multi30K (Elliott et al. 2016, https://aclanthology.org/W16-3210).

A directory has `train.en` and `train.de`, `val.en` and so on, or the same names with `.gz`, as published.
"""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lenmem.data import stories
from lenmem.data.files import decoded
from lenmem.errors import choices, readable

Pair = tuple[str, str]
"""(a sentence, its translation)."""
PARTS = {"train": 29_000, "val": 1014, "test_2016_flickr": 1000}
"""The joined parts of Multi30K, and their numbers of sentences."""


def read_directory(directory: str | os.PathLike[str], parts: Iterable[str], source: str, target: str) -> list[Pair]:
    """The pairs of all parts, in order. The directory `example` is in memory: one part, in English and German.

    Raises:
        ValueError: if a file is missing or wrong, with its name and line.
    """
    if os.fspath(directory) == "example":
        if {source, target} != {"en", "de"}:
            raise ValueError(f"the example is in 'en' and 'de'; got {source!r} and {target!r}")
        return example() if source == "en" else [(german, english) for english, german in example()]
    pairs = []
    files = files_in(directory, parts, source, target)
    for paths in zip(files[::2], files[1::2], strict=True):
        sides = [read_lines(path) for path in paths]
        if len(sides[0]) != len(sides[1]):
            least = min(map(len, sides))
            raise ValueError(
                f"{paths[0]} has {len(sides[0])} lines and {paths[1].name} has {len(sides[1])}, so line {least + 1} "
                "has no translation"
            )
        pairs += zip(*sides, strict=True)
    return pairs


def files_in(directory: str | os.PathLike[str], parts: Iterable[str], source: str, target: str) -> list[Path]:
    """The files that `read_directory` reads, two for each part. Raises ValueError if one is missing."""
    if os.fspath(directory) == "example":
        return []
    return [path_of(directory, f"{part}.{language}") for part in parts for language in (source, target)]


def path_of(directory: str | os.PathLike[str], name: str) -> Path:
    """The file of that name, or with `.gz` appended. Raises ValueError if there is none."""
    for path in (Path(directory) / name, Path(directory) / f"{name}.gz"):
        if path.is_file():
            return path
    with readable(directory, f"a directory with {name}"):
        names = sorted(os.listdir(directory))
    near = choices(name, names) if names else " It is empty."
    raise ValueError(f"{directory} has neither {name} nor {name}.gz.{near}")


def read_lines(path: Path) -> list[str]:
    """The lines. Raises ValueError, with the file and the line, if it cannot be read or a line is empty."""
    lines: list[str] = []
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with readable(path):
        try:
            with opened(path, "rb") as file:
                for number, line in decoded(file, path):
                    lines.append(line.strip())
                    if not lines[-1]:
                        raise ValueError(f"{path}, line {number}: it is empty; expected a sentence")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            what = "it is cut off" if isinstance(error, EOFError) else "it is not a complete gzip file"
            raise ValueError(f"{path}, line {len(lines) + 1}: {what}") from None
    if not lines:
        raise ValueError(f"{path} is empty; expected a sentence on each line")
    return lines


def contents_of(path: Path) -> bytes:
    """The unpacked contents of a file, as bytes."""
    contents = path.read_bytes()
    return gzip.decompress(contents) if path.suffix == ".gz" else contents


_ROOMS = {
    "forge": "Schmiede",
    "library": "Bücherei",
    "chapel": "Kapelle",
    "mill": "Mühle",
    "bakery": "Bäckerei",
    "kitchen": "Küche",
    "pantry": "Kammer",
    "tavern": "Schenke",
}
_THINGS = {
    "lamp": "Lampe",
    "rope": "Leine",
    "map": "Karte",
    "coin": "Münze",
    "bell": "Glocke",
    "drum": "Trommel",
    "vase": "Vase",
    "quilt": "Decke",
}
_ACTS = (
    ("walks into the {room}", "geht in die {room}"),
    ("picks up the {thing}", "hebt die {thing} auf"),
    ("leaves the {thing} in the {room}", "lässt die {thing} in der {room}"),
)


def example() -> list[Pair]:
    """400 pairs of one to four clauses, English and German: `ada picks up the map.` -> `Ada hebt die Karte auf.`."""
    pairs = []
    clauses = itertools.cycle(itertools.product(_ACTS, zip(_ROOMS, _THINGS, strict=True), stories.PEOPLE))
    for number in range(400):
        sides = []
        for (english, german), (room, thing), person in itertools.islice(clauses, 1 + number % 4):
            acts = english.format(room=room, thing=thing), german.format(room=_ROOMS[room], thing=_THINGS[thing])
            sides.append((f"{person} {acts[0]}", f"{person.capitalize()} {acts[1]}"))
            next(clauses)
        pairs.append((_joined([one for one, _ in sides], "and"), _joined([other for _, other in sides], "und")))
    return pairs


def _joined(clauses: Sequence[str], word: str) -> str:
    return f" {word} ".join(clauses) + "."
