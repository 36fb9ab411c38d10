"""Compositional table lookup (Liska et al. 2018), in the draws of Csordás et al. (2022, appendix C).

The published sets come from one legacy NumPy generator, whose draws are reproduced here one by one. The tables, the
reserved compositions, the i.i.d. pool and both deeper sets are therefore identical to the published ones. Only the
division of the pool into training, validation and test was not seeded in the published code; here it has a seed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

SYMBOLS, FUNCTIONS, COMPOSED = 8, 11, 9
"""8 symbols 000 .. 111, and 11 functions a .. k. Only a .. i are composed; j and k are applied only to symbols."""
LONGEST = 5
"""Number of functions of the longest training example."""
POOL, HELD_OUT, DEEPER, REPEATS = 61_136, 4_000, 1_000, 30
"""Numbers of i.i.d. compositions, of examples in each of validation and test, of examples in each deeper set, and of
repetitions of j and k."""
_SEED = 0x12345678

Composition = tuple[tuple[int, ...], int]
"""(functions in the order of application, symbol)."""


@functools.cache
def tables() -> np.ndarray:
    """int[11, 8]: the bijections a .. k, the same in all runs of the paper. `tables()[f, s]` is f(s)."""
    return _tables(np.random.RandomState(_SEED))


def _tables(legacy: np.random.RandomState) -> np.ndarray:
    return np.stack([legacy.permutation(SYMBOLS) for _ in range(FUNCTIONS)])


def compositions(deeper_validation: tuple[int, int], test: tuple[int, int]) -> dict[str, list[Composition]]:
    """The published draws: `pool`, 61,136 of 2 .. 5 functions, `deeper_validation` and `test`; no repeats within a set.

    The 608 reserved compositions of 0 .. 5 functions are in no set. The pool is in the order in which it was drawn.

    Args:
        deeper_validation: smallest and largest number of functions in this set; the smallest is 6.
        test: smallest and largest number of functions; the smallest is one more than the largest of
            `deeper_validation`.
    """
    legacy = np.random.RandomState(_SEED)
    _tables(legacy)
    reserved: set[tuple[int, ...]] = set()
    for depth in range(LONGEST + 1):
        wanted = len(reserved) + min(200, 0.25 * COMPOSED**depth)
        while len(reserved) < wanted:
            reserved.add(tuple(legacy.randint(COMPOSED, size=depth).tolist()))

    def draw(shortest: int, longest: int, functions: int = COMPOSED) -> tuple[int, ...]:
        word = legacy.randint(functions, size=longest)
        return tuple(word[: legacy.randint(shortest, longest + 1)].tolist())

    def iid() -> Composition:
        while (word := draw(2, LONGEST)) in reserved:
            pass
        return word, legacy.randint(SYMBOLS)

    def deeper(shortest: int, longest: int) -> Composition:
        symbol = legacy.randint(SYMBOLS)
        return draw(shortest, longest), symbol

    def first_primitive() -> Composition:
        symbol, word = legacy.randint(SYMBOLS), list(draw(2, LONGEST, FUNCTIONS - 1))
        word[legacy.randint(len(word))] = FUNCTIONS - 2
        return tuple(word), symbol

    def second_primitive() -> Composition:
        symbol, word = legacy.randint(SYMBOLS), list(draw(2, LONGEST, FUNCTIONS - 1))
        word = [FUNCTIONS - 1 if function == FUNCTIONS - 2 else function for function in word]
        word[legacy.randint(len(word))] = FUNCTIONS - 1
        return tuple(word), symbol

    pool = _different(POOL, iid)
    # two published sets that no table of the paper uses; drawn to advance the generator
    _different(1000, first_primitive)
    _different(3000, second_primitive)
    drawn = {
        "pool": pool,
        "deeper_validation": _different(DEEPER, functools.partial(deeper, *deeper_validation)),
        "test": _different(DEEPER, functools.partial(deeper, *test)),
    }
    # a published word is written backwards: its last function is applied first
    return {name: [(word[::-1], int(symbol)) for word, symbol in part] for name, part in drawn.items()}


def _different(size: int, draw: Callable[[], Composition]) -> list[Composition]:
    found: dict[Composition, None] = {}
    while len(found) < size:
        found.setdefault(draw())
    return list(found)
