"""Pairs of sequences that you bring, in a file or in memory, split by length.

All pairs are sorted by the length of their input; the network trains on the shorter ones and is tested on the longer
ones, as Le et al. (2024, sections 3.4 and D.4) do with question answering and translation, at 0.8 and at 0.5.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.pairs import EXAMPLE, Columns, PairRows, Tokens, pair_rows, read_pairs, tokenised
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import Count, Share
from lenmem.tasks.base import Split
from lenmem.tasks.rows import RowTask, share_of, split_off
from lenmem.types import Example, Spec

Version = tuple[str, int, int]
"""A file's absolute path, when it was last changed, in ns, and its size in bytes."""


@dataclasses.dataclass(frozen=True)
class Pairs(RowTask):
    """Input and answer of each line of a file, `red blue<TAB>blue red`, or of rows in memory. Length: tokens of the
    input.

    An id is given to every token there is, also to one that only long inputs have. Rows with the same input are never
    on both sides of a split.
    """

    path: str = "example"
    """A table with tabs, or a file *.jsonl with an object in each line; `example`: 400 rows of colours, reversed."""
    columns: Columns = None
    """Where input and answer are: numbers of columns from 0, or keys of the objects. None: the first two."""
    tokens: Tokens = "word"
    """What a token is: a word between blanks, a character, or a byte."""
    train_share: Share = 0.8
    """Share of the pairs, shortest inputs first, that is not the test. Inputs as long as the last may be in both."""
    validation_share: Share = 0.1
    """Share of the shorter inputs that is held out, at random."""
    length_given: bool = False
    """The model is told the length of the answer. False: it has slots for the longest one and ends it itself."""
    data_seed: Count = 0
    """Chooses what is held out."""
    rows: Iterable[Any] | None = None
    """In place of a file, from Python: an iterable of pairs of texts, or of mappings, as a Hugging Face dataset is.
    They are saved with the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it has to be above 0 and below 1")
        if self.rows is not None:
            if self.path != "example":
                raise ValueError(f"give either rows or a path, got both, the path {self.path}")
            object.__setattr__(self, "rows", pair_rows(self.rows, self.columns))
            object.__setattr__(self, "columns", None)  # The rows are pairs now.
        object.__setattr__(self, "_version", _version(self.read_path) if self.rows is None else None)

    @property
    def _identity(self) -> tuple[Any, ...]:
        """The fields, and which content of which file: tasks are keys of what was read and compiled."""
        return (*(getattr(self, field.name) for field in dataclasses.fields(self)), self.version)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pairs) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def version(self) -> Version | None:
        """Which file there was when the task was made; None for rows in memory, and where there was none."""
        return vars(self)["_version"]

    @property
    def read_path(self) -> str:
        """The file of `path`."""
        return str(EXAMPLE) if self.path == "example" else self.path

    @property
    def where(self) -> str:
        """What errors call the data."""
        return self.path if self.rows is None else "rows"

    @property
    def file(self) -> File:
        """What is read, once."""
        if isinstance(self.rows, PairRows):
            return _of_memory(self.rows, self.tokens)
        return _read(self.read_path, self.columns, self.tokens, self.version)

    @property
    def cut(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the file that are the shorter ones, and the longer ones, by length; those of one input together."""
        file = self.file
        order = np.lexsort((file.same, file.rows.input_lengths))
        starts = np.flatnonzero(np.diff(file.same[order])) + 1
        count = share_of(len(order), self.train_share)
        if not len(starts) or not 0 < count < len(order):
            raise ValueError(
                f"{self.where} has {len(order)} pairs of {len(starts) + 1} inputs, too few for a train_share of "
                f"{self.train_share}"
            )
        count = starts[max(np.searchsorted(starts, count, "right") - 1, 0)]
        return order[:count], order[count:]

    @property
    def train_lengths(self) -> tuple[int, int]:
        """Of the shorter inputs."""
        lengths = self.file.rows.input_lengths[self.cut[0]]
        return int(lengths[0]), int(lengths[-1])

    @property
    def test_lengths(self) -> tuple[int, int]:
        """Of the longer inputs."""
        lengths = self.file.rows.input_lengths[self.cut[1]]
        return int(lengths[0]), int(lengths[-1])

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The lengths that occur."""
        return tuple(np.unique(self.file.rows.input_lengths).tolist())

    @property
    def spec(self) -> Spec:
        """The tokens of inputs; those of answers and the end symbol, with ids of their own."""
        end = len(self.file.answer_tokens)
        return Spec(
            vocabulary=len(self.file.input_tokens),
            output_size=end + 1,
            length_rule="given" if self.length_given else "end",
            end_id=end,
            chance=self.file.chance,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The tokens; a blank is `_`."""
        return tuple("_" if token == " " else token for token in self.file.input_tokens)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The tokens and the end."""
        return (*("_" if token == " " else token for token in self.file.answer_tokens), "<eos>")

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): inputs of that length, and the longest answer of all with its end."""
        return capacity, self.file.rows.answers.shape[1] + 1

    def tables(self) -> dict[Split, Rows]:
        """The shorter pairs, less those held out; those; and the longer ones."""
        shorter, longer = self.cut
        same = self.file.same[shorter]
        held = share_of(len(np.unique(same)), self.validation_share)
        train, validation = split_off(self.file.rows[shorter], held, self.data_seed, same)
        test = self.file.rows[np.random.default_rng(self.data_seed).permutation(longer)]
        return {"train": train, "validation": validation, "test": test}

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Tokens of the input."""
        return rows.input_lengths

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """Validation and test; training pairs for lengths of which none is held out."""
        held = np.concatenate([tables[split].input_lengths for split in ("validation", "test")])
        train = tables["train"]
        parts = (tables["validation"], tables["test"], train[~np.isin(train.input_lengths, held)])
        return Rows(*(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)))

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One pair; padding is 0."""
        inputs, length, answer, answer_length = (array.astype(jnp.int32) for array in row)
        inputs = jnp.pad(inputs, (0, max(0, capacity - inputs.shape[0])))[:capacity]
        slot = jnp.arange(answer.shape[0] + 1)
        score_mask = slot <= answer_length
        end = len(self.file.answer_tokens)
        targets = jnp.where(slot < answer_length, jnp.append(answer, 0), jnp.where(score_mask, end, 0))
        target_mask = score_mask if self.length_given else jnp.ones_like(score_mask)
        return Example(inputs, jnp.arange(capacity) < length, targets, target_mask, score_mask)


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """What a file of pairs, or rows in memory, hold."""

    rows: Rows
    same: np.ndarray
    """int[R]: the first row with the same input."""
    input_tokens: tuple[str, ...]
    answer_tokens: tuple[str, ...]
    chance: float
    """Token accuracy of the best constant answer, the end being one."""


def _version(path: str) -> Version | None:
    if not os.path.exists(path):
        return None
    state = os.stat(path)
    return os.path.abspath(path), state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=4)
def _read(path: str, columns: Columns, tokens: Tokens, version: Version | None) -> File:
    return _file(((f"{path}, line {number}", *texts) for number, *texts in read_pairs(path, columns)), tokens)


@functools.lru_cache(maxsize=4)
def _of_memory(rows: PairRows, tokens: Tokens) -> File:
    return _file(((f"rows[{number}]", *texts) for number, texts in enumerate(rows)), tokens)


def _file(pairs: Iterable[tuple[str, ...]], tokens: Tokens) -> File:
    """Of (where it stands, input, answer)."""
    inputs, answers = [], []
    for where, *texts in pairs:
        split = [tokenised(text, tokens) for text in texts]
        if not split[0]:
            raise ValueError(f"{where}: the input {texts[0]!r} has no {tokens}")
        inputs.append(split[0])
        answers.append(split[1])
    first: dict[tuple[str, ...], int] = {}
    same = np.array([first.setdefault(tuple(row), number) for number, row in enumerate(inputs)])
    names = [tuple(sorted({token for row in side for token in row})) for side in (inputs, answers)]
    ids = [{token: number for number, token in enumerate(of_side)} for of_side in names]
    numbered = [[[of[token] for token in row] for row in side] for of, side in zip(ids, (inputs, answers), strict=True)]
    rows = make_rows(numbered[0], numbered[1])
    slots = rows.answer_lengths + 1
    shares = np.zeros(len(names[1]) + 1)
    weights = np.repeat(1 / slots, rows.answer_lengths)
    real = np.arange(rows.answers.shape[1]) < rows.answer_lengths[:, None]
    np.add.at(shares, rows.answers[real].astype(int), weights)
    shares[-1] = np.sum(1 / slots)
    return File(rows, same, names[0], names[1], float(shares.max() / len(rows)))
