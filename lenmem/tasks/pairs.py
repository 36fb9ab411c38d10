"""Your own pairs of sequences, from a file or from memory, split by length.

All pairs are sorted by the length of their input; the network is trained on the shorter ones and tested on the longer
ones. Le et al. (2024, sections 3.4 and D.4) do this for question answering and translation, with 80% and 50% of the
pairs for training.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from lenmem.data.pairs import EXAMPLE, Columns, PairRows, Tokens, pair_rows, read_pairs, tokenised
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import UnitInterval
from lenmem.tasks.base import Split
from lenmem.tasks.rows import FileTask, SplitSeed, ended_example, share_of, split_off
from lenmem.types import Example, Spec


def visible(tokens: Sequence[str]) -> tuple[str, ...]:
    """Names of tokens that can be told apart and typed: white space has a visible name that is no token itself."""

    def name(token: str) -> str:
        code = f"U+{ord(token):04X}" if len(token) == 1 and token.isspace() else token
        return next(sign for sign in ("_", "␣", code) if sign not in tokens) if token == " " else code

    return tuple(map(name, tokens))


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs(FileTask):
    """The input and answer on each line of a file, `red blue<TAB>blue red`, or of rows in memory. Length: tokens of
    the input.

    All tokens get an id, including those that occur only in long inputs. Rows with the same input are always on the
    same side of a split.
    """

    sampled_with_training: ClassVar[bool] = True

    path: str = "example"
    """A file with tab-separated columns, or a *.jsonl with one object per line; `example`: 400 sequences of colours and
    their reversals."""
    columns: Columns = None
    """The columns of input and answer: column numbers from 0, or keys of the objects. None: the first two."""
    tokens: Tokens = "word"
    """The tokens: words separated by blanks, characters, or bytes."""
    train_share: UnitInterval = 0.8
    """Fraction of the pairs for training and validation, those with the shortest inputs. The rest is the test.
    Different inputs of the length at the cut may be on both sides."""
    validation_share: UnitInterval = 0.1
    """Fraction of the shorter inputs that is held out, at random."""
    length_given: bool = False
    """The model knows the length of the answer. False: it has slots for the longest answer and must end its answer."""
    data_seed: SplitSeed = 0
    """Seed of the choice of held-out pairs, and of the order of all pairs."""
    rows: Iterable[Any] | None = None
    """In Python, instead of a file: an iterable of pairs of texts, or of mappings such as a Hugging Face dataset. The
    rows are saved with the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it must be above 0 and below 1")
        if self.rows is not None:
            if self.path != "example":
                raise ValueError(f"give either rows or a path; got both, with the path {self.path}")
            object.__setattr__(self, "rows", pair_rows(self.rows, self.columns))
            object.__setattr__(self, "columns", None)  # `pair_rows` has selected the columns

    def files(self) -> Sequence[Path]:
        """The file; none for rows in memory and for `example`."""
        return () if self.path == "example" else (Path(self.path),)

    @property
    def read_path(self) -> str:
        """The path of the file, also for `example`."""
        return str(EXAMPLE) if self.path == "example" else self.path

    @property
    def where(self) -> str:
        """The name of the data in error messages."""
        return self.path if self.rows is None else "rows"

    @property
    def file(self) -> File:
        """The contents of the file or the rows, read once."""
        if isinstance(self.rows, PairRows):
            return _of_memory(self.rows, self.tokens)
        return _read(self.read_path, self.columns, self.tokens, self.version)

    @property
    def cut(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the shorter and of the longer rows, by length; rows with the same input stay together."""
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
        """The lengths of the shorter inputs."""
        lengths = self.file.rows.input_lengths[self.cut[0]]
        return int(lengths[0]), int(lengths[-1])

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The lengths of the longer inputs."""
        lengths = self.file.rows.input_lengths[self.cut[1]]
        return int(lengths[0]), int(lengths[-1])

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The lengths that occur."""
        return tuple(np.unique(self.file.rows.input_lengths).tolist())

    @property
    def spec(self) -> Spec:
        """Input tokens in; answer tokens and the end symbol out, with separate ids."""
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
        """The tokens; a blank is shown as `_`, or as `␣` if that is a token, and other white space as `U+3000`."""
        return visible(self.file.input_tokens)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The tokens, as in `input_names`, and the end symbol."""
        return (*visible(self.file.answer_tokens), "<eos>")

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the input tokens; the longest answer of all splits and the end symbol."""
        return capacity, self.file.rows.answers.shape[1] + 1

    def tables(self) -> dict[Split, Rows]:
        """Training (shorter pairs), validation (held out from these) and test (longer pairs)."""
        shorter, longer = self.cut
        same = self.file.same[shorter]
        held = share_of(len(np.unique(same)), self.validation_share)
        train, validation = split_off(self.file.rows[shorter], held, self.data_seed, same)
        test = self.file.rows[np.random.default_rng(self.data_seed).permutation(longer)]
        return {"train": train, "validation": validation, "test": test}

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One pair; padding is 0."""
        end = len(self.file.answer_tokens)
        return ended_example(row, self.shapes(capacity), end, length_given=self.length_given)


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """The contents of a file of pairs, or of rows in memory."""

    rows: Rows
    same: np.ndarray
    """int[R]: for each row, the index of the first row with the same input."""
    input_tokens: tuple[str, ...]
    answer_tokens: tuple[str, ...]
    chance: float
    """Token accuracy of the best constant answer, which may be the end symbol."""


@functools.lru_cache(maxsize=4)
def _read(path: str, columns: Columns, tokens: Tokens, version: str) -> File:
    return _file(((f"{path}, line {number}", *texts) for number, *texts in read_pairs(path, columns)), tokens)


@functools.lru_cache(maxsize=4)
def _of_memory(rows: PairRows, tokens: Tokens) -> File:
    return _file(((f"rows[{number}]", *texts) for number, texts in enumerate(rows)), tokens)


def _file(pairs: Iterable[tuple[str, ...]], tokens: Tokens) -> File:
    """From triples (where, input, answer)."""
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
    sides = zip(ids, (inputs, answers), strict=True)
    numbered = [[[id_of[token] for token in row] for row in side] for id_of, side in sides]
    rows = make_rows(numbered[0], numbered[1])
    slots = rows.answer_lengths + 1
    shares = np.zeros(len(names[1]) + 1)
    weights = np.repeat(1 / slots, rows.answer_lengths)
    real = np.arange(rows.answers.shape[1]) < rows.answer_lengths[:, None]
    np.add.at(shares, rows.answers[real].astype(int), weights)
    shares[-1] = np.sum(1 / slots)
    return File(rows, same, names[0], names[1], float(shares.max() / len(rows)))
