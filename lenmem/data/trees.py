"""Random expression trees of given depths, generated in blocks with NumPy (Csordás et al. 2022, appendix C).

A tree is drawn as in the published code: a node is an operator with some probability, else a digit; while the tree is
not high enough, it becomes an argument of a new operator whose other arguments are newly drawn. Trees that are too long
are rejected, as are trees of a depth that already has enough. This is plain rejection sampling, so the distribution is
the published one. It is fast because a block of trees is drawn level by level, trees are rejected as soon as they are
too long, and only accepted trees are converted to tokens. The draws of a block depend only on the seed and the number
of the block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from lenmem import progress

BLOCK = 1 << 16
"""Number of trees drawn at once."""
BARREN_BLOCKS = 2000
"""Number of consecutive blocks without a new tree after which the search ends."""


@dataclasses.dataclass(eq=False)
class Nodes:
    """n nodes. The arguments of a node are adjacent in the pool."""

    token: np.ndarray
    """uint8[n]: a digit or an operator."""
    first: np.ndarray
    """int32[n]: position of an operator's first argument in the pool."""
    count: np.ndarray
    """int8[n]: number of arguments, 0 for digits."""
    size: np.ndarray
    """int32[n]: number of tokens of the expression."""
    length: np.ndarray
    """int32[n]: the length to which the limit applies."""
    height: np.ndarray
    """int8[n]: 1 for digits, else one more than the greatest height of an argument."""
    depth: np.ndarray
    """int8[n]: 1 for digits, else one more than the greatest depth of an argument that determines the value."""
    value: np.ndarray
    """int8[n]."""

    def __getitem__(self, index: np.ndarray) -> Nodes:
        return Nodes(*(array[index] for array in vars(self).values()))

    def put(self, index: np.ndarray, nodes: Nodes) -> None:
        """Replaces the nodes at an index array."""
        for array, values in zip(vars(self).values(), vars(nodes).values(), strict=True):
            array[index] = values


Rule = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(operators [n], number of arguments [n], their values [n, most], their depths [n, most]) -> values, and the greatest
depth of an argument that determines the value. Columns after the last argument are arbitrary."""


@dataclasses.dataclass(frozen=True)
class Language:
    """The construction, notation and evaluation of expressions."""

    first_digit: int
    """Token of 0."""
    operators: tuple[int, ...]
    """Tokens of the operators, all equally likely."""
    close: int
    """Token that ends an operator's arguments."""
    arguments: tuple[int, int]
    """Fewest and most arguments of an operator."""
    added: tuple[int, int]
    """Fewest and most new arguments of an operator on a tree that is not high enough."""
    slots: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    """number of new arguments -> first and last + 1 of the allowed places of the old tree among them."""
    rule: Rule
    """The values of the operators."""
    share: float
    """Probability that a node is an operator."""
    weight: int
    """Length added by an operator."""
    open: int | None = None
    """Token before the first argument, for operators written between their two arguments. None: the operator itself
    comes first."""

    @property
    def tokens(self) -> int:
        """Number of tokens of an operator, without its arguments."""
        return 2 if self.open is None else 3

    def most_tokens(self, longest: int) -> int:
        """Most tokens of an expression whose length is at most `longest`."""
        most = 1
        for operators in range(1, longest // self.weight + 1):
            digits = longest - self.weight * operators
            if digits > operators:  # there is at least one more digit than operators
                fits = min(digits, (self.arguments[1] - 1) * operators + 1)
                most = max(most, self.tokens * operators + fits)
        return most


class Forest:
    """A growing pool of nodes, from which trees are built."""

    def __init__(self, language: Language, rng: np.random.Generator):
        self.language, self.rng = language, rng
        self.pool: list[Nodes] = []
        self.pooled = 0

    def draw(self, trees: int, lowest: int, highest: int, longest: int) -> Nodes:
        """The roots of the trees, out of `trees` draws, that have at most the length `longest`. Heights are `lowest` ..
        `highest`."""
        roots = self.grow(trees, highest)
        while True:
            roots = roots[np.flatnonzero(roots.length <= longest)]
            low = np.flatnonzero(roots.height < lowest)
            if not low.size:
                return roots
            roots.put(low, self.wrap(roots[low], highest))

    def grow(self, nodes: int, highest: int, closed: np.ndarray | None = None) -> Nodes:
        """Random trees of at most that height; single digits where `closed`, bool[nodes], is True."""
        language, levels = self.language, []
        for height in range(highest, 0, -1):
            digits = self.rng.integers(0, 10, nodes, np.uint8)
            operator = self.rng.random(nodes, np.float32) < (language.share if height > 1 else -1)
            if closed is not None and not levels:
                operator &= ~closed
            operators = np.flatnonzero(operator)
            counts = self._uniform(language.arguments, operators.size)
            levels.append((digits, operators, counts))
            nodes = int(counts.sum())
            if not nodes:
                break
        below = None
        for digits, operators, counts in reversed(levels):
            level = _digits(digits, language.first_digit)
            if below is not None:
                level.put(operators, self._apply(counts, below))
            below = level
        assert below is not None
        return below

    def wrap(self, old: Nodes, highest: int) -> Nodes:
        """New operators with one of the old trees as an argument each; their other arguments are newly drawn."""
        new = self._uniform(self.language.added, old.token.size)
        low, high = self.language.slots(new)
        place = np.cumsum(new + 1) - (new + 1) + self.rng.integers(low, high, new.size)
        closed = np.zeros(int(new.sum()) + new.size, bool)
        closed[place] = True
        arguments = self.grow(closed.size, highest - 1, closed)
        arguments.put(place, old)
        return self._apply(new + 1, arguments)

    def _uniform(self, ends: tuple[int, int], size: int) -> np.ndarray:
        if ends[0] == ends[1]:
            return np.full(size, ends[0])
        return self.rng.integers(ends[0], ends[1] + 1, size)

    def _apply(self, counts: np.ndarray, arguments: Nodes) -> Nodes:
        """Random operators on consecutive arguments, which are added to the pool."""
        language = self.language
        first = np.cumsum(counts) - counts
        token = np.array(language.operators, np.uint8)[self.rng.integers(0, len(language.operators), counts.size)]
        column = np.minimum(first[:, None] + np.arange(counts.max()), arguments.token.size - 1)
        value, depth = language.rule(token, counts, arguments.value[column], arguments.depth[column])
        size = np.add.reduceat(arguments.size, first)
        length = np.add.reduceat(arguments.length, first)
        height = np.maximum.reduceat(arguments.height, first)
        nodes = Nodes(
            token=token,
            first=(first + self.pooled).astype(np.int32),
            count=counts.astype(np.int8),
            size=size + np.int32(language.tokens),
            length=length + np.int32(language.weight),
            height=height + np.int8(1),
            depth=(depth + 1).astype(np.int8),
            value=value.astype(np.int8),
        )
        self.pool.append(arguments)
        self.pooled += arguments.token.size
        return nodes

    def write(self, roots: Nodes) -> np.ndarray:
        """The concatenated tokens of the trees, uint8[sum of sizes]."""
        token, first, count, size = (
            np.concatenate([getattr(nodes, name) for nodes in (*self.pool, roots)])
            for name in ("token", "first", "count", "size")
        )
        node = np.arange(self.pooled, token.size)
        start = np.cumsum(roots.size) - roots.size
        out = np.zeros(int(roots.size.sum()), np.uint8)
        opening = self.language.open
        while node.size:
            out[start] = token[node]
            inner = np.flatnonzero(count[node])
            node, start = node[inner], start[inner]
            out[start + size[node] - 1] = self.language.close
            if opening is not None:
                out[start] = opening
                out[start + 1 + size[first[node]]] = token[node]
            counts = count[node].astype(np.int64)
            begin = np.cumsum(counts) - counts
            number = np.arange(int(counts.sum())) - np.repeat(begin, counts)
            argument = np.repeat(first[node], counts) + number
            before = np.cumsum(size[argument]) - size[argument]
            start = np.repeat(start + 1 - before[begin], counts) + before + (0 if opening is None else number)
            node = argument
        return out


def _digits(digits: np.ndarray, first_digit: int) -> Nodes:
    def full(value: int, dtype: type) -> np.ndarray:
        return np.full(digits.size, value, dtype)  # separate memory for each field: nodes are replaced in place

    return Nodes(
        token=digits + np.uint8(first_digit),
        first=full(0, np.int32),
        count=full(0, np.int8),
        size=full(1, np.int32),
        length=full(1, np.int32),
        height=full(1, np.int8),
        depth=full(1, np.int8),
        value=digits.astype(np.int8),
    )


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A set of different trees, with a given number of each depth."""

    counts: Mapping[int, int]
    """depth -> number of trees."""
    lowest: int
    """Smallest height. Trees that are not as high become arguments of new operators."""
    highest: int
    """Greatest height."""
    longest: int
    """Greatest length."""
    seed: tuple[int, ...]
    """Seed of the draws."""


def collect(
    language: Language, wanted: Wanted, label: str = "trees", exclude: Iterable[bytes] = ()
) -> dict[str, np.ndarray]:
    """The first different trees of each depth, in random order, except those in `exclude` (their tokens as bytes).

    Returns:
        `tokens` uint8[sum of lengths], the concatenated trees, `lengths` int32[R], `values` uint8[R], `depths`
        uint8[R].

    Raises:
        ValueError: if that many trees cannot be found.
    """
    known = set(exclude)
    found: list[tuple[bytes, int, int]] = []
    missing = dict(wanted.counts)
    with progress.track(f"drawing {label}") as at:
        block = last = 0
        while any(missing.values()):
            for tree, value, depth in _block(language, wanted, missing, block):
                if missing[depth] and tree not in known:
                    known.add(tree)
                    found.append((tree, value, depth))
                    missing[depth] -= 1
                    last = block
            block += 1
            if block - last > BARREN_BLOCKS:
                raise ValueError(
                    f"{sum(wanted.counts.values())} different {label} are too many to be found; got {len(found)}"
                )
            at(len(found) / sum(wanted.counts.values()))
    order = np.random.default_rng((*wanted.seed, 1)).permutation(len(found))
    trees = [found[i][0] for i in order]
    return {
        "tokens": np.frombuffer(b"".join(trees), np.uint8),
        "lengths": np.array([len(tree) for tree in trees], np.int32),
        "values": np.array([found[i][1] for i in order], np.uint8),
        "depths": np.array([found[i][2] for i in order], np.uint8),
    }


def _block(
    language: Language, wanted: Wanted, missing: Mapping[int, int], block: int
) -> Iterable[tuple[bytes, int, int]]:
    """Trees of the depths that are still missing, in the order of drawing: tokens, value, depth."""
    forest = Forest(language, np.random.default_rng((*wanted.seed, 0, block)))
    roots = forest.draw(BLOCK, wanted.lowest, wanted.highest, wanted.longest)
    roots = roots[np.flatnonzero(np.isin(roots.depth, [depth for depth, count in missing.items() if count]))]
    if not roots.token.size:
        return ()
    tokens = forest.write(roots).tobytes()
    ends = np.cumsum(roots.size).tolist()
    trees = (tokens[end - size : end] for end, size in zip(ends, roots.size.tolist(), strict=True))
    return zip(trees, roots.value.tolist(), roots.depth.tolist(), strict=True)
