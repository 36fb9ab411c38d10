"""Dyck languages: balanced brackets, read one by one (Suzgun et al. 2019, https://arxiv.org/abs/1911.03329).

After each bracket of a word of D_n, with n kinds of brackets, the network predicts which brackets may come next: any
opening bracket, and the closing bracket of the innermost open bracket, if there is one. A word is correct if all its
answers are correct. Trained on words of up to L brackets, tested on up to 8 L (Le et al. 2024, section 3.2, figure 3a:
D_2 with L = 10 and D_3 with L = 20, tested at L + 2, 2 L, 4 L and 8 L).

Ids 0 .. n - 1 are opening and n .. 2n - 1 closing brackets. An answer is 2n bits for each bracket. Lengths are numbers
of brackets, and even.

Words are drawn from the grammar of Suzgun et al.,

    S -> open_i S close_i with probability p, i uniform  |  S S with probability q  |  nothing with 1 - p - q

conditioned exactly on their length by the weights of derivations; or uniformly from all words of a length, by a walk in
which the probability of a step is the share of words that continue with it. The authors' code draws from the grammar
until a word has an allowed length, includes each word once and truncates recursions that grow too deep. Here nothing is
truncated, and `distinct` includes each word once: if there are fewer words than `examples` (D_2 has only 1,618 words of
up to 10 brackets), a set contains all of them. Without `distinct` words repeat, and a third of the words in a training
set have two brackets.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.brackets import all_words, draw_word, inside_weights, nested_words
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, padded
from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.tasks.base import NoSuchLength, Source, Split, Task, bit_metrics, masked_mean
from lenmem.tasks.rows import RowTask
from lenmem.types import Batch, Example, Spec

_KINDS_OF_BYTES = 128
"""Up to this number of kinds a bracket fits into a byte."""
TESTS = ("plus_2", "double", "quadruple", "octuple")
"""The splits with words of up to L + 2, 2 L, 4 L and 8 L brackets."""


@dataclasses.dataclass(frozen=True)
class Dyck(RowTask):
    """Balanced brackets; after each bracket, the brackets that may come next. Length: brackets.

    The splits `plus_2`, `double`, `quadruple` and `octuple` are the four tests; `test` is all four together.

    `validation` is another set of words of the training lengths. Most of its words are also in the training set: with
    the default fields 96%, since short words are likely.
    """

    unit: ClassVar[str] = "brackets"
    endless: ClassVar[bool] = True

    kinds: PositiveInt = 2
    """n: the number of kinds of brackets."""
    longest: int = 10
    """L: the length of the longest training word, in brackets."""
    sampling: Literal["grammar", "uniform"] = "grammar"
    """`grammar`: fixed sets of words drawn from the grammar. `uniform`: fresh words, uniform in length and in word."""
    p: float = 0.5
    """Probability that a phrase of the grammar is a phrase in brackets."""
    q: float = 0.25
    """Probability that a phrase of the grammar is two phrases."""
    examples: PositiveInt = 5000
    """Number of words in the training set and in each test."""
    windows: bool = True
    """Each test has words that are longer than those of the previous test (or of training), up to its length. False:
    only words of exactly its length. The paper does not say."""
    distinct: bool = False
    """For sets drawn from the grammar: each word occurs once in a set, as published. If there are fewer words than
    `examples`, a set contains all of them."""
    data_seed: NonNegativeInt = 0
    """Seed of the sets."""
    squared: bool = True
    """The loss is the squared error of the sigmoids, as in the published code. False: cross-entropy of the bits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < 2 or self.longest % 2:
            raise ValueError(f"longest is {self.longest}; words have an even number of brackets, at least 2")
        if not (0 < self.p < 1 and 0 <= self.q and self.p + self.q < 1 and self.p + 2 * self.q <= 1):
            # Otherwise a phrase contains more than one phrase on average, so that infinite words are likely.
            raise ValueError(f"p is {self.p} and q is {self.q}; allowed are p > 0, q >= 0, p + q < 1 and p + 2 q <= 1")

    @property
    def train_lengths(self) -> tuple[int, int]:
        """2 .. L."""
        return 2, self.longest

    @property
    def test_lengths(self) -> tuple[int, int]:
        """From the shortest word of the first test to 8 L."""
        return self.splits["plus_2"][0], 8 * self.longest

    def check_length(self, length: int) -> None:
        if length % 2:
            raise NoSuchLength(f"a balanced word has an even number of brackets, got the length {length}")

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """All even lengths up to 2 L, then every fourth, every eighth, .. up to 8 L."""
        spans = [(2, 2, 2 * self.longest), (2 * self.longest, 4, 4 * self.longest), (4 * self.longest, 8, None)]
        last = 8 * self.longest
        lengths = {n for first, step, end in spans for n in range(first, (end or last) + 1, step)}
        return tuple(sorted(lengths | {last}))

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """Training, validation at the same lengths, the four tests, and all tests together."""
        bounds = [self.longest, self.longest + 2, 2 * self.longest, 4 * self.longest, 8 * self.longest]
        # With L = 2 the first two tests have the same length.
        tests = {
            name: (min(shorter + 2, longer) if self.windows else longer, longer)
            for name, shorter, longer in zip(TESTS, bounds, bounds[1:], strict=False)
        }
        trained = (2, self.longest)
        return {"train": trained, "validation": trained, "test": (tests["plus_2"][0], bounds[-1])} | tests

    @property
    def spec(self) -> Spec:
        """2 n brackets in, 2 n bits out for each."""
        return Spec(
            vocabulary=2 * self.kinds,
            output_size=2 * self.kinds,
            outputs="multi_hot",
            shared_ids=True,
            alignment="aligned",
            causal=True,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """( [ { < and their partners; more than four kinds are numbered."""
        opening, closing = "([{<", ")]}>"
        if self.kinds <= len(opening):
            return (*opening[: self.kinds], *closing[: self.kinds])
        return (*(f"({i}" for i in range(self.kinds)), *(f"{i})" for i in range(self.kinds)))

    @property
    def chance(self) -> float:
        """Fraction of the training brackets for which the better of two constant answers is correct: that no bracket
        can be closed, or that a certain kind can."""
        if self.sampling == "grammar" and self.distinct:
            return _chance_of(self)
        pairs = np.arange(1, self.longest // 2 + 1)
        if self.sampling == "uniform":
            weights, closed = np.ones(len(pairs)), 3 * pairs / (pairs + 2)
        else:
            of_length, factors = inside_weights(self.longest // 2, self.p, self.q)
            weights, closed = of_length[1:], factors[1:]
        empty = np.average(closed / (2 * pairs), weights=weights)
        return float(max(empty, (1 - empty) / self.kinds))

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): one answer per bracket."""
        return capacity, capacity

    def tables(self) -> dict[Split, Rows]:
        """The words of all splits."""
        settings = {
            "version": 1 if self.kinds <= _KINDS_OF_BYTES else 2,
            "kinds": self.kinds,
            "p": self.p,
            "q": self.q,
            "examples": self.examples,
            "splits": {name: list(span) for name, span in self.splits.items()},
            "seed": self.data_seed,
        } | ({"distinct": True if self.q else "nested", "order": "random"} if self.distinct else {})
        arrays = cached("dyck", settings, self._build)
        tables = {}
        for split in self.splits:
            if split != "test":
                words, lengths = arrays[split], arrays[f"{split}_lengths"]
                tables[split] = Rows(words, lengths, np.zeros((len(words), 1), np.uint8), np.ones_like(lengths))
        width = self.test_lengths[1]
        tests = [tables[name] for name in TESTS]
        inputs = np.concatenate([np.pad(test.inputs, ((0, 0), (0, width - test.inputs.shape[1]))) for test in tests])
        rest = [np.concatenate(arrays) for arrays in zip(*(test.arrays[1:] for test in tests), strict=True)]
        order = np.random.default_rng(self.data_seed).permutation(len(inputs))
        return tables | {"test": Rows(inputs, *rest)[order]}

    def _build(self) -> dict[str, np.ndarray]:
        arrays = {}
        for split in self.splits:
            if split != "test":
                arrays[split], arrays[f"{split}_lengths"] = self._drawn(split)
        return arrays

    def _drawn(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """The words of a split, int[words, longest], and their lengths, int32[words]."""
        first, last = self.splits[split]
        rng = np.random.default_rng([self.data_seed, list(self.splits).index(split)])
        pairs = np.arange((first + 1) // 2, last // 2 + 1)
        of_length = inside_weights(last // 2, self.p, self.q)[0][pairs]
        of_pairs = of_length / of_length.sum()
        if self.distinct:
            words = self._distinct(pairs, of_pairs, rng)
        else:
            drawn = rng.choice(pairs, self.examples, p=of_pairs)
            words = [draw_word(int(count), self.kinds, self.p, self.q, rng) for count in drawn]
        lengths = np.array([len(word) for word in words], np.int32)
        bracket = np.uint8 if self.kinds <= _KINDS_OF_BYTES else np.int32
        return padded(np.concatenate(words).astype(bracket), lengths)

    def _distinct(self, pairs: np.ndarray, of_pairs: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """`examples` different words, drawn one by one; all words if there are no more than `examples`.

        Raises ValueError if nearly all words would be needed, of which the rare ones are hardly ever drawn.
        """
        # Without phrases of two phrases each bracket contains the next one.
        shapes = [math.comb(2 * k, k) // (k + 1) if self.q else 1 for k in pairs.tolist()]
        there = sum(shape * self.kinds**k for shape, k in zip(shapes, pairs.tolist(), strict=True))
        if there <= self.examples:
            every = all_words if self.q else nested_words
            words = [word for k in pairs.tolist() for word in every(k, self.kinds)]
            return [np.array(words[i]) for i in rng.permutation(len(words))]
        found: dict[tuple[int, ...], None] = {}
        drawn = before = 0
        while len(found) < self.examples:
            for count in rng.choice(pairs, self.examples, p=of_pairs):
                found.setdefault(tuple(draw_word(int(count), self.kinds, self.p, self.q, rng)))
                if len(found) == self.examples:
                    break
            drawn += self.examples
            if drawn >= 5000 and len(found) < self.examples:
                if len(found) - before < drawn / 1000:
                    raise ValueError(
                        f"{self.examples} of the {there} words of {2 * pairs[0]} to {2 * pairs[-1]} brackets are too "
                        f"many to be drawn; got {len(found)}. With at least {there} examples a set has all words"
                    )
                drawn, before = 0, len(found)
        different = list(found)  # the likely ones first
        return [np.array(different[i]) for i in rng.permutation(len(different))]

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One word and the brackets that may follow each of its brackets; padding is 0."""
        word, length = row[0].astype(jnp.int32), row[1]
        return self.answered(jnp.pad(word, (0, max(0, capacity - word.shape[0])))[:capacity], length)

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """A uniform word of that length. An odd length is rounded down, but to no less than 2."""
        length = jnp.maximum(jnp.asarray(length) // 2 * 2, 2)
        steps, brackets = jax.random.split(key)
        opening = uniform_walk(jax.random.uniform(steps, (max(capacity, 2),)), length)
        kinds = jax.random.randint(brackets, opening.shape, 0, self.kinds)
        partner, _ = innermost(opening)
        kind = jnp.where(opening, kinds, kinds[partner])
        word = jnp.where(opening, kind, self.kinds + kind)
        return self.answered(jnp.where(jnp.arange(opening.shape[0]) < length, word, 0)[:capacity], length)

    def answered(self, word: jax.Array, length: jax.Array) -> Example:
        """The example for the first `length` brackets of `word`, int[N]."""
        mask = jnp.arange(word.shape[0]) < length
        opening = word < self.kinds
        _, inside = innermost(opening)
        kind = jnp.where(inside >= 0, word[inside], -1)
        closing = kind[:, None] == jnp.arange(self.kinds)
        bits = jnp.concatenate([jnp.ones_like(closing), closing], axis=1)
        return Example(word, mask, jnp.where(mask[:, None], bits, False).astype(jnp.float32), mask, mask)

    def examples_of(self, split: Split) -> int | None:
        """Number of words; fresh words do not repeat."""
        return (Task if self.sampling == "uniform" else RowTask).examples_of(self, split)

    def source(self, split: Split, batch_size: int) -> Source:
        """Fixed sets, or fresh words."""
        return (Task if self.sampling == "uniform" else RowTask).source(self, split, batch_size)

    def draw_lengths(self, key: jax.Array, split: Split, shape: tuple[int, ...]) -> jax.Array:
        """Uniform even lengths; in `test`, those of one of the four tests, each with the same probability."""
        shortest, longest = self.lengths_of(split)
        if split == "test":
            of_test, key = jax.random.split(key)
            spans = jnp.array([self.splits[name] for name in TESTS])
            shortest, longest = jnp.moveaxis(spans[jax.random.randint(of_test, shape, 0, len(TESTS))], -1, 0)
        return 2 * jax.random.randint(key, shape, (shortest + 1) // 2, longest // 2 + 1)

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Mean over brackets and bits of (sigmoid(output) - bit)^2, or of the cross-entropy."""
        if not self.squared:
            return super().loss(outputs, batch)
        outputs = jnp.where(batch.score_mask[..., None], outputs, 0).astype(jnp.float32)
        targets = jnp.where(batch.score_mask[..., None], batch.targets, 0)
        return masked_mean(jnp.square(jax.nn.sigmoid(outputs) - targets).mean(-1), batch.score_mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """`token_accuracy`: brackets with all bits correct. `exact_match`, the paper's metric: words with all brackets
        correct."""
        return bit_metrics(outputs, batch)


def uniform_walk(draws: jax.Array, length: jax.Array | int) -> jax.Array:
    """bool[N]: the upward steps of a uniformly drawn walk of `length` steps from 0 to 0 that never goes below 0.

    A fraction of (h + 2) (r - h) / (2 r (h + 1)) of the walks from height h to 0 in r steps begins upwards (Arnold &
    Sleep 1980). `draws` float[N] in [0, 1) decide each step. Steps beyond `length` go down. O(N).
    """

    def step(state: tuple[jax.Array, jax.Array], draw: jax.Array):
        height, left = state
        h, r = height.astype(draw.dtype), left.astype(draw.dtype)
        up = (draw * 2 * r * (h + 1) < (h + 2) * (r - h)) & (left > 0)
        return (height + jnp.where(up, 1, -1), left - 1), up

    return jax.lax.scan(step, (jnp.zeros((), jnp.int32), jnp.asarray(length, jnp.int32)), draws)[1]


def innermost(opening: jax.Array) -> tuple[jax.Array, jax.Array]:
    """bool[N] -> (partner, inside), int[N] each: `partner` is the bracket that a closing bracket closes, `inside` the
    innermost open bracket after each bracket, or -1.

    An opening bracket increases the height by one. The innermost open bracket at height h is the last one that
    increased the height to h. `partner` is arbitrary for opening brackets, and for closing ones without a partner.
    O(N^2).
    """
    height = jnp.cumsum(jnp.where(opening, 1, -1))
    place = jnp.arange(opening.shape[0])

    def latest(level: jax.Array) -> jax.Array:
        found = opening & (height == level[:, None]) & (place <= place[:, None])
        return jnp.max(jnp.where(found, place, -1), axis=1)

    return latest(height + 1), latest(height)


@functools.lru_cache(maxsize=8)
def _chance_of(task: Dyck) -> float:
    """`Dyck.chance`, counted on the training set."""
    words, lengths = task._drawn("train")
    real = np.arange(words.shape[1]) < lengths[:, None]
    heights = np.cumsum(np.where(words < task.kinds, 1, -1), axis=1)
    empty = np.mean(((heights == 0) & real).sum(axis=1) / lengths)
    return float(max(empty, (1 - empty) / task.kinds))
