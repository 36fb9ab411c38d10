"""FLaRe, strings with labels (Butoi et al. 2025, https://github.com/rycolab/flare).

A language is a directory with a directory for each split (`SPLITS`). Each of these has, with a line for each string,

    main.tok             its tokens, separated by blanks; an empty line is the empty string
    labels.txt           1 if it belongs to the language, else 0
    next-symbols.jsonl   only for strings of the language, in order: an object for each prefix, from the empty one on,
                         where `s` has the tokens that may follow, separated by blanks, and `e` whether it may end

Other files are not read. Wrong contents raise ValueError with the file and the line.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from lenmem.data.files import lines_of

SPLITS = {
    "train": "",
    "validation": "datasets/validation-short",
    "validation_long": "datasets/validation-long",
    "test_short": "datasets/test-short-held-out",
    "test": "datasets/test",
}
"""split -> its directory, relative to that of the language."""
OPTIONAL = ("test_short",)
"""Splits without which a language is complete: the published `repeat-01` has no short strings to hold out."""
EXPECTED = "a directory of FLaRe"
"""The expected contents, for error messages."""


class Following(NamedTuple):
    """The tokens that may follow a prefix, and whether the string may end after it."""

    tokens: frozenset[str]
    end: bool


class String(NamedTuple):
    """A string and its annotations."""

    tokens: tuple[str, ...]
    label: bool
    """Whether the string belongs to the language."""
    following: tuple[Following, ...] = ()
    """For each prefix, from the empty one to the complete string. Empty if not read, and for strings that do not belong
    to the language."""


def read_language(directory: str, *, following: bool) -> dict[str, list[String]]:
    """The strings of all splits. The directory `example` is in memory: bits with an even number of ones.

    Without `following`, `next-symbols.jsonl` is not read: it is much larger than the other files.
    """
    if directory == "example":
        return _example()
    return {split: read_strings(folder, following=following) for split, folder in folders_of(directory).items()}


def folders_of(directory: str | Path) -> dict[str, Path]:
    """split -> its directory, without those `OPTIONAL` ones that are not there."""
    found = {split: Path(directory) / folder for split, folder in SPLITS.items()}
    return {split: folder for split, folder in found.items() if split not in OPTIONAL or folder.exists()}


def files_of(directory: str, *, following: bool) -> list[Path]:
    """The files that `read_language` reads."""
    if directory == "example":
        return []
    names = ("main.tok", "labels.txt", *(["next-symbols.jsonl"] if following else []))
    return [folder / name for folder in folders_of(directory).values() for name in names]


def read_strings(directory: Path, *, following: bool) -> list[String]:
    """The strings of one directory, in order."""
    strings, labels = (lines_of(directory / name, EXPECTED) for name in ("main.tok", "labels.txt"))
    if not strings:
        raise ValueError(f"{directory / 'main.tok'} is empty; expected a string on each line")
    for number, label in enumerate(labels, 1):
        if label not in ("0", "1"):
            raise ValueError(f"{directory / 'labels.txt'}, line {number}: got {label!r}; a label is 0 or 1")
    _same_count(directory / "labels.txt", len(labels), directory / "main.tok", len(strings))
    found = [String(tuple(line.split()), label == "1") for line, label in zip(strings, labels, strict=True)]
    if not following:
        return found
    path = directory / "next-symbols.jsonl"
    known = lines_of(path, EXPECTED)
    _same_count(path, len(known), directory / "labels.txt", labels.count("1"), "ones")
    rest = enumerate(known, 1)
    return [s._replace(following=_following(path, *next(rest), s.tokens)) if s.label else s for s in found]


def _same_count(path: Path, count: int, other: Path, wanted: int, what: str = "lines") -> None:
    if count != wanted:
        raise ValueError(
            f"{path}, line {min(count, wanted) + 1}: it has {count} lines, but {other.name} has {wanted} {what}"
        )


def _following(path: Path, number: int, line: str, tokens: tuple[str, ...]) -> tuple[Following, ...]:
    where = f"{path}, line {number}"
    try:
        prefixes: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: it is not valid JSON ({error})") from None
    if not isinstance(prefixes, list) or len(prefixes) != len(tokens) + 1:
        got = f"{len(prefixes)} objects" if isinstance(prefixes, list) else type(prefixes).__name__
        raise ValueError(f"{where}: it has {got}; its string has {len(tokens)} tokens, so {len(tokens) + 1} are needed")
    found = []
    for entry in prefixes:
        if not (isinstance(entry, dict) and isinstance(entry.get("s"), str) and isinstance(entry.get("e"), bool)):
            got = json.dumps(entry)[:60]
            raise ValueError(f'{where}: got {got}; an object is {{"s": "<tokens>", "e": <true or false>}}')
        found.append(Following(frozenset(entry["s"].split()), entry["e"]))
    for token, after in zip(tokens, found, strict=False):
        if token not in after.tokens:
            raise ValueError(f"{where}: {token!r} follows in its string, but not among {sorted(after.tokens)}")
    if not found[-1].end:
        raise ValueError(f"{where}: its string ends where the language does not allow it")
    return tuple(found)


def _example() -> dict[str, list[String]]:
    rng = random.Random(0)

    def string(longest: int) -> String:
        bits = [rng.randrange(2) for _ in range(rng.randint(0, longest))]
        even = [sum(bits[:n]) % 2 == 0 for n in range(len(bits) + 1)]
        following = tuple(Following(frozenset("01"), end) for end in even) if even[-1] else ()
        return String(tuple(map(str, bits)), even[-1], following)

    longest = {"train": 8, "validation": 8, "validation_long": 16, "test_short": 8, "test": 32}
    return {split: [string(longest[split]) for _ in range(400)] for split in SPLITS}
