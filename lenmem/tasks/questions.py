"""Questions about stories, answered in words: bAbI (Weston et al. 2015, https://arxiv.org/abs/1502.05698).

Le et al. (2024, section 3.4, appendix D.4, Table 3) merge all splits of a bAbI task, sort them by the length of the
story, train on the shortest 80% or 50% of each task, jointly on all twenty tasks, and test on the longer ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from lenmem.data import babi
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import PositiveInt, UnitInterval, between
from lenmem.tasks.base import Split, evenly_spaced
from lenmem.tasks.rows import FileTask, SplitSeed, share_of, split_off
from lenmem.tasks.text import TextTask

MOST_WORDS = 255


@dataclasses.dataclass(frozen=True, eq=False)
class Babi(FileTask, TextTask):
    """`mary moved to the bathroom . where is mary ?` -> `bathroom`. Length: words of story and question.

    Each task is sorted by the number of words in its stories and cut. Stories of the length at the cut may be on both
    sides. Splits: `train`, `validation`, `test`, and `task_<n>`, the test questions of one task.
    """

    unit: ClassVar[str] = "words"
    sampled_with_training: ClassVar[bool] = True

    directory: str = "example"
    """A directory of the published files, such as tasks_1-20_v1-2/en-10k; `example`: nine tasks of generated
    stories."""
    tasks: tuple[Annotated[int, between(1, babi.TASKS)], ...] | None = None
    """Numbers of the tasks that are learned together. None: all tasks of the directory (twenty; nine for `example`)."""
    train_share: UnitInterval = 0.8
    """Fraction of each task for training and validation, those with the shortest stories. The rest is the test."""
    validation_share: UnitInterval = 0.1
    """Fraction of the shorter questions that is held out, at random. 0: none, and the split `validation` is empty."""
    last_sentences: PositiveInt = 130
    """Most sentences of a story; only the last are read. The default is that of Le et al. (2020), whose protocol Le et
    al. (2024) follow."""
    vocabulary_size: Annotated[int, between(1, MOST_WORDS)] = 200
    """Number of word ids; there may be fewer words. The twenty tasks have about 180."""
    answer_words: Annotated[int, between(1, 16)] = 5
    """Most words of an answer."""
    data_seed: SplitSeed = 0
    """Seed of the choice of held-out questions, and of the order of all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it must be above 0 and below 1")
        if self.tasks is not None and (not self.tasks or len(set(self.tasks)) < len(self.tasks)):
            raise ValueError(f"tasks is {self.tasks}; give different numbers, at least one, or None for all")

    def files(self) -> Sequence[Path]:
        """The files of all splits of the tasks."""
        return [path for path, _ in babi.files_in(self.directory, self.tasks)]

    @property
    def contents(self) -> Contents:
        """The questions, read once."""
        return _contents(self)

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The shortest and the longest question of each split."""
        return self.contents.lengths

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The lengths of the shorter questions of all tasks."""
        return self.splits["train"]

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The lengths of the longer questions of each task. They overlap with training, as tasks differ in length."""
        return self.splits["test"]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Up to 32 test lengths, evenly spaced."""
        found = np.unique(self.contents.tables["test"].input_lengths)
        return tuple(evenly_spaced(found))

    @property
    def end(self) -> int:
        """The id of the end symbol."""
        return self.vocabulary_size

    @property
    def input_names(self) -> tuple[str, ...]:
        """The words, and names of unused ids."""
        known = self.contents.words
        return (*known, *(f"<{number}>" for number in range(len(known), self.vocabulary_size)))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the words; the longest answer and the end symbol."""
        return capacity, self.answer_words + 1

    def tables(self) -> dict[Split, Rows]:
        """Training (shorter questions), validation (held out from these), test (longer ones), and each task's test."""
        return self.contents.tables


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The questions of a bAbI directory."""

    words: tuple[str, ...]
    tables: dict[Split, Rows]
    lengths: dict[Split, tuple[int, int]]
    """The shortest and the longest question of each split, in words."""


@functools.lru_cache(maxsize=4)
def _contents(task: Babi) -> Contents:
    where = task.directory
    questions = babi.read_directory(where, task.tasks)
    names = sorted({word for one in questions for words in (*one.story, one.question, one.answer) for word in words})
    if len(names) > task.vocabulary_size:
        raise ValueError(f"{where} has {len(names)} different words; vocabulary_size is {task.vocabulary_size}")
    id_of = {word: number for number, word in enumerate(names)}
    code = functools.cache(lambda sentence: bytes(id_of[word] for word in sentence))
    shorter: list[babi.Question] = []
    tables: dict[Split, Rows] = {}
    longer: list[babi.Question] = []

    def rows(some: Sequence[babi.Question]) -> Rows:
        for one in some:
            if len(one.answer) > task.answer_words:
                raise ValueError(
                    f"{where}: the answer {','.join(one.answer)!r} of task {one.task} has {len(one.answer)} words; "
                    f"answer_words is {task.answer_words}"
                )
        inputs = [b"".join(map(code, (*one.story[-task.last_sentences :], one.question))) for one in some]
        return make_rows(inputs, [code(one.answer) for one in some])

    def shuffled(some: Rows) -> Rows:  # so that the first rows have all lengths
        return some[np.random.default_rng(task.data_seed).permutation(len(some))]

    for number in dict.fromkeys(one.task for one in questions):
        found = sorted((one for one in questions if one.task == number), key=lambda one: sum(map(len, one.story)))
        count = share_of(len(found), task.train_share)
        if not 0 < count < len(found):
            raise ValueError(
                f"{where} has {len(found)} questions of task {number}, too few for a train_share of {task.train_share}"
            )
        shorter += found[:count]
        longer += found[count:]
        tables[f"task_{number}"] = shuffled(rows(found[count:]))
    train, validation = split_off(rows(shorter), share_of(len(shorter), task.validation_share), task.data_seed)
    tables = {"train": train, "validation": validation, "test": shuffled(rows(longer))} | tables
    lengths = {
        split: (int(part.input_lengths.min()), int(part.input_lengths.max()))
        for split, part in tables.items()
        if len(part)
    }
    return Contents(tuple(names), tables, {"validation": lengths["train"]} | lengths)
