"""Generated stories with a question, tested on more sentences than in training (`lenmem.data.stories`).

Their kinds are those of bAbI, but their worlds, words and sentences are our own, so scores on them are not scores on
bAbI.
"""

from __future__ import annotations

import dataclasses
import random
from typing import ClassVar

import numpy as np

from lenmem.data import stories
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, joined, make_rows
from lenmem.fields import Lengths, NonNegativeInt, PositiveInt
from lenmem.tasks.base import Split
from lenmem.tasks.text import TextTask


@dataclasses.dataclass(frozen=True)
class Stories(TextTask):
    """`ada heads for the attic . where is ada ?` -> `attic`. Length: sentences of the story.

    The stories of `lenmem.data.stories` are generated once, without repetitions, and cached on disk. Kinds are equally
    frequent, and lengths are uniform. Splits: `train`, `validation`, `test`, and the test stories of each kind.
    """

    unit: ClassVar[str] = "sentences"

    kinds: tuple[stories.Kind, ...] = stories.KINDS
    """The kinds of stories that are learned together."""
    train_lengths: Lengths = (4, 12)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Fewest and most sentences in training."""
    test_lengths: Lengths = (13, stories.LONGEST)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Fewest and most sentences in the test."""
    examples: PositiveInt = 20_000
    """Number of training stories."""
    held_out_examples: PositiveInt = 4000
    """Number of stories in each of validation and test."""
    data_seed: NonNegativeInt = 0
    """Seed of the stories."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds is {self.kinds}; give different kinds, at least one of {', '.join(stories.KINDS)}")
        for name in ("train_lengths", "test_lengths"):
            shortest, longest = getattr(self, name)
            least = max(stories.SHORTEST[kind] for kind in self.kinds)
            if not least <= shortest <= longest <= stories.LONGEST:
                raise ValueError(
                    f"{name} is {(shortest, longest)}; stories of these kinds have {least} to {stories.LONGEST} "
                    "sentences, (shortest, longest)"
                )

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The usual splits, and one for each kind."""
        return super().splits | dict.fromkeys(self.kinds, self.test_lengths)

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """All lengths of training and test; lengths between these do not occur."""
        spans = (self.train_lengths, self.test_lengths)
        return tuple(sorted({length for first, last in spans for length in range(first, last + 1)}))

    @property
    def end(self) -> int:
        """The id of the end symbol."""
        return len(self.input_names)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The words."""
        return stories.vocabulary()

    @property
    def chance(self) -> float:
        """Token accuracy of always answering with the end symbol, where an answer has two words for `path`, and
        else one (for `carrying`, 8% of the answers in training and 17% in the test have more)."""
        return sum(1 / 3 if kind == "path" else 1 / 2 for kind in self.kinds) / len(self.kinds)

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): `capacity` longest sentences and the longest question; the longest answer and the end symbol."""
        return capacity * stories.LONGEST_SENTENCE + stories.LONGEST_QUESTION, stories.LONGEST_ANSWER + 1

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Number of sentences, counted by full stops."""
        real = np.arange(rows.inputs.shape[1]) < rows.input_lengths[:, None]
        return (real & (rows.inputs == self.input_names.index("."))).sum(axis=1)

    def tables(self) -> dict[Split, Rows]:
        """The generated stories."""
        settings = {"version": 1} | {name: value for name, value in vars(self).items() if name != "batches"}
        arrays = cached("stories", settings, self._draw)
        parts = {name: Rows(*(arrays[f"{name}/{i}"] for i in range(4))) for name in ("train", "validation", "test")}
        of_kind = {kind: parts["test"][arrays["kinds"] == number] for number, kind in enumerate(self.kinds)}
        return parts | of_kind

    def _draw(self) -> dict[str, np.ndarray]:
        id_of = {word: number for number, word in enumerate(self.input_names)}
        seen: set[tuple[str, ...]] = set()
        arrays: dict[str, np.ndarray] = {}
        for name in ("train", "validation", "test"):
            rng = random.Random(f"{self.data_seed} {name}")
            lengths = self.test_lengths if name == "test" else self.train_lengths
            inputs: list[bytes] = []
            answers: list[bytes] = []
            numbers: list[int] = []
            wanted, repeated = self.examples if name == "train" else self.held_out_examples, 0
            while len(inputs) < wanted:
                number = len(inputs) % len(self.kinds)
                story = stories.story(rng, self.kinds[number], rng.randint(*lengths))
                text = (*(word for sentence in story.sentences for word in sentence), *story.question)
                if text in seen:
                    repeated += 1
                    if repeated > wanted + 1000:
                        raise ValueError(f"there are not {wanted} different stories for {name!r}; ask for fewer")
                    continue
                seen.add(text)
                inputs.append(bytes(id_of[word] for word in text))
                answers.append(bytes(id_of[word] for word in story.answer))
                numbers.append(number)
            order = np.random.default_rng(self.data_seed).permutation(wanted)
            rows = make_rows(inputs, answers)[order]
            arrays |= {f"{name}/{i}": array for i, array in enumerate(rows.arrays)}
            arrays["kinds"] = np.array(numbers, np.uint8)[order]  # those of the test, which is last
        return arrays

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """Validation and test."""
        return joined([tables["validation"], tables["test"]])
