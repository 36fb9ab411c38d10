"""Reads text files. Errors name the file and the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lenmem.errors import readable

BOM = "\ufeff"
"""The mark with which some programs begin a file in UTF-8; it is not part of the text."""


def text_of(path: str | os.PathLike[str], expected: str) -> str:
    """The text of a file. Raises ValueError, with `expected`, if it cannot be read, or with the line if it is not
    UTF-8."""
    raw = b""
    try:
        with readable(path, expected):
            raw = Path(path).read_bytes()
        return raw.decode("utf-8").removeprefix(BOM)
    except UnicodeDecodeError as error:
        first = raw.rfind(b"\n", 0, error.start) + 1
        raise _not_utf8(path, raw.count(b"\n", 0, first) + 1, error.start - first) from None


def lines_of(path: str | os.PathLike[str], expected: str) -> list[str]:
    """The lines of a file, without their ends. Raises ValueError as `text_of` and `decoded` do."""
    text = text_of(path, expected).replace("\r\n", "\n")
    before, cr, _ = text.partition("\r")
    if cr:
        raise _carriage_return(path, before.count("\n") + 1)
    return text.removesuffix("\n").split("\n") if text else []


def decoded(lines: Iterable[bytes], path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line without its end) for the lines of a file. Raises ValueError if one is not UTF-8, or
    has a carriage return, which ends the lines of some old files."""
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode("utf-8").rstrip("\r\n")
            if "\r" in text:
                raise _carriage_return(path, number)
            yield number, text.removeprefix(BOM) if number == 1 else text
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, error.start) from None


def _carriage_return(path: str | os.PathLike[str], line: int) -> ValueError:
    return ValueError(f"{path}, line {line}: a carriage return; lines must end with a line feed")


def _not_utf8(path: str | os.PathLike[str], line: int, byte: int) -> ValueError:
    return ValueError(f"{path}, line {line}: it is not UTF-8, from byte {byte} on")
