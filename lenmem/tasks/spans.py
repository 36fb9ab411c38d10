"""Answers that are spans of the input: windows over long texts, the most likely span, and the scores of answers.

Windows and spans are those of BERT for SQuAD (Devlin et al. 2019, section 4.2, and its published code), and the scores
are those of Rajpurkar et al. (2016, section 6.1).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np


def windows(count: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of windows of at most `room` pieces over a text of `count` pieces. They begin every `stride`
    pieces (`room` if that is less); the first window that reaches the end is the last."""
    first = 0
    while first + room < count:
        yield first, first + room
        first += min(room, stride)
    yield first, count


def span_of(places: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The first and the last piece that overlap with the characters [start, end), or (-1, -1) if none does.

    `places` are the characters of each piece: first, last + 1.
    """
    inside = [number for number, (first, last) in enumerate(places) if first < end and last > start]
    return (inside[0], inside[-1]) if inside else (-1, -1)


def second_segment(inputs: jax.Array, mask: jax.Array, separator: int) -> jax.Array:
    """The columns of the context in rows `[CLS] question [SEP] context [SEP]`: int[B, N], bool[B, N] -> bool[B, N]."""
    ends = mask & (inputs == separator)
    before = jnp.cumsum(ends, axis=-1) - ends
    last = jnp.arange(mask.shape[-1]) == jnp.sum(mask, axis=-1, keepdims=True) - 1
    return mask & (before > 0) & ~last


def best_spans(start: jax.Array, end: jax.Array, allowed: jax.Array, longest: int) -> tuple[jax.Array, ...]:
    """argmax of start_i + end_j over allowed i and j with i <= j < i + `longest`. Cost O(`longest` N).

    float[B, N], float[B, N], bool[B, N] -> (i int[B], j int[B], their sum float32[B]); -inf if nothing is allowed.
    """
    start, end = (jnp.where(allowed, x.astype(jnp.float32), -jnp.inf) for x in (start, end))
    count = start.shape[-1]
    sums = [start + jnp.pad(end, ((0, 0), (0, k)), constant_values=-jnp.inf)[:, k:] for k in range(min(longest, count))]
    flat = jnp.stack(sums, axis=1).reshape(start.shape[0], -1)
    best = jnp.argmax(flat, axis=-1)
    first, more = best % count, best // count
    return first, first + more, jnp.max(flat, axis=-1)


def normalized(text: str) -> list[str]:
    """The words of a text in lower case, without ASCII punctuation and without the articles a, an and the."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def exact(given: str, right: Sequence[str]) -> float:
    """EM: 1 if the answer has the same words (`normalized`) as one of the right answers, else 0."""
    return float(any(normalized(given) == normalized(one) for one in right))


def f1(given: str, right: Sequence[str]) -> float:
    """F1 = 2 P R / (P + R), the maximum over the right answers. P is the fraction of the answer's words that are in the
    right answer, R the fraction of the right answer's words that are in the answer. A word counts as often as it occurs
    in both; F1 is 0 without a common word."""
    return max(_f1(Counter(normalized(given)), Counter(normalized(one))) for one in right)


def _f1(given: Counter[str], right: Counter[str]) -> float:
    common = (given & right).total()
    return 2 * common / (given.total() + right.total()) if common else 0.0


def chosen(scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The row with the highest score in each group: int[G], for scores [R] and numbers of groups int[R] in order."""
    order = np.lexsort((-scores, groups))
    return order[np.unique(groups[order], return_index=True)[1]]
