"""Pairs of sequences: tab-separated columns, one JSON object in each line, or rows in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lenmem.data.files import decoded
from lenmem.errors import readable

Tokens = Literal["word", "character", "byte"]
Columns = tuple[str, str] | None
EXAMPLE = Path(__file__).with_name("reverse.tsv")
"""400 rows of up to ten colours and their reversals, as an example of such a file."""
MOST_CHARACTERS = 2**24
"""Most characters of rows in memory. Such rows are saved with every run."""


def read_pairs(path: str | os.PathLike[str], columns: Columns = None) -> Iterator[tuple[int, str, str]]:
    """Yields (line number, input, answer) for every line.

    A file whose name ends in `.jsonl` or `.json` has one object per line, and `columns` are two of its keys. Any other
    file has columns separated by tabs, and `columns` are two column numbers, from 0. None: the first two. No line is
    skipped.

    Raises:
        ValueError: if a line is not a pair of texts (the message has its number), or if the file cannot be read.
    """
    path = Path(path)
    read = _object if path.suffix in (".json", ".jsonl") else _fields
    number = 0
    with readable(path), open(path, "rb") as file:
        for number, line in decoded(file, path):
            try:
                row = read(line)
                columns = columns or _first_two(row)
                yield number, *_pair(row, columns)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not number:
        raise ValueError(f"{path} is empty; expected a pair of texts on each line")


class PairRows(tuple[tuple[str, str], ...]):
    """Pairs in memory. The hash is computed only once, and `repr` shows only the number of pairs."""

    def __hash__(self) -> int:
        if "hash" not in self.__dict__:
            self.__dict__["hash"] = super().__hash__()
        return self.__dict__["hash"]

    def __repr__(self) -> str:
        return f"<{len(self)} pairs>"


def pair_rows(rows: Iterable[Any], columns: Columns = None) -> PairRows:
    """The rows of any iterable: pairs of texts, or mappings of which `columns` are two keys (None: the first two).

    Raises:
        ValueError: if a row is not a pair of texts (the message has its index), if there are no rows, or if they are
            too long to be saved with a run.
    """
    if isinstance(rows, PairRows) and columns is None:
        return rows
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise ValueError(f"rows is a {type(rows).__name__}; it must be an iterable of pairs of texts, or of mappings")
    pairs, characters = [], 0
    for number, row in enumerate(rows):
        try:
            if isinstance(row, str) or not isinstance(row, Mapping | Sequence):
                raise ValueError(f"it is {row!r}; expected a pair of texts, or a mapping that has them")
            columns = columns or _first_two(row)
            pairs.append(_pair(row, columns))
        except ValueError as error:
            raise ValueError(f"rows[{number}]: {error}") from None
        characters += len(pairs[-1][0]) + len(pairs[-1][1])
        if characters > MOST_CHARACTERS:
            raise ValueError(
                f"rows have more than {MOST_CHARACTERS:,} characters, too many to be saved with every run; write them "
                "to a *.jsonl file, one object per line, and give its path"
            )
    if not pairs:
        raise ValueError("rows is empty; expected pairs of texts")
    return PairRows(pairs)


def _fields(line: str) -> list[str]:
    if "\t" not in line:
        raise ValueError("there is no tab; a table has columns separated by tabs, and other files must be *.jsonl")
    return line.split("\t")


def _object(line: str) -> dict[str, Any]:
    if not line.strip():
        raise ValueError("it is blank")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"it holds {type(row).__name__}; expected an object")
    return row


def _first_two(row: Mapping[str, Any] | Sequence[Any]) -> tuple[str, str]:
    if not isinstance(row, Mapping):
        return "0", "1"
    keys = [*row, "0", "1"]  # pads rows with fewer than two keys, so the missing one has a name in the message
    return keys[0], keys[1]


def _pair(row: Mapping[str, Any] | Sequence[Any], columns: tuple[str, str]) -> tuple[str, str]:
    """The texts in two columns of a row."""
    if isinstance(row, Mapping):
        for column in columns:
            if column not in row:
                raise ValueError(f"there is no key {column!r}; there are {', '.join(map(str, row)) or 'none'}")
        values = row[columns[0]], row[columns[1]]
    else:
        try:
            places = [int(column) for column in columns]
        except ValueError:
            raise ValueError(f"columns of a table are numbers from 0, got {columns}") from None
        if min(places) < 0 or max(places) >= len(row):
            raise ValueError(f"columns {columns[0]} and {columns[1]} are needed; it has {len(row)}")
        values = row[places[0]], row[places[1]]
    for column, value in zip(columns, values, strict=True):
        if not isinstance(value, str):
            raise ValueError(f"{column!r} is {value!r}; expected a text. `columns` names the input and the answer")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{column!r} is {value!r}, which has half of a surrogate pair") from None
    return values


def tokenised(line: str, tokens: Tokens) -> list[str]:
    """The tokens of a text: words separated by blanks, characters, or UTF-8 bytes as two hexadecimal digits."""
    if tokens == "word":
        return line.split()
    return list(line) if tokens == "character" else [f"{byte:02x}" for byte in line.encode()]
