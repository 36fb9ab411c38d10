"""SQuAD 1.1, questions about paragraphs (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250), from its two files.

    {"version": "1.1", "data": [
        {"title": "...", "paragraphs": [
            {"context": "...", "qas": [
                {"id": "...", "question": "...", "answers": [{"answer_start": 17, "text": "..."}]}]}]}]}

An answer is a span of the context; `answer_start` is the index of its first character. Questions of `train` have one
answer, those of `dev` several, each of which is right.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lenmem.data import stories
from lenmem.data.files import text_of

FILES = {"train-v1.1.json": 87_599, "dev-v1.1.json": 10_570}
"""The published files, which are joined, and their numbers of questions."""


class Question(NamedTuple):
    """A question about a context."""

    identity: str
    context: str
    question: str
    answers: tuple[tuple[int, str], ...]
    """(index of the first character in the context, text), at least one."""


def read_directory(directory: str | os.PathLike[str]) -> list[Question]:
    """The questions of both files, in order. The directory `example` is in memory.

    Raises:
        ValueError: if a file is missing or wrong, with its name and the place in it.
    """
    if os.fspath(directory) == "example":
        return [question for name, contents in example().items() for question in parsed(contents, f"example {name}")]
    return [question for path in files_in(directory) for question in read_file(path)]


def files_in(directory: str | os.PathLike[str]) -> list[Path]:
    """The files that `read_directory` reads."""
    return [] if os.fspath(directory) == "example" else [Path(directory) / name for name in FILES]


def read_file(path: str | os.PathLike[str]) -> list[Question]:
    """The questions of a file, in order. An answer that is not at its `answer_start` is taken from the nearest place.

    Raises ValueError with the file and the place in it.
    """
    text = text_of(path, f"a directory with {' and '.join(FILES)}")
    try:
        contents = json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        what = "it is cut off" if cut else error.msg
        raise ValueError(f"{path}, line {error.lineno}, column {error.colno}: it is not JSON ({what})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets as deep
        raise ValueError(f"{path}: it cannot be read as JSON ({error})") from None
    return list(parsed(contents, str(path)))


def parsed(contents: Any, where: str) -> Iterator[Question]:
    """The questions in the contents of a file. Raises ValueError with `where` and the place, as `data[0].title`."""
    count = 0
    for at, paragraph in _paragraphs(contents, where):
        context = _of(paragraph, "context", str, at)
        for number, asked in enumerate(_of(paragraph, "qas", list, at)):
            place = f"{at}.qas[{number}]"
            answers = tuple(
                _answer(answer, context, f"{place}.answers[{i}]")
                for i, answer in enumerate(_of(asked, "answers", list, place))
            )
            if not answers:
                raise ValueError(f"{place}: it has no answer; in SQuAD 1.1 every question has one")
            count += 1
            yield Question(_of(asked, "id", str, place), context, _of(asked, "question", str, place), answers)
    if not count:
        raise ValueError(f"{where}: it has no question")


def _paragraphs(contents: Any, where: str) -> Iterator[tuple[str, Any]]:
    for number, article in enumerate(_of(contents, "data", list, where, "")):
        place = f"{where}, data[{number}]"
        for i, paragraph in enumerate(_of(article, "paragraphs", list, place)):
            yield f"{place}.paragraphs[{i}]", paragraph


def _of(entry: Any, name: str, kind: type, place: str, dot: str = ".") -> Any:
    """A field of an entry. Raises ValueError if it is missing or has another type."""
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: got {json.dumps(entry)[:60]}; expected an object with {name!r}")
    if name not in entry:
        raise ValueError(f"{place}: there is no {name!r}; it has {', '.join(map(repr, entry)) or 'nothing'}")
    value = entry[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {str: "a text", list: "a list", int: "a whole number"}[kind]
        raise ValueError(f"{place}{dot or ', '}{name}: got {json.dumps(value)[:60]}; expected {wanted}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            got = json.dumps(value)[:60]
            raise ValueError(f"{place}{dot or ', '}{name}: got {got}, which has half of a surrogate pair") from None
    return value


def _answer(answer: Any, context: str, place: str) -> tuple[int, str]:
    start, text = _of(answer, "answer_start", int, place), _of(answer, "text", str, place)
    if not text.strip():
        raise ValueError(f"{place}: its text is empty")
    if not 0 <= start < len(context):
        raise ValueError(f"{place}: answer_start is {start}; its context has {len(context)} characters")
    if context.startswith(text, start):
        return start, text
    places = list(_occurrences(text, context))
    if not places:
        raise ValueError(f"{place}: {text[:60]!r} is not in its context")
    return min(places, key=lambda at: abs(at - start)), text


def _occurrences(text: str, context: str) -> Iterator[int]:
    at = context.find(text)
    while at >= 0:
        yield at
        at = context.find(text, at + 1)


_ROOMS = ("forge", "library", "chapel", "mill", "bakery", "kitchen", "pantry", "tavern")
_THINGS = ("lamp", "rope", "map", "coin", "bell", "drum", "vase", "quilt")


def people() -> tuple[str, ...]:
    """The names of people in the example."""
    return tuple(name.capitalize() for name in stories.PEOPLE)


def example(paragraphs: int = 120) -> dict[str, dict[str, Any]]:
    """The contents of both files, in the published form, with 240 questions about paragraphs of one to eight sentences.

    `Ada took the old map to the forge.` `Where is the map?` -> `the forge`; `Who took the map?` -> `Ada`.
    """
    made: list[dict[str, Any]] = []
    someone = itertools.cycle(people())
    for number in range(paragraphs):
        count = 1 + number % 8
        facts = [
            (next(someone), _THINGS[(number + i) % 8], _ROOMS[(3 * number + 5 * i + number // 8) % 8])
            for i in range(count)
        ]
        context = " ".join(f"{person} took the old {thing} to the {room}." for person, thing, room in facts)
        person, thing, room = facts[(5 * number) % count]
        sentence = context.index(f"{person} took the old {thing}")
        asked = [(f"Where is the {thing}?", f"the {room}"), (f"Who took the {thing}?", person)]
        qas = [
            {
                "id": f"{number}-{i}",
                "question": question,
                "answers": [{"answer_start": context.index(answer, sentence), "text": answer}],
            }
            for i, (question, answer) in enumerate(asked)
        ]
        made.append({"context": context, "qas": qas})
    cut = 5 * paragraphs // 6
    for asked in (asked for paragraph in made[cut:] for asked in paragraph["qas"]):
        (first,) = asked["answers"]
        text = first["text"].removeprefix("the ")
        skipped = len(first["text"]) - len(text)
        asked["answers"].append({"answer_start": first["answer_start"] + skipped, "text": text})
    parts = zip(FILES, (made[:cut], made[cut:]), strict=True)
    return {name: {"data": [{"title": "Things", "paragraphs": part}], "version": "1.1"} for name, part in parts}
