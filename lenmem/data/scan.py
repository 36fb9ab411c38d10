"""The lines of the SCAN data set (https://github.com/brendenlake/SCAN): `IN: jump twice OUT: I_JUMP I_JUMP`."""

from __future__ import annotations

import os

from lenmem.data.files import lines_of
from lenmem.data.tfds import examples, text

Pair = tuple[tuple[str, ...], tuple[str, ...]]
"""(words of the command, actions)."""


def parse_line(line: str) -> Pair | None:
    """Command and actions of one line; None if the line has another form."""
    words = line.split()
    if not words or words[0] != "IN:" or words.count("OUT:") != 1:
        return None
    at = words.index("OUT:")
    return tuple(words[1:at]), tuple(words[at + 1 :])


def read_file(path: str | os.PathLike[str]) -> list[Pair]:
    """The pairs of a file in the official form, in order (`tasks.txt`, or a split's file).

    Raises:
        ValueError: if the file is missing or a line has another form, with the line.
    """
    pairs = []
    for number, line in enumerate(lines_of(path, "SCAN's tasks.txt"), 1):
        pair = parse_line(line)
        if pair is None:
            raise ValueError(f"{path}, line {number}: got {line!r}; a line is `IN: <command> OUT: <actions>`")
        pairs.append(pair)
    if not pairs:
        raise ValueError(f"{path} is empty; a line is `IN: <command> OUT: <actions>`")
    return pairs


def read_tfds() -> list[Pair]:
    """All pairs of TFDS's `scan/length`, its training split first."""
    return [
        (tuple(text(command).split()), tuple(text(actions).split()))
        for split in ("train", "test")
        for command, actions in examples("scan/length", split, ("commands", "actions"))
    ]
