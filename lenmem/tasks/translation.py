"""Translation of parallel texts, with longer sentences in the test (Le et al. 2024, section 3.4, Figure 3b).

All parts of Multi30K are joined and sorted by the number of words of the input. The network trains on the shorter 0.8
or 0.5 and is tested on the longer rest. The scores are the perplexity of the reference translations, and BLEU (Papineni
et al. 2002) of the network's translations, by the library `sacrebleu`. The paper does not specify its tokens; here they
are subwords, and perplexity is per subword.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from lenmem.data import parallel_text, subwords
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import UnitInterval, at_least
from lenmem.tasks.base import SetScore, Split, evenly_spaced
from lenmem.tasks.rows import FileTask, SplitSeed, share_of, split_off
from lenmem.tasks.text import TextTask
from lenmem.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Translation(FileTask, TextTask):
    """`A man sleeps.` -> `Ein Mann schläft.`, in subwords that both languages share. Length: subwords of the input.

    The subwords are learned once, from the shorter pairs only, and cached on disk with the data.
    """

    unit: ClassVar[str] = "subwords"
    forced: ClassVar[bool] = True
    scores_sets: ClassVar[bool] = True
    sampled_with_training: ClassVar[bool] = True

    directory: str = "example"
    """A directory with `<part>.<language>` or `<part>.<language>.gz`; `example`: 400 pairs of generated sentences."""
    languages: tuple[str, str] = ("en", "de")
    """File name endings of the input and of the answer language."""
    parts: tuple[str, ...] = tuple(parallel_text.PARTS)
    """File names without the ending; all parts are joined. The default is Multi30K, 31,014 pairs."""
    train_share: UnitInterval = 0.8
    """Fraction of the pairs for training and validation, those with the fewest words in the input. The rest is the
    test."""
    validation_share: UnitInterval = 0.1
    """Fraction of the shorter pairs that is held out, at random. 0: none, and the split `validation` is empty."""
    vocabulary_size: Annotated[int, at_least(subwords.BYTES)] = 8000
    """Number of subword ids. Small texts may have fewer subwords."""
    data_seed: SplitSeed = 0
    """Seed of the choice of held-out pairs, and of the order of all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_share:
            raise ValueError(f"train_share is {self.train_share}; it must be above 0 and below 1")
        if not self.parts:
            raise ValueError("parts is (); give the beginning of the name of at least one file")

    def files(self) -> Sequence[Path]:
        """The files of all parts in both languages."""
        return parallel_text.files_in(self.directory, self.parts, *self.languages)

    @property
    def contents(self) -> Contents:
        """The pairs as subwords, computed once."""
        return _contents(self)

    @property
    def end(self) -> int:
        """The id of the end symbol."""
        return self.vocabulary_size

    @property
    def input_names(self) -> tuple[str, ...]:
        """The subwords, and names of unused ids."""
        known = subwords.names(self.contents.encoding)
        return (*known, *(f"<{number}>" for number in range(len(known), self.vocabulary_size)))

    @property
    def chance(self) -> float:
        """Token accuracy of always answering with the end symbol, measured on Multi30K."""
        return 0.08

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The lengths of the inputs with fewer words."""
        return self.contents.lengths["train"]

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The lengths of the inputs with more words. In subwords, some are shorter than the longest training inputs."""
        return self.contents.lengths["test"]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Up to 32 lengths of validation and test, evenly spaced."""
        tables = self.contents.tables
        found = np.unique(np.concatenate([tables[split].input_lengths for split in ("validation", "test")]))
        return tuple(evenly_spaced(found))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the subwords; the longest answer of all splits and the end symbol."""
        return capacity, self.contents.answers + 1

    def tables(self) -> dict[Split, Rows]:
        """Training (shorter pairs), validation (held out from these) and test (longer pairs)."""
        return self.contents.tables

    def texts(self, rows: list[list[int]]) -> list[str]:
        """Answers up to their end symbol, as text."""
        cut = [row[: row.index(self.end)] if self.end in row else row for row in rows]
        return subwords.decoded(self.contents.encoding, cut)

    def set_scores(self, answers: PyTree, split: Split) -> dict[str, SetScore]:
        """BLEU of greedy answers int[n, M]. Raises ValueError if `sacrebleu` is not installed."""
        rows = self.tables()[split][: len(answers)]
        right = [row[:length].tolist() for row, length in zip(rows.answers, rows.answer_lengths, strict=True)]
        return {"bleu": bleu(self.texts(np.asarray(answers)[: len(rows)].tolist()), self.texts(right))}


def bleu(texts: Sequence[str], references: Sequence[str]) -> SetScore:
    """BLEU of texts, 1 at best. Raises ValueError if `sacrebleu` is not installed."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("BLEU needs: pip install 'lenmem[text]'") from None
    metric: Any = sacrebleu.BLEU()
    score = metric.corpus_score(list(texts), [list(references)]).score
    return SetScore(score / 100, str(metric.get_signature()))


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The pairs of a directory, as subwords."""

    encoding: str
    """The tokenizer, as JSON of the library `tokenizers`."""
    tables: dict[Split, Rows]
    lengths: dict[Split, tuple[int, int]]
    """The fewest and the most subwords of the inputs, in training and test."""
    answers: int
    """Number of subwords of the longest answer."""


@functools.lru_cache(maxsize=4)
def _contents(task: Translation) -> Contents:
    pairs = parallel_text.read_directory(task.directory, task.parts, *task.languages)
    pairs.sort(key=lambda pair: len(pair[0].split()))
    count = share_of(len(pairs), task.train_share)
    if not 0 < count < len(pairs):
        raise ValueError(f"{task.directory} has {len(pairs)} pairs, too few for a train_share of {task.train_share}")

    def build() -> dict[str, np.ndarray]:
        encoding = subwords.learned((text for pair in pairs[:count] for text in pair), task.vocabulary_size)
        inputs, answers = (subwords.encoded(encoding, side) for side in zip(*pairs, strict=True))
        arrays = make_rows(inputs, answers).arrays
        return {str(i): array for i, array in enumerate(arrays)} | {
            "encoding": np.frombuffer(encoding.encode(), np.uint8)
        }

    contents = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    settings = {"version": 1, "contents": contents, "count": count, "size": task.vocabulary_size}
    arrays = cached("translation", settings, build)
    rows = Rows(*(arrays[str(i)] for i in range(4)))
    train, validation = split_off(rows[:count], share_of(count, task.validation_share), task.data_seed)
    test = rows[count + np.random.default_rng(task.data_seed).permutation(len(rows) - count)]
    tables = {"train": train, "validation": validation, "test": test}
    lengths = {
        split: (int(part.input_lengths.min()), int(part.input_lengths.max()))
        for split, part in (("train", rows[:count]), ("test", rows[count:]))
    }
    return Contents(arrays["encoding"].tobytes().decode(), tables, lengths, int(rows.answer_lengths.max()))
