"""bAbI, questions about short stories (Weston et al. 2015, https://arxiv.org/abs/1502.05698), from its published files.

A directory (`en`, `en-10k`, `en-valid` or `en-valid-10k` of tasks_1-20_v1-2) has files for each of twenty tasks, for
`train` and `test` and in some directories `valid`: `qa1_single-supporting-fact_train.txt` or `qa1_train.txt`.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary?<TAB>bathroom<TAB>1

Numbering restarts at 1 with each story. A question is followed by its answer, with commas between several words, and
the numbers of its supporting sentences, possibly none. It refers to all sentences of its story above it.
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lenmem.data import stories
from lenmem.data.files import decoded
from lenmem.errors import choices, readable

TASKS = 20
SPLITS = ("train", "valid", "test")
DIRECTORIES = {
    "en": {"train": 1000, "test": 1000},
    "en-10k": {"train": 10_000, "test": 1000},
    "en-valid": {"train": 900, "valid": 100, "test": 1000},
    "en-valid-10k": {"train": 9000, "valid": 1000, "test": 1000},
}
"""The published directories: split -> number of questions of each task."""
Sentence = tuple[str, ...]


class Question(NamedTuple):
    """A question about a story, as words in lower case. Punctuation marks are words."""

    task: int
    """1 .. 20."""
    story: tuple[Sentence, ...]
    question: Sentence
    answer: Sentence


def read_directory(directory: str | os.PathLike[str], tasks: Iterable[int] | None = None) -> list[Question]:
    """All questions of these tasks (None: all) in all splits, ordered by task, split and line.

    The directory `example` is in memory: stories of `lenmem.data.stories` for nine of the twenty tasks.

    Raises:
        ValueError: if a file is missing or wrong, with its name and line.
    """
    if os.fspath(directory) == "example":
        return _example(tasks)
    return [question for path, task in files_in(directory, tasks) for question in read_file(path, task)]


def files_in(directory: str | os.PathLike[str], tasks: Iterable[int] | None = None) -> list[tuple[Path, int]]:
    """(file, task) in the order in which `read_directory` reads them; none for `example`. Raises ValueError if one is
    missing."""
    if os.fspath(directory) == "example":
        return []
    tasks = range(1, TASKS + 1) if tasks is None else tasks
    return [(path, task) for task in tasks for path in files_of(directory, task).values()]


def files_of(directory: str | os.PathLike[str], task: int) -> dict[str, Path]:
    """split -> the file of a task. `valid` may be missing. Raises ValueError if another file is missing, or if a split
    has two files."""
    found: dict[str, Path] = {}
    with readable(directory, "a directory of bAbI such as tasks_1-20_v1-2/en-10k"):
        names = sorted(os.listdir(directory))
    for split in SPLITS:
        of_split = [name for name in names if re.fullmatch(rf"qa{task}(_[a-z-]+)?_{split}\.txt", name)]
        if len(of_split) > 1:
            raise ValueError(f"{directory} has {of_split[0]} and {of_split[1]}; expected one file of a task and split")
        if not of_split and split != "valid":
            near = choices(f"qa{task}_{split}.txt", names) if names else " It is empty."
            raise ValueError(f"{directory} has no file qa{task}_*_{split}.txt.{near}")
        if of_split:
            found[split] = Path(directory) / of_split[0]
    return found


def read_file(path: str | os.PathLike[str], task: int) -> list[Question]:
    """The questions of a file, in order. Raises ValueError with the file and the line."""
    found: list[Question] = []
    story: list[Sentence] = []
    number, last, is_question = 0, 0, False
    with readable(path, "a file of bAbI"), open(path, "rb") as file:
        for number, line in decoded(file, path):
            try:
                last, asked = _line(line, last)
                if last == 1:
                    story = []
                is_question = len(asked) == 3
                if is_question:
                    found.append(_question(asked, story, last, task))
                else:
                    story = [*story, words(asked[0])]
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not is_question:
        raise ValueError(f"{path}, line {number}: the file ends in a story, without a question; it is cut off or empty")
    return found


@functools.lru_cache(maxsize=2**16)
def words(text: str) -> Sentence:
    """`Where is Mary?` -> where, is, mary, ?"""
    return tuple(re.findall(r"[\w'-]+|[^\w\s]", text.lower()))


def _line(line: str, last: int) -> tuple[int, list[str]]:
    """(number, fields) of a line."""
    numbered = re.fullmatch(r"(\d+) (\S.*)", line)
    if not numbered:
        raise ValueError(f"got {line[:60]!r}; a line is a number, a blank, and a sentence or a question")
    number, fields = int(numbered[1]), numbered[2].split("\t")
    if number not in (1, last + 1):
        raise ValueError(f"its number is {number}; after {last} comes {last + 1}, or 1 in a new story")
    if len(fields) not in (1, 3):
        raise ValueError(
            f"it has {len(fields)} fields; a question has three, with tabs between: itself, answer, support"
        )
    return number, fields


def _question(fields: list[str], story: list[Sentence], number: int, task: int) -> Question:
    text, answer, support = fields
    if not story:
        raise ValueError("a question comes before the first sentence of its story")
    answer_words = tuple(word for part in answer.split(",") for word in words(part))
    if not answer_words or not words(text):
        raise ValueError(f"got the question {text!r} with the answer {answer!r}; neither may be empty")
    if not all(word.isdecimal() and 0 < int(word) < number for word in support.split()):
        raise ValueError(f"its support is {support!r}; expected numbers of sentences above it")
    return Question(task, tuple(story), words(text), answer_words)


def _example(tasks: Iterable[int] | None) -> list[Question]:
    kind_of = dict(zip(stories.BABI.values(), stories.KINDS, strict=True))
    found = []
    for task in kind_of if tasks is None else tasks:
        if task not in kind_of:
            known = ", ".join(map(str, kind_of))
            raise ValueError(f"the example has no task {task}, only {known}; a directory of bAbI has 1 to {TASKS}")
        rng, shortest = random.Random(task), stories.SHORTEST[kind_of[task]]
        for _ in range(60):
            drawn = stories.story(rng, kind_of[task], rng.randint(shortest, shortest + 6))
            found.append(Question(task, drawn.sentences, drawn.question, drawn.answer))
    return found
