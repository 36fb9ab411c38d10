"""Questions and answers of two modules of the Mathematics Dataset (Saxton et al. 2019, https://arxiv.org/abs/1904.01557).

`add_or_sub` ("Sum -1.4 and 30." -> "28.6") and `place_value` ("What is the tens digit of 731?" -> "3"), generated as in
the published code, or read from the released files or from TFDS. The published seed is unknown, so generated questions
have the published distribution but are not the published questions.

The size of the numbers in a question is set by an *entropy* e, a number of digits, which is uniform in the range of its
set. Answers are computed with fractions and are exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from lenmem.data.files import lines_of
from lenmem.data.tfds import examples, text

Pair = tuple[str, str]
"""(question, answer)."""

ADDITIONS = (
    *("{p} + {q}", "{p}+{q}", "Work out {p} + {q}.", "Add {p} and {q}.", "Put together {p} and {q}."),
    *("Sum {p} and {q}.", "Total of {p} and {q}.", "Add together {p} and {q}.", "What is {p} plus {q}?"),
    *("Calculate {p} + {q}.", "What is {p} + {q}?"),
)
SUBTRACTIONS = (
    *("{p} - {q}", "Work out {p} - {q}.", "What is {p} minus {q}?", "What is {p} take away {q}?"),
    *("What is {q} less than {p}?", "Subtract {q} from {p}.", "Calculate {p} - {q}.", "What is {p} - {q}?"),
)
DIFFERENCES = tuple(
    f"What is the {word} between {pair}?"
    for word in ("distance", "difference")
    for pair in ("{p} and {q}", "{q} and {p}")
)
"""Phrases that are only used if p is at least q, so that the difference is p - q."""
PLACES = (
    *("units", "tens", "hundreds"),
    *(
        f"{first}{second}"
        for second in ("thousands", "millions", "billions", "trillions")
        for first in ("", "ten ", "hundred ")
    ),
)


class Module(NamedTuple):
    """A module of the data set."""

    question: Callable[[random.Random, float], Pair]
    """(generator, entropy) -> a question and its answer."""
    train: tuple[float, float]
    """Range of entropies in training; `easy`, `medium` and `hard` are the thirds of this range."""
    interpolate: float
    extrapolate: tuple[float, float]
    name: str
    """Name of the module in the release, and in TFDS."""


DIFFICULTIES = ("easy", "medium", "hard")


def integer(rng: random.Random, entropy: float, *, signed: bool) -> int:
    """Uniform in -m .. m with m = ceil(10^e / 2) if signed, otherwise in 1 .. ceil(10^e + 1)."""
    if signed:
        most = math.ceil(10**entropy / 2)
        return rng.randint(-most, most)
    return rng.randint(1, math.ceil(10**entropy + 1))


def number(rng: random.Random, entropy: float) -> Fraction:
    """An integer, or with probability 1/2 an integer over 10^s with s uniform in 1 .. ceil(e), but not an integer."""
    if rng.random() < 0.5:
        return Fraction(integer(rng, entropy, signed=True))
    while True:
        shift = rng.randint(1, math.ceil(entropy))
        value = Fraction(integer(rng, entropy, signed=True), 10**shift)
        if value.denominator != 1:
            return value


def decimal(value: Fraction) -> str:
    """All digits of a terminating decimal: -1/40 -> "-0.025"."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
        if places > 40:
            raise ValueError(f"{value} is not a terminating decimal")
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    point = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return f"-{point}" if value < 0 else point


def add_or_sub(rng: random.Random, entropy: float) -> Pair:
    """A sum or a difference of two numbers that share the entropy: e_1 = max(1, U(0, e)), e_2 = max(1, e - e_1)."""
    is_sum = rng.random() < 0.5
    of_first = max(1.0, rng.uniform(0, entropy))
    first, second = number(rng, of_first), number(rng, max(1.0, entropy - of_first))
    phrases = ADDITIONS if is_sum else SUBTRACTIONS + (DIFFERENCES if first >= second else ())
    answer = first + second if is_sum else first - second
    return rng.choice(phrases).format(p=decimal(first), q=decimal(second)), decimal(answer)


def place_value(rng: random.Random, entropy: float) -> Pair:
    """A digit of a positive integer; every place is equally likely."""
    digits = str(integer(rng, entropy, signed=False))
    place = rng.randrange(len(digits))
    return f"What is the {PLACES[place]} digit of {digits}?", digits[-1 - place]


MODULES = {
    "add_or_sub": Module(add_or_sub, (4, 16), 12, (16, 20), "arithmetic__add_or_sub"),
    "place_value": Module(place_value, (3, 10), 8, (12, 12), "numbers__place_value"),
}


def thirds(module: Module) -> dict[str, tuple[float, float]]:
    """The ranges of entropy of the three difficulties."""
    first, last = module.train
    step = (last - first) / 3
    return {name: (first + i * step, first + (i + 1) * step) for i, name in enumerate(DIFFICULTIES)}


def generated(module: Module, train: int, held: int, seed: int) -> dict[str, list[Pair]]:
    """The sets `easy`, `medium`, `hard` (`train` + `held` each), `interpolate` and `extrapolate` (`held` each).

    No question occurs twice: if a question is already in this or an earlier set, another one is drawn. Raises
    ValueError if a set needs more different questions than can easily be found.
    """
    ranges = thirds(module) | {"interpolate": (module.interpolate,) * 2, "extrapolate": module.extrapolate}
    seen: set[str] = set()
    sets = {}
    for name, (low, high) in ranges.items():
        rng, pairs = random.Random(f"{seed} {name}"), []
        wanted = train + held if name in DIFFICULTIES else held
        repeated = 0
        while len(pairs) < wanted:
            question, answer = module.question(rng, rng.uniform(low, high))
            if question in seen:
                repeated += 1
                if repeated > 10 * wanted + 1000:
                    raise ValueError(f"there are not {wanted} different questions in the set {name!r}; ask for fewer")
                continue
            seen.add(question)
            pairs.append((question, answer))
        sets[name] = pairs
    return sets


def read_release(module: Module, directory: str) -> dict[str, list[Pair]]:
    """The sets of the unpacked release `mathematics_dataset-v1.0`: alternating lines of questions and answers.

    Raises:
        ValueError: if a file is missing or a question has no answer, with the file and the line.
    """
    return {name: _read_lines(path) for name, path in files_of(module, directory).items()}


def files_of(module: Module, directory: str) -> dict[str, Path]:
    """set -> its file in the unpacked release."""
    files = {difficulty: f"train-{difficulty}/{module.name}.txt" for difficulty in DIFFICULTIES}
    files |= {"interpolate": f"interpolate/{module.name}.txt", "extrapolate": f"extrapolate/{module.name}_big.txt"}
    return {name: Path(directory) / file for name, file in files.items()}


def _read_lines(path: Path) -> list[Pair]:
    lines = lines_of(path, "the unpacked mathematics_dataset-v1.0")
    if not lines:
        raise ValueError(f"{path} is empty; questions and answers must alternate")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ValueError(f"{path}, line {number}: it is empty; questions and answers must alternate")
    if len(lines) % 2:
        raise ValueError(f"{path}, line {len(lines)}: the question {lines[-1]!r} has no answer")
    return list(zip(lines[::2], lines[1::2], strict=True))


def read_tfds(module: Module) -> dict[str, list[Pair]]:
    """The sets of TFDS: `train`, with all difficulties, and `interpolate`. TFDS has no `extrapolate`."""

    def pairs(split: str) -> Iterator[Pair]:
        for question, answer in examples(f"math_dataset/{module.name}", split, ("question", "answer")):
            yield _plain(text(question)), _plain(text(answer))

    return {"train": list(pairs("train")), "interpolate": list(pairs("test"))}


def _plain(line: str) -> str:
    """A line without its end. Some versions of the data set contain printed bytes, "b'Sum 1 and 2.\\n'"."""
    if line[:2] in ("b'", 'b"'):
        line = line[2:-1]
    return line.removesuffix("\\n").strip()
