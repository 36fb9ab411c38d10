"""Addition, subtraction and place values in words (Saxton et al. 2019, https://arxiv.org/abs/1904.01557), by character.

Csordás et al. (2021) and Le et al. (2024, section 3.3 and table 13) train on the three difficulties together and test
on `extrapolate`, whose numbers are longer than any in training. A length is the number of digits in a question. Splits:
`train`; `validation`, held-out questions of the training distribution; `interpolate`, questions of one medium size;
`test`, the extrapolation set.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import numpy as np

from lenmem.data import mathematics
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, joined, make_rows
from lenmem.fields import NonNegativeInt, PositiveInt, at_least
from lenmem.tasks.base import Split
from lenmem.tasks.rows import FileTask, ended_example
from lenmem.types import Example, Spec

DIGITS = "0123456789"
PHRASES = (*mathematics.ADDITIONS, *mathematics.SUBTRACTIONS, *mathematics.DIFFERENCES, *mathematics.PLACES)
PLACE_QUESTION = "What is the  digit of ?"
CHARACTERS = "".join(sorted({*DIGITS, *"-.", *PLACE_QUESTION, *"".join(PHRASES).replace("{p}", "").replace("{q}", "")}))
"""The characters of questions; an id is a position in this string."""
ANSWERS = DIGITS + "-."
"""The characters of answers; the end symbol follows."""
END = len(ANSWERS)


@dataclasses.dataclass(frozen=True, eq=False)
class MathematicsTask(FileTask):
    """Questions and answers as characters. Subclasses name the module and the sizes of its questions."""

    unit: ClassVar[str] = "digits in the question"
    module: ClassVar[str]
    phrase: ClassVar[int]
    """Length of the longest question without its digits, in characters."""
    extra: ClassVar[int]
    """Characters of the longest answer to a question with k digits, minus k, without the end symbol."""
    digits: ClassVar[tuple[int, int]]
    """Most digits of a question in training, and in the test."""
    chance: ClassVar[float]
    curve: ClassVar[tuple[int, int]]
    """Smallest and largest length that small sets have, too."""

    examples: Annotated[int, at_least(3)] = 2_000_000
    """Number of training questions, a third of each difficulty. The released set has the same number."""
    held_out_examples: PositiveInt = 10_000
    """Number of held-out questions of each difficulty, and of questions in each of the two tests."""
    length_given: bool = False
    """The model knows the length of the answer. False: it has slots for the longest answer and must end its answer."""
    origin: str = "generator"
    """`generator`; `tfds`, which lacks the test set, so that is generated; or the directory of the unpacked release."""
    data_seed: NonNegativeInt = 0
    """Seed of the generated questions, and of the choice of held-out questions."""

    def files(self) -> Sequence[Path]:
        """The files of the release, if it is the origin."""
        if self.origin in ("generator", "tfds"):
            return ()
        return tuple(mathematics.files_of(mathematics.MODULES[self.module], self.origin).values())

    @property
    def train_lengths(self) -> tuple[int, int]:
        """1 .. the most digits in training."""
        return 1, self.digits[0]

    @property
    def test_lengths(self) -> tuple[int, int]:
        """1 .. the most digits in the test, which also has questions with few digits."""
        return 1, self.digits[1]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Lengths that occur in data of any size."""
        return tuple(range(self.curve[0], self.curve[1] + 1))

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The usual splits and `interpolate`."""
        return super().splits | {"interpolate": self.train_lengths}

    @property
    def spec(self) -> Spec:
        """Characters in; digits, sign, point and end symbol out."""
        return Spec(
            vocabulary=len(CHARACTERS),
            output_size=END + 1,
            length_rule="given" if self.length_given else "end",
            end_id=END,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The characters; a blank is shown as `_`."""
        return tuple(CHARACTERS.replace(" ", "_"))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The characters and the end symbol."""
        return (*ANSWERS, "<eos>")

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the longest question with that many digits, and its answer with the end symbol."""
        return capacity + self.phrase, capacity + self.extra + 1

    def tables(self) -> dict[Split, Rows]:
        """Training, validation, interpolation and test."""
        settings = {
            "version": 1,
            "module": self.module,
            "examples": self.examples,
            "held_out": self.held_out_examples,
            "seed": self.data_seed,
        }
        drawn = self.origin == "generator"
        arrays = cached("mathematics", settings, self._arrays) if drawn else self._arrays()
        names = ("inputs", "input_lengths", "answers", "answer_lengths")
        return {split: Rows(*(arrays[f"{split}/{name}"] for name in names)) for split in self.splits}

    def _arrays(self) -> dict[str, np.ndarray]:
        tables = {split: encoded(pairs, split) for split, pairs in self._pairs().items()}
        names = ("inputs", "input_lengths", "answers", "answer_lengths")
        return {
            f"{split}/{name}": array
            for split, rows in tables.items()
            for name, array in zip(names, rows.arrays, strict=True)
        }

    def _pairs(self) -> dict[Split, list[mathematics.Pair]]:
        module, held = mathematics.MODULES[self.module], self.held_out_examples
        if self.origin == "generator":
            sets = mathematics.generated(module, self.examples // 3, held, self.data_seed)
        elif self.origin == "tfds":
            sets = mathematics.read_tfds(module)
            sets["extrapolate"] = mathematics.generated(module, 1, held, self.data_seed)["extrapolate"]
        else:
            sets = mathematics.read_release(module, self.origin)
        sets = without_repetitions(sets)
        train, validation = [], []
        rng = np.random.default_rng(self.data_seed)
        pools = [name for name in sets if name not in ("interpolate", "extrapolate")]
        for name in pools:
            share = held * len(mathematics.DIFFICULTIES) // len(pools)
            if len(sets[name]) <= share:
                raise ValueError(f"the set {name!r} has {len(sets[name])} questions; {share} are to be held out")
            order = rng.permutation(len(sets[name]))
            validation += [sets[name][i] for i in order[:share]]
            train += [sets[name][i] for i in order[share:]]
        train = [train[i] for i in rng.permutation(len(train))[: self.examples]]
        validation = [validation[i] for i in rng.permutation(len(validation))]
        return {
            "train": train,
            "validation": validation,
            "interpolate": sets["interpolate"],
            "test": sets["extrapolate"],
        }

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Number of digits in the question."""
        real = np.arange(rows.inputs.shape[1]) < rows.input_lengths[:, None]
        return (real & np.isin(rows.inputs, [CHARACTERS.index(digit) for digit in DIGITS])).sum(axis=1)

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """Validation, interpolation and test."""
        return joined([tables[split] for split in ("validation", "interpolate", "test")])

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One question; padding is 0."""
        return ended_example(row, self.shapes(capacity), END, length_given=self.length_given)


@dataclasses.dataclass(frozen=True, eq=False)
class AddOrSub(MathematicsTask):
    """`Sum -1.4 and 30.` -> `28.6`: sums and differences of integers and decimals. Length: digits of the question."""

    module: ClassVar[str] = "add_or_sub"
    # "What is the difference between  and ?", two signs and two points.
    phrase: ClassVar[int] = len(max(mathematics.DIFFERENCES, key=len)) - len("{p}{q}") + 4
    # A sign and a point; apart from a carry, the answer has no more digits than the two numbers together.
    extra: ClassVar[int] = 3
    # A number of entropy e has up to ceil(e) digits, and a zero before the point.
    digits: ClassVar[tuple[int, int]] = (20, 24)
    curve: ClassVar[tuple[int, int]] = (2, 22)
    chance: ClassVar[float] = 0.109  # the end symbol, measured on training


@dataclasses.dataclass(frozen=True, eq=False)
class PlaceValue(MathematicsTask):
    """`What is the tens digit of 731?` -> `3`: one digit of a positive integer. Length: digits of the integer."""

    module: ClassVar[str] = "place_value"
    phrase: ClassVar[int] = len(PLACE_QUESTION) + max(map(len, mathematics.PLACES))
    extra: ClassVar[int] = 0
    digits: ClassVar[tuple[int, int]] = (11, 13)
    curve: ClassVar[tuple[int, int]] = (1, 12)  # 13 digits: 10^12 and 10^12 + 1 alone
    chance: ClassVar[float] = 0.5  # the end symbol, every other slot


def without_repetitions(sets: dict[str, list[mathematics.Pair]]) -> dict[str, list[mathematics.Pair]]:
    """The sets with each question only once, in the first set that contains it."""
    seen: set[str] = set()
    kept = {}
    for name, pairs in sets.items():
        kept[name] = [pair for pair in pairs if not (pair[0] in seen or seen.add(pair[0]))]
    return kept


def encoded(pairs: Iterable[mathematics.Pair], name: str) -> Rows:
    """Questions and answers as ids. Raises ValueError for a character without an id."""
    questions, answers = _ids(CHARACTERS), _ids(ANSWERS)
    rows: list[Any] = []
    for number, pair in enumerate(pairs, 1):
        try:
            rows.append([[ids[c] for c in line] for ids, line in zip((questions, answers), pair, strict=True)])
        except KeyError as error:
            raise ValueError(
                f"question {number} of the set {name!r}, {pair[0]!r} with the answer {pair[1]!r}, has a "
                f"{error.args[0]!r}; questions have {CHARACTERS!r}, answers {ANSWERS!r}"
            ) from None
    return make_rows([question for question, _ in rows], [answer for _, answer in rows])


@functools.cache
def _ids(characters: str) -> dict[str, int]:
    return {character: number for number, character in enumerate(characters)}
