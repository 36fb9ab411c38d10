"""ListOps expressions (Nangia & Bowman 2018): random expressions, generated with NumPy, and those of the benchmark.

The Long Range Arena publishes `basic_train.tsv`, `basic_val.tsv` and `basic_test.tsv`. They have a header, `Source`,
tab, `Target`, and in each line an expression with a bracket around each application, a tab, and its value:
`( ( ( [MAX 2 ) 9 ) ] )`, tab, `9`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lenmem.data.files import BOM
from lenmem.errors import readable

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR, CLOSE, SYMBOLS = 10, 14, 15
"""Token ids: digits 0 .. 9, the four operators (with their bracket) 10 .. 13, the closing bracket 14."""
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
_EXPECTED = (
    "the listops-1000 directory of the Long Range Arena's files (https://github.com/google-research/long-range-arena), "
    f"with {', '.join(FILES.values())}"
)
_IDS = {symbol: number for number, symbol in enumerate((*"0123456789", *OPERATORS, "]"))}


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Random trees: a node is an operator with probability `operator_share`, else a digit. Operators, digits and
    numbers of arguments are uniform."""

    max_depth: int = 10
    """Nodes at this depth are always digits. The root has depth 1."""
    max_arguments: int = 10
    """An operator has 2 to `max_arguments` arguments."""
    operator_share: float = 0.25
    """Probability that a node above `max_depth` is an operator."""


@dataclasses.dataclass
class _Level:
    kind: np.ndarray
    """Token of each node: a digit or an operator."""
    first: np.ndarray
    """For each operator, the index of its first argument in the next level."""
    arguments: np.ndarray
    """For each operator, its number of arguments."""
    size: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    """For each node, the number of tokens of its expression."""
    value: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def operators(self) -> np.ndarray:
        return np.flatnonzero(self.kind >= FIRST_OPERATOR)


def expressions(
    rng: np.random.Generator, grammar: Grammar, roots: int, shortest: int, longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The expressions with `shortest` to `longest` tokens among `roots` random trees with an operator at the root.

    A tree is written `[MAX 2 [MIN 4 7 ] 0 ]`; an operator takes two tokens.

    Returns:
        the concatenated tokens uint8[sum of lengths]; the lengths int32[k]; the values uint8[k].
    """
    levels = _grow(rng, grammar, roots)
    _evaluate(levels)
    sizes = levels[0].size
    chosen = np.flatnonzero((sizes >= shortest) & (sizes <= longest))
    tokens = _write(levels, chosen)
    return tokens, sizes[chosen].astype(np.int32), levels[0].value[chosen].astype(np.uint8)


def _grow(rng: np.random.Generator, grammar: Grammar, roots: int) -> list[_Level]:
    levels, nodes = [], roots
    for depth in range(1, grammar.max_depth + 1):
        kind = rng.integers(0, 10, nodes, np.uint8)
        if depth < grammar.max_depth:
            # roots are operators, since a single digit would be too short
            chosen = np.ones(nodes, bool) if depth == 1 else rng.random(nodes, np.float32) < grammar.operator_share
        else:
            chosen = np.zeros(nodes, bool)
        kind[chosen] = rng.integers(FIRST_OPERATOR, CLOSE, int(chosen.sum()), np.uint8)
        arguments = rng.integers(2, grammar.max_arguments + 1, int(chosen.sum()))
        levels.append(_Level(kind, np.cumsum(arguments) - arguments, arguments))
        nodes = int(arguments.sum())
        if not nodes:
            break
    return levels


def _evaluate(levels: list[_Level]) -> None:
    """Sets sizes and values, from the leaves to the roots."""
    below: _Level | None = None
    for level in reversed(levels):
        level.size, level.value = np.ones(level.kind.size, np.int64), level.kind.astype(np.int64)
        operators = level.operators
        if below is not None and operators.size:
            level.size[operators] = 2 + np.add.reduceat(below.size, level.first)
            level.value[operators] = _apply(level, below.value)
        below = level


def _apply(level: _Level, values: np.ndarray) -> np.ndarray:
    """Applies a level's operators to the next level's values: MIN, MAX, MED (rounded down), SM (sum modulo 10)."""
    kind, first, count = level.kind[level.kind >= FIRST_OPERATOR], level.first, level.arguments
    column = np.arange(count.max())
    table = np.where(column < count[:, None], values[np.minimum(first[:, None] + column, values.size - 1)], 99)
    table.sort(axis=1)
    row = np.arange(count.size)
    median = (table[row, (count - 1) // 2] + table[row, count // 2]) // 2
    results = [table[:, 0], table[row, count - 1], median, np.add.reduceat(values, first) % 10]
    return np.choose(kind - FIRST_OPERATOR, results)


def _write(levels: list[_Level], chosen: np.ndarray) -> np.ndarray:
    """The concatenated tokens of the chosen roots' expressions."""
    sizes = levels[0].size[chosen]
    tokens = np.zeros(int(sizes.sum()), np.uint8)
    start = np.full(levels[0].kind.size, -1)
    start[chosen] = np.cumsum(sizes) - sizes
    for level, below in zip(levels, [*levels[1:], None], strict=True):
        written = start >= 0
        tokens[start[written]] = level.kind[written]
        operators = level.operators
        closing = operators[written[operators]]
        tokens[start[closing] + level.size[closing] - 1] = CLOSE
        if below is not None:
            # an argument starts after its earlier siblings: a cumulative sum of sizes over the level
            before = np.cumsum(below.size) - below.size
            base = np.where(written[operators], start[operators] + 1 - before[level.first], -1 - before[-1] - 1)
            start = np.repeat(base, level.arguments) + before
            start[np.repeat(~written[operators], level.arguments)] = -1
    return tokens


# Files ----------------------------------------------------------------------------------------------------------------


def read_directory(directory: str, split: str) -> tuple[list[list[int]], list[int]]:
    """Token ids and values of the benchmark's expressions, in order, without the round brackets.

    Raises:
        ValueError: if a file is missing or has another form. The message says what is expected, and names the line.
    """
    path = file_of(directory, split)
    try:
        with readable(path, _EXPECTED):
            raw = path.read_bytes()
        lines = raw.removeprefix(BOM.encode()).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not plain text: byte {error.start} is not an ASCII character") from None
    if not lines or lines[0].split("\t") != ["Source", "Target"]:
        raise ValueError(f"{path}, line 1: got {_shown(''.join(lines[:1]))}; the header is Source, tab, Target")
    rows, values = [], []
    for number, line in enumerate(lines[1:], 2):
        source, _, value = line.partition("\t")
        words = source.replace("(", " ").replace(")", " ").split()
        unknown = next((word for word in words if word not in _IDS), None)
        ids = [_IDS[word] for word in words if word in _IDS]
        computed = value_of(ids)
        if unknown is not None:
            problem = f"{unknown!r} is not a symbol; allowed are {', '.join(_IDS)}"
        elif computed is None:
            problem = f"{_shown(source)} is not a complete expression"
        elif len(value) != 1 or value not in "0123456789":
            problem = f"got {_shown(value)} after the tab; a value is one digit"
        elif int(value) != computed:
            problem = f"got the value {value} after the tab; that of {_shown(source)} is {computed}"
        else:
            rows.append(ids)
            values.append(int(value))
            continue
        raise ValueError(f"{path}, line {number}: {problem}")
    if not rows:
        raise ValueError(f"{path} has no expressions, only a header")
    return rows, values


def file_of(directory: str, split: str) -> Path:
    """The file of a split."""
    return Path(directory) / FILES[split]


def value_of(ids: Iterable[int]) -> int | None:
    """The value of an expression; None if it is not complete, or an operator has no argument."""
    open_calls: list[list[int]] = [[]]  # for each open bracket the operator and its arguments, below them the results
    for token in ids:
        if token == CLOSE:
            operator, *arguments = open_calls.pop() or [-1]
            if not (arguments and open_calls):
                return None
            token = _result(operator, arguments)
        elif token >= FIRST_OPERATOR:
            open_calls.append([token])
            continue
        elif len(open_calls) == 1:
            return None  # a digit outside of all brackets
        open_calls[-1].append(token)
    return open_calls[0][0] if len(open_calls) == len(open_calls[0]) == 1 else None


def _result(operator: int, arguments: Sequence[int]) -> int:
    name = OPERATORS[operator - FIRST_OPERATOR]
    if name == "[MED":
        return int(statistics.median(arguments))
    return {"[MIN": min, "[MAX": max, "[SM": lambda digits: sum(digits) % 10}[name](arguments)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
