"""SQuAD 1.1, answers to questions about paragraphs, tested on longer paragraphs (Le et al. 2024, Table 4).

The questions of both published files are sorted by the number of words of the context. The network learns the 0.8 or
0.5 of them with shorter contexts and is tested on the others (section 3.4, appendix D.4). The paper fine-tunes BERT as
in Devlin et al. (2019): a row is `[CLS] question [SEP] context [SEP]` in word pieces, contexts that do not fit are read
in windows, and the answer is two columns of the row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem import progress
from lenmem.data import squad, wordpiece
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import NonNegativeInt, PositiveInt, UnitInterval, at_least
from lenmem.tasks import spans
from lenmem.tasks.base import SetScore, Split, evenly_spaced
from lenmem.tasks.rows import FileTask, share_of
from lenmem.types import Batch, Example, PyTree, Spec

FRAME = 3
"""[CLS] and two [SEP]."""


@dataclasses.dataclass(frozen=True, eq=False)
class Squad(FileTask):
    """`[CLS] where is the map ? [SEP] dan took the map to the mill . [SEP]` -> its columns of `the` and `mill`.

    Length: words of the context. A row is a window; if it does not contain the answer, both columns are 0, [CLS]. The
    training target is the first right answer of a question. The test scores questions, not windows: the answer is the
    span with the largest sum of logits in all windows of the question, and F1 and EM compare its text with all right
    answers.
    """

    unit: ClassVar[str] = "words"
    scores_sets: ClassVar[bool] = True
    sampled_with_training: ClassVar[bool] = True

    directory: str = "example"
    """A directory with train-v1.1.json and dev-v1.1.json; `example`: 240 questions about generated paragraphs."""
    vocabulary: str = "example"
    """A `vocab.txt` of BERT, or a directory with one; `example`: the words of the generated paragraphs."""
    train_share: UnitInterval = 0.8
    """Fraction of the questions for training and validation, those with the shortest contexts. The rest is the test.
    Questions with contexts of the length at the cut, or with the same context, may be on both sides."""
    validation_share: UnitInterval = 0.0
    """Fraction of the questions about shorter contexts that is held out, at random. 0: none."""
    max_length: Annotated[int, at_least(8)] = 384
    """Columns of a row: the question, the window and three special tokens."""
    stride: PositiveInt = 128
    """Number of pieces between the beginnings of consecutive windows."""
    question_pieces: PositiveInt = 64
    """Most pieces of a question; longer questions are cut to the first."""
    answer_pieces: PositiveInt = 30
    """Most pieces of an answer of the network."""
    lowercase: bool = True
    """Convert texts to lower case without accents, for an uncased vocabulary."""
    vocabulary_size: PositiveInt = 30_522
    """Number of piece ids, that of the network's weights; `vocabulary` may have fewer."""
    separator: NonNegativeInt = wordpiece.SEPARATOR
    """The id of [SEP], which ends the question."""
    data_seed: NonNegativeInt = 0
    """Seed of the choice of held-out questions, and of the order of the test questions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it must be above 0 and below 1")
        if self.question_pieces + FRAME >= self.max_length:
            raise ValueError(
                f"max_length is {self.max_length}: questions of {self.question_pieces} pieces and {FRAME} marks leave "
                "no room for a context"
            )

    def files(self) -> Sequence[Path]:
        """The questions and the vocabulary."""
        return (*squad.files_in(self.directory), *wordpiece.files_of(self.vocabulary))

    @property
    def spec(self) -> Spec:
        """Pieces in; the columns of the first and the last piece out."""
        return Spec(
            vocabulary=self.vocabulary_size,
            output_size=self.max_length,
            answers_are_columns=True,
            separator=self.separator,
            shapes=self.shapes,
        )

    @property
    def contents(self) -> Contents:
        """The questions as windows, made once."""
        return _contents(self)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The pieces, and names of unused ids."""
        known = self.contents.pieces
        return (*known, *(f"<{number}>" for number in range(len(known), self.vocabulary_size)))

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The words of the shorter contexts."""
        return self.contents.lengths["train"]

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The words of the longer contexts."""
        return self.contents.lengths["test"]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Up to 32 lengths of all splits, evenly spaced."""
        lengths = [self.row_lengths(table) for table in self.tables().values()]
        return tuple(evenly_spaced(np.unique(np.concatenate(lengths))))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the columns of a row; the first and the last column of an answer."""
        return self.max_length, 2

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Number of words of the complete context."""
        return rows.answers[:, 2] if len(rows) else np.zeros(0, int)

    def tables(self) -> dict[Split, Rows]:
        """The windows of training (shorter contexts), validation (held out from these) and test (longer contexts)."""
        return {split: windows.rows for split, windows in self.contents.windows.items()}

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One window; padding is 0."""
        inputs, length, answer, _ = (array.astype(jnp.int32) for array in row)
        both = jnp.ones(2, bool)
        inputs = jnp.pad(inputs, (0, self.max_length - inputs.shape[0]))
        return Example(inputs, jnp.arange(self.max_length) < length, answer[:2], both, both)

    def set_answers(self, outputs: jax.Array, batch: Batch) -> PyTree:
        """The most likely span of each window: its columns and the sum of their logits."""
        allowed = spans.second_segment(batch.inputs, batch.input_mask, self.separator)
        width = allowed.shape[1]
        return spans.best_spans(outputs[:, 0, :width], outputs[:, 1, :width], allowed, self.answer_pieces)

    def set_scores(self, answers: PyTree, split: Split) -> dict[str, SetScore]:
        """F1 and EM over the questions whose windows are all answered."""
        windows = self.contents.windows[split]
        texts = windows.texts(answers)
        if not texts:
            raise ValueError(f"no question is complete in the first {len(answers[0])} windows; score more examples")
        pairs = [(text, [right for _, right in windows.questions[number].answers]) for number, text in texts.items()]
        told = f"in percent, {len(pairs):,} questions"
        return {
            name: SetScore(float(np.mean([rule(text, right) for text, right in pairs])), told)
            for name, rule in (("f1", spans.f1), ("em", spans.exact))
        }

    def reply(self, text: str, ask: Callable[[Batch], Any]) -> list[str] | None:
        """The answer to `question | context`. Raises ValueError if the text is not of this form."""
        question, bar, context = (part.strip() for part in text.partition("|"))
        if not (bar and question and context):
            raise ValueError(
                f"the input must be a question and a text, as in 'where is it? | it is here'; got {text!r}"
            )
        asked = [squad.Question("", context, question, ((0, ""),))]
        windows = _windows(self, wordpiece.read(self.vocabulary), asked)
        batch = jax.vmap(lambda *row: self.example(row, 0))(*map(jnp.asarray, windows.rows.arrays))
        return [windows.texts(jax.tree.map(np.asarray, self.set_answers(ask(batch), batch)))[0]]


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """Questions and their rows."""

    questions: list[squad.Question]
    rows: Rows
    question: np.ndarray
    """int[R]: the number of a row's question; ascending."""
    shift: np.ndarray
    """int[R]: the column of the context's first piece, negative if it is before the window."""
    places: list[list[tuple[int, int]]]
    """For each question, the characters of the pieces of its context: first, last + 1."""

    def texts(self, answers: PyTree) -> dict[int, str]:
        """number of a question -> the text of its answer, from (first, last, sum) of the first rows."""
        first, last, sums = (np.asarray(part)[: len(self.question)] for part in answers)
        asked = self.question[: len(first)]
        if len(first) < len(self.question):  # the last question may have more windows
            asked = asked[: np.searchsorted(asked, self.question[len(first)])]
        found = {}
        for row in spans.chosen(sums[: len(asked)], asked):
            number, empty = int(asked[row]), not np.isfinite(sums[row])
            places, shift = self.places[number], self.shift[row]
            ends = slice(0, 0) if empty else slice(places[first[row] - shift][0], places[last[row] - shift][1])
            found[number] = self.questions[number].context[ends]
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The questions of a directory."""

    pieces: tuple[str, ...]
    windows: dict[Split, Windows]
    lengths: dict[Split, tuple[int, int]]
    """The fewest and the most words of the contexts of each split."""


@functools.lru_cache(maxsize=4)
def _contents(task: Squad) -> Contents:
    questions = squad.read_directory(task.directory)
    pieces = wordpiece.read(task.vocabulary)
    if len(pieces) > task.vocabulary_size:
        raise ValueError(f"{task.vocabulary} has {len(pieces)} pieces; vocabulary_size is {task.vocabulary_size}")
    if pieces.index("[SEP]") != task.separator:
        raise ValueError(f"{task.vocabulary} has [SEP] at id {pieces.index('[SEP]')}; separator is {task.separator}")
    words = {context: len(context.split()) for context in {one.context for one in questions}}
    questions.sort(key=lambda one: words[one.context])
    count = share_of(len(questions), task.train_share)
    if not 0 < count < len(questions):
        raise ValueError(
            f"{task.directory} has {len(questions)} questions, too few for a train_share of {task.train_share}"
        )
    held = np.random.default_rng(task.data_seed).permutation(count)[: share_of(count, task.validation_share)]
    order = count + np.random.default_rng(task.data_seed).permutation(len(questions) - count)
    numbers = {"train": np.setdiff1d(np.arange(count), held), "validation": held, "test": order}
    with progress.track("splitting texts into pieces"):
        made = {split: _windows(task, pieces, [questions[n] for n in some]) for split, some in numbers.items()}
    ends = {"train": (questions[0], questions[count - 1]), "test": (questions[count], questions[-1])}
    lengths = {split: (words[first.context], words[last.context]) for split, (first, last) in ends.items()}
    return Contents(pieces, made, lengths)


def _windows(task: Squad, pieces: tuple[str, ...], questions: list[squad.Question]) -> Windows:
    """The rows of questions, in their order."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    begin, end = ids["[CLS]"], ids["[SEP]"]
    split = functools.partial(wordpiece.split, pieces, lowercase=task.lowercase)
    asked = split([one.question for one in questions])
    different = list(dict.fromkeys(one.context for one in questions))
    contexts = dict(zip(different, split(different), strict=True))
    inputs: list[list[int]] = []
    answers: list[tuple[int, int, int]] = []
    owners: list[int] = []
    shifts: list[int] = []
    for number, (one, question) in enumerate(zip(questions, asked, strict=True)):
        context, (start, text) = contexts[one.context], one.answers[0]
        first, last = spans.span_of(context.places, start, start + len(text))
        head = [begin, *question.ids[: task.question_pieces], end]
        for left, right in spans.windows(len(context.ids), task.max_length - len(head) - 1, task.stride):
            shift, inside = len(head) - left, left <= first and last < right
            inputs.append([*head, *context.ids[left:right], end])
            words = len(one.context.split())
            answers.append((first + shift, last + shift, words) if inside else (0, 0, words))
            owners.append(number)
            shifts.append(shift)
    places = [contexts[one.context].places for one in questions]
    return Windows(questions, make_rows(inputs, answers), np.array(owners, int), np.array(shifts, int), places)
