"""The six algorithmic tasks of Pointer-Augmented Neural Memory (Le et al., arXiv 2404.11870v1, section 3.1, app. D.1).

Input tokens 0 .. 9 are uniform and independent, so they may repeat. In two tasks a token has features, float channels
in addition to its one-hot vector. An answer consists of tokens of the input; the number of slots is exactly its number
of tokens, without an end symbol. Trained on lengths 1 to L, one per batch, and evaluated on five lengths from L to
about 8 (L + 1): `length_9`, `length_10`, .. are splits, each a column of the paper's Tables 7 to 12. The split `test`
takes the five lengths in turn, so its score is their mean, as in Table 1. The split `selection` has length L + 1, which
the paper uses to select parameters.

The published code contains only Copy and Reverse. Details that the text leaves open are fields; their defaults are
marked as our choice. If an input does not determine its answer, `ceiling_at` is the highest possible token accuracy.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths, PositiveInt, at_least
from lenmem.tasks.base import FreshSource, Source, Split, Task
from lenmem.tasks.dnc import growing_lengths
from lenmem.tasks.lantm import reversed_prefix
from lenmem.types import Example, Spec


class Problem(NamedTuple):
    """A problem and its answer. Entries beyond their sizes are arbitrary."""

    inputs: jax.Array
    """int[N]: `PanmTask.input_size` tokens."""
    answer: jax.Array
    """int[M]: tokens."""
    answer_size: Any
    """Number of tokens in the answer."""
    features: jax.Array | None = None
    """float[N, channels]."""


@dataclasses.dataclass(frozen=True)
class PanmTask(Task):
    """Base class of the six tasks. Subclasses define `problem`."""

    vocabulary: Annotated[int, at_least(2)] = 10
    """V: number of tokens."""
    train_lengths: Lengths = (1, 9)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included; the largest is the paper's L."""
    scored_lengths: tuple[int, ...] = (9, 10, 20, 40, 80)
    """Test lengths, ascending: L, L + 1, 2 (L + 1), 4 (L + 1) and 8 (L + 1) of Tables 7 to 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = self.scored_lengths
        if not lengths or lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
            raise ValueError(f"scored_lengths are {lengths}; they must be one or more, ascending from 1 or later")

    def problem(self, key: jax.Array, tokens: jax.Array, length: jax.Array | int) -> Problem:
        """The problem whose input begins with the first `length` of `tokens`, int[capacity]."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """Number of features of a token."""
        return 0

    def input_size(self, length: Any) -> Any:
        """Number of tokens of an input. May be traced."""
        return length

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The shortest and the longest test length."""
        return self.scored_lengths[0], self.scored_lengths[-1]

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The usual splits, `selection` with length L + 1, and one split for each test length."""
        selection = self.train_lengths[1] + 1
        return super().splits | {
            "selection": (selection, selection),
            **{f"length_{length}": (length, length) for length in self.scored_lengths},
        }

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """From training to the longest test length at growing intervals, including all test lengths."""
        first, last = self.train_lengths[0], max(self.train_lengths[1], self.scored_lengths[-1])
        return tuple(sorted({*growing_lengths(first, last), *self.scored_lengths}))

    def source(self, split: Split, batch_size: int) -> Source:
        """Fresh batches."""
        self.lengths_of(split)
        return (InTurn if split == "test" else FreshSource)(self, split, batch_size)

    @property
    def chance(self) -> float:
        """Token accuracy of the best constant answer, over the training lengths, for uniform tokens."""
        return 1 / self.vocabulary

    @property
    def spec(self) -> Spec:
        """Tokens with or without features in; tokens with the same ids out. The ceiling is that of the split `test`."""
        ceiling = float(np.mean([self.ceiling_at(length) for length in self.scored_lengths]))
        return Spec(
            vocabulary=self.vocabulary,
            channels=self.channels,
            output_size=self.vocabulary,
            shared_ids=True,
            chance=self.chance,
            ceiling=ceiling if ceiling < 1 else None,
            shapes=self.shapes,
        )

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): as many answer tokens as input tokens."""
        return self.input_size(capacity), capacity

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is 0."""
        token_key, problem_key = jax.random.split(key)
        # The first tokens do not depend on the capacity.
        tokens = jax.random.randint(token_key, (capacity,), 0, self.vocabulary, jnp.int32)
        problem = self.problem(problem_key, tokens, length)
        size, slots = self.shapes(capacity)
        input_mask = jnp.arange(size) < self.input_size(length)
        mask = jnp.arange(slots) < problem.answer_size
        inputs = jnp.where(input_mask, problem.inputs, 0)
        if problem.features is not None:
            one_hot = jax.nn.one_hot(problem.inputs, self.vocabulary)
            inputs = jnp.where(input_mask[:, None], jnp.concatenate([one_hot, problem.features], axis=-1), 0)
        return Example(inputs, input_mask, jnp.where(mask, problem.answer, 0), mask, mask)


@dataclasses.dataclass(frozen=True)
class InTurn(FreshSource):
    """Fresh batches that cycle through the test lengths, one per batch.

    A mean has equal parts of all lengths if the number of batches is a multiple of the number of lengths.
    """

    task: PanmTask

    def lengths(self, step: jax.Array | int) -> jax.Array:
        """int[batch_size]: all rows of batch b have the test length with index b modulo their number."""
        lengths = jnp.asarray(self.task.scored_lengths)
        return jnp.broadcast_to(lengths[jnp.asarray(step) % len(lengths)], (self.batch_size,))


# By position ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PanmCopy(PanmTask):
    """y_t = x_t."""

    def problem(self, key, tokens, length):
        return Problem(tokens, tokens, length)


@dataclasses.dataclass(frozen=True)
class PanmReverse(PanmTask):
    """y_t = x_{L + 1 - t}."""

    def problem(self, key, tokens, length):
        return Problem(tokens, reversed_prefix(tokens, length), length)


@dataclasses.dataclass(frozen=True)
class Mix(PanmTask):
    """Two alternating rules: for odd t x_{ceil(L / 2)}, for even t x_1, where t = 1 .. L."""

    rule: Literal["formula", "example"] = "formula"
    """`formula`: section 3.1, as above. `example`: the different rule of Table 6, x_1 for odd t and x_t for even t. The
    formula is our choice; it fits the printed scores: 54% is one half correct and the other at chance."""
    first_step: Literal[1, 0] = 1
    """The index of the first step, which determines the odd steps: 0 swaps the rules. The text and Table 6 have 1."""

    def problem(self, key, tokens, length):
        odd = (jnp.arange(len(tokens)) + self.first_step) % 2 == 1
        rules = (tokens[(length + 1) // 2 - 1], tokens[0]) if self.rule == "formula" else (tokens[0], tokens)
        return Problem(tokens, jnp.where(odd, *rules), length)


# By content -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DynamicRecall(PanmTask):
    """x_1 .. x_L q -> the neighbour of q: the left one if L is even, the right one if L is odd.

    q is the token at a uniformly drawn position. The same token may occur at other positions too, and the input does
    not show which of them was drawn. The task as described is therefore ambiguous: at lengths 9, 10, 20, 40 and 80 no
    network can exceed an expected accuracy of 71.8, 69.4, 52.3, 38.4 and 29.6%. The paper prints 92, 89, 45, 22 and 16%
    for PANM and up to 90% for others. At lengths 9 and 10 this requires a rule for the position, such as
    `occurrence="first"`.
    """

    left: Literal["even", "odd"] = "even"
    """Lengths (without q) for which the answer is the left neighbour. As in Table 6 (length 10); the text does not
    specify it."""
    occurrence: Literal["any", "first", "last"] = "any"
    """The answer is the neighbour of the drawn position, or of the first or last occurrence of the token."""
    ends: Literal["wrap", "avoid"] = "wrap"
    """Treatment of positions without such a neighbour. `wrap`: the first and the last token are neighbours. `avoid`:
    such positions are not drawn. Wrapping is our choice. A single token is its own neighbour in either case."""
    answer: Literal["one", "rest"] = "one"
    """`one`: only the neighbour, as in Table 6. `rest`: the neighbour and all tokens after it, another reading of the
    text. The number of slots then reveals the place to networks that see all slots at once."""

    def input_size(self, length):
        return length + 1

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the sequence with the query; one token, or up to all."""
        return capacity + 1, 1 if self.answer == "one" else capacity

    def problem(self, key, tokens, length):
        left = (jnp.asarray(length) % 2 == 0) == (self.left == "even")
        avoided = (length > 1) & (self.ends == "avoid")
        first = jnp.where(left & avoided, 1, 0)
        count = jnp.where(avoided, length - 1, length)
        drawn = first + jax.random.randint(key, (), 0, count)
        query = tokens[drawn]
        place = jnp.arange(len(tokens))
        same = (tokens == query) & (place >= first) & (place < first + count)
        meant = {
            "any": drawn,
            "first": jnp.argmax(same),
            "last": len(tokens) - 1 - jnp.argmax(same[::-1]),
        }[self.occurrence]
        start = (meant + jnp.where(left, -1, 1)) % length
        answer = tokens[jnp.minimum(start + jnp.arange(self.shapes(len(tokens))[1]), len(tokens) - 1)]
        inputs = jnp.append(tokens, 0).at[length].set(query)
        return Problem(inputs, answer, 1 if self.answer == "one" else length - start)

    def ceiling_at(self, length: int) -> float:
        """The accuracy of the most common neighbour, if the position is unknown: see `neighbour_ceiling`."""
        if self.occurrence != "any" or self.answer == "rest":
            return 1.0
        return neighbour_ceiling(length, self.vocabulary, ring=self.ends == "wrap" or length == 1)


@functools.cache
def neighbour_ceiling(length: int, vocabulary: int, *, ring: bool) -> float:
    """Accuracy of the best guess of a token's right neighbour, if the token is known but not its place.

    The place is uniform among all places of a ring, or all but the last of a row. Let J be the number of the token's
    places at which its neighbour is the same token, and R the number of its other places, whose neighbours are uniform
    and independent. The best guess is the most common neighbour, so

        ceiling = V E[max(J, C_R)] / places,    C_R: the largest count of R balls in V - 1 cells,

    where the distribution of J and R follows from a recursion along the sequence. Exact; O(length^3 V). The accuracy
    for left neighbours is the same.
    """
    places = length if ring else length - 1
    p = 1 / vocabulary

    def counted(chances: np.ndarray, axis: int) -> np.ndarray:
        """Adds one to J (axis 0) or R (axis 1)."""
        return np.roll(chances, 1, axis)  # the wrapped entries are 0, since J + R <= places

    def run(token: np.ndarray, other: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Joint probabilities of (J, R) with the token, and with another one, at the current place."""
        for _ in range(steps):
            token, other = (counted(token, 0) + other) * p, (counted(token, 1) + other) * (1 - p)
        return token, other

    nothing = np.zeros((places + 1, places + 1))
    start = nothing.copy()
    start[0, 0] = 1
    if ring:
        token, other = run(start * p, nothing, length - 1)  # start at the token; in a ring it follows the last place
        joint = counted(token, 0) + other
        token, other = run(nothing, start * (1 - p), length - 1)
        joint = joint + counted(token, 1) + other
    else:
        joint = sum(run(start * p, start * (1 - p), length - 1))
    # E[max(J, C)] = J + the sum over m >= J of P(C > m)
    above = 1 - most_in_a_cell(places, vocabulary - 1)
    excess = np.cumsum(above[:, ::-1], axis=1)[:, ::-1]  # [R, J]
    expected = np.arange(places + 1)[:, None] + excess.T
    return float(np.sum(joint * expected) / p / places)


def most_in_a_cell(balls: int, cells: int) -> np.ndarray:
    """float[balls + 1, balls + 1]: entry [n, m] is the probability that no cell gets more than m of n balls."""
    n, k = np.ogrid[: balls + 1, : balls + 1]
    within = (n <= k).astype(float)
    for cell in range(2, cells + 1):
        # in_cell[n, k]: the probability that k of n balls fall into the last of the first `cell` cells
        in_cell = np.zeros((balls + 1, balls + 1))
        in_cell[0, 0] = 1
        for thrown in range(1, balls + 1):
            in_cell[thrown] = in_cell[thrown - 1] * (1 - 1 / cell) + np.roll(in_cell[thrown - 1], 1) / cell
        rest = np.maximum(n - k, 0)  # balls in the earlier cells
        columns = [np.sum((in_cell * within[rest, m])[:, : m + 1], axis=1) for m in range(balls + 1)]
        within = np.stack(columns, axis=1)
    return within


@dataclasses.dataclass(frozen=True)
class PanmPrioritySort(PanmTask):
    """Tokens, each with a score from N(0, 1) -> the tokens by ascending score. The score is a channel."""

    train_lengths: Lengths = (1, 10)
    """Smallest and largest training length, both included; the largest is the paper's L."""
    scored_lengths: tuple[int, ...] = (10, 11, 21, 41, 81)
    """Test lengths, ascending, as printed in Tables 11 and 12, although their labels 2, 4 and 8 (L + 1) would be 22, 44
    and 88."""
    descending: bool = False
    """The highest score first, as in older code of the authors."""

    @property
    def channels(self) -> int:
        """The score."""
        return 1

    def problem(self, key, tokens, length):
        scores = jax.random.normal(key, tokens.shape)
        keys = jnp.where(jnp.arange(len(tokens)) < length, -scores if self.descending else scores, jnp.inf)
        return Problem(tokens, tokens[jnp.argsort(keys)], length, scores[:, None])


@dataclasses.dataclass(frozen=True)
class IDSort(PanmTask):
    """Tokens in pairs with the same id, a vector from N(0, I) -> for each token, the other token with the same id.

    Pairs are drawn uniformly. The id occupies `id_size` channels. If the number of tokens is odd, one token has a
    unique id; all of the paper's test lengths beyond L are odd.
    """

    train_lengths: Lengths = (1, 10)
    """Smallest and largest training length, both included. Our choice; the text does not specify it."""
    scored_lengths: tuple[int, ...] = (10, 11, 21, 41, 81)
    """Test lengths, ascending, as printed in Tables 11 and 12, although their labels 2, 4 and 8 (L + 1) would be 22, 44
    and 88."""
    id_size: PositiveInt = 8
    """Number of components of an id. Our choice."""
    alone: Literal["itself", "zero"] = "itself"
    """The answer for a token without a partner. `itself`: the token itself, our choice. `zero`: token 0, the argmax of
    an empty one-hot target. PANM's 100% at 11 tokens are consistent with both."""

    @property
    def channels(self) -> int:
        """As `id_size`."""
        return self.id_size

    @property
    def chance(self) -> float:
        """The expected frequency of token 0, which for `zero` is certain for one token if their number is odd."""
        lengths = np.arange(self.train_lengths[0], self.train_lengths[1] + 1)
        sure = np.mean(lengths % 2 / lengths) if self.alone == "zero" else 0
        return float(sure + (1 - sure) / self.vocabulary)

    def problem(self, key, tokens, length):
        """Tokens in a random order; ranks 0 and 1, 2 and 3, .. are pairs."""
        order_key, id_key = jax.random.split(key)
        rank = jnp.arange(len(tokens))
        order = jnp.argsort(jnp.where(rank < length, jax.random.uniform(order_key, tokens.shape), jnp.inf))
        paired = (rank ^ 1) < length
        answer = jnp.where(paired | (self.alone == "itself"), tokens[order[jnp.where(paired, rank ^ 1, rank)]], 0)
        ids = jax.random.normal(id_key, (len(tokens), self.id_size))
        answers = jnp.zeros_like(tokens).at[order].set(answer)
        return Problem(tokens, answers, length, jnp.zeros_like(ids).at[order].set(ids[rank // 2]))
