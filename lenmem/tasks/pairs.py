"""Pairs of sequences from a file that you bring, split by length.

All pairs are sorted by the length of their input; the network trains on the shorter ones and is tested on the longer
ones, as Le et al. (2024, sections 3.4 and D.4) do with question answering and translation, at 0.8 and at 0.5.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.pairs import EXAMPLE, read_pairs, tokenised
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import Count, Share
from lenmem.tasks.base import Split
from lenmem.tasks.rows import RowTask, split_off
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class Pairs(RowTask):
    """Input and answer of each line of a file, `red blue<TAB>blue red`. Length: tokens of the input.

    An id is given to every token of the file, also to one that only long inputs have.
    """

    path: str = "example"
    """A table with tabs, or a file *.jsonl with an object in each line; `example`: 400 rows of colours, reversed."""
    columns: tuple[str, str] = ("0", "1")
    """Where input and answer are: numbers of columns from 0, or keys of the objects."""
    tokens: Literal["word", "character", "byte"] = "word"
    """What a token is: a word between blanks, a character, or a byte."""
    train_share: Share = 0.8
    """Share of the pairs, shortest inputs first, that is not the test. Inputs as long as the last may be in both."""
    validation_share: Share = 0.1
    """Share of the shorter pairs that is held out, at random."""
    length_given: bool = False
    """The model is told the length of the answer. False: it has slots for the longest one and ends it itself."""
    data_seed: Count = 0
    """Chooses what is held out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it has to be above 0 and below 1")

    @property
    def file(self) -> File:
        """What is read: once, as long as the file does not change."""
        path = str(EXAMPLE) if self.path == "example" else self.path
        changed = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
        return _read(path, self.columns, self.tokens, changed)

    @property
    def cut(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the file that are the shorter ones, and the longer ones, by length."""
        lengths = self.file.rows.input_lengths
        order = np.argsort(lengths, kind="stable")
        count = int(len(order) * self.train_share)
        if not 0 < count < len(order):
            raise ValueError(f"{self.path} has {len(order)} pairs, too few for a train_share of {self.train_share}")
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
        train, validation = split_off(self.file.rows[shorter], self.validation_share, self.data_seed)
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
    """What a file of pairs holds."""

    rows: Rows
    input_tokens: tuple[str, ...]
    answer_tokens: tuple[str, ...]
    chance: float
    """Token accuracy of the best constant answer, the end being one."""


@functools.lru_cache(maxsize=4)
def _read(path: str, columns: tuple[str, str], tokens: Literal["word", "character", "byte"], changed: int) -> File:
    inputs, answers = [], []
    for number, *texts in read_pairs(path, columns):
        split = [tokenised(text, tokens) for text in texts]
        if not split[0]:
            raise ValueError(f"{path}, line {number}: the input {texts[0]!r} has no {tokens}")
        inputs.append(split[0])
        answers.append(split[1])
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
    return File(rows, names[0], names[1], float(shares.max() / len(rows)))
