"""Words of balanced brackets from a grammar, with their weights: `lenmem.tasks.dyck`."""

from __future__ import annotations

import bisect
import functools
import itertools

import numpy as np


@functools.lru_cache(maxsize=8)
def inside_weights(most: int, p: float, q: float) -> tuple[np.ndarray, np.ndarray]:
    """(Z, T), float[most + 1] each: the weight of all derivations of words of k pairs, and the mean number of factors
    of these words.

    Z_0 = r + q Z_0^2 with r = 1 - p - q, and Z_k (1 - 2 q Z_0) = p Z_{k-1} + q sum_{0 < i < k} Z_i Z_{k-i}. A factor is
    a bracketed word that is not inside another one; a phrase in brackets has one, and S S the factors of both phrases.
    """
    r = 1 - p - q
    weights, factors = np.zeros(most + 1), np.zeros(most + 1)
    weights[0] = (1 - np.sqrt(1 - 4 * q * r)) / (2 * q) if q else r
    for k in range(1, most + 1):
        split = q * weights[1:k] * weights[k - 1 : 0 : -1]
        bracketed = p * weights[k - 1]
        total = bracketed + split.sum()
        weights[k] = total / (1 - 2 * q * weights[0])
        factors[k] = (bracketed + (split * (factors[1:k] + factors[k - 1 : 0 : -1])).sum()) / total
    return weights, factors


@functools.cache
def all_words(pairs: int, kinds: int) -> tuple[tuple[int, ...], ...]:
    """All words with that many pairs: a first phrase in brackets, followed by the rest."""
    if not pairs:
        return ((),)
    return tuple(
        (kind, *inner, kinds + kind, *after)
        for inside in range(pairs)
        for inner in all_words(inside, kinds)
        for after in all_words(pairs - 1 - inside, kinds)
        for kind in range(kinds)
    )


def nested_words(pairs: int, kinds: int) -> list[tuple[int, ...]]:
    """All words with that many pairs in which each bracket contains the next one."""
    return [
        (*opening, *(kinds + kind for kind in reversed(opening)))
        for opening in itertools.product(range(kinds), repeat=pairs)
    ]


@functools.cache
def _choices(count: int, p: float, q: float) -> list[float]:
    """Cumulative weights of the expansions of a phrase with `count` pairs: two phrases, the first with 1 .. `count` - 1
    pairs, or a phrase in brackets."""
    weights, _ = inside_weights(count, p, q)
    splits = q * weights[1:count] * weights[count - 1 : 0 : -1]
    return np.cumsum(np.append(splits, p * weights[count - 1])).tolist()


def draw_word(pairs: int, kinds: int, p: float, q: float, rng: np.random.Generator) -> list[int]:
    """A word with that many pairs from the grammar, 2 `pairs` brackets."""
    word: list[int] = []
    open_phrases = [pairs]  # phrases still to be written, and closing brackets as negative numbers
    while open_phrases:
        count = open_phrases.pop()
        if count < 0:
            word.append(kinds - 1 - count)
        elif count:
            choices = _choices(count, p, q)
            choice = bisect.bisect_right(choices, rng.random() * choices[-1])
            if choice < count - 1:
                open_phrases += [count - 1 - choice, choice + 1]
            else:
                kind = int(rng.integers(kinds))
                word.append(kind)
                open_phrases += [-1 - kind, count - 1]
    return word
