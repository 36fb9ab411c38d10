"""Files of pairs of sequences: tab-separated columns, or one JSON object in each line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Tokens = Literal["word", "character", "byte"]
EXAMPLE = Path(__file__).with_name("reverse.tsv")
"""400 rows of up to ten colours, and the same backwards: what such a file looks like."""


def read_pairs(path: str | os.PathLike[str], columns: tuple[str, str] = ("0", "1")) -> Iterator[tuple[int, str, str]]:
    """(line number, input, answer) of every line, read one by one.

    A file whose name ends in `.jsonl` or `.json` has an object in each line, and `columns` are two of its keys; every
    other file has columns separated by tabs, and `columns` are two of their numbers, from 0. No line is left out.

    Raises:
        ValueError: with the number of the line, for whatever is not a pair of texts; or where the file cannot be read.
    """
    path = Path(path)
    of_line = _of_object if path.suffix in (".json", ".jsonl") else _of_columns
    number = 0
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8").rstrip("\r\n")
                    yield number, *of_line(line, columns)
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}, line {number}: it is not UTF-8, from byte {error.start} on") from None
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    if not number:
        raise ValueError(f"{path} is empty; wanted is a pair of texts in each line")


def _of_columns(line: str, columns: tuple[str, str]) -> tuple[str, str]:
    parts = line.split("\t")
    try:
        places = [int(column) for column in columns]
    except ValueError:
        raise ValueError(f"columns of a table are numbers from 0, got {columns}") from None
    if min(places) < 0 or max(places) >= len(parts):
        raise ValueError(f"columns {columns[0]} and {columns[1]} are wanted; it has {len(parts)}, separated by tabs")
    return parts[places[0]], parts[places[1]]


def _of_object(line: str, columns: tuple[str, str]) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"it holds {type(row).__name__}; wanted is an object")
    values = []
    for column in columns:
        if column not in row:
            raise ValueError(f"there is no key {column!r}; there are {', '.join(row) or 'none'}")
        if not isinstance(row[column], str):
            raise ValueError(f"{column!r} is {row[column]!r}; wanted is a text")
        values.append(row[column])
    return values[0], values[1]


def tokenised(line: str, tokens: Tokens) -> list[str]:
    """The tokens of a text: words between blanks, characters, or the bytes of its UTF-8, written as two digits."""
    if tokens == "word":
        return line.split()
    return list(line) if tokens == "character" else [f"{byte:02x}" for byte in line.encode()]
