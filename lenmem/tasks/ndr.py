"""The tasks of the Neural Data Router (Csordás et al. 2022, https://arxiv.org/abs/2110.07732, appendix C.2).

Compositional table lookup, simple arithmetic and ListOps: one label for an expression. Training expressions have up to
five operations that depend on each other, test expressions have more. A length is this depth. The sets are built once,
on the host, and cached on disk. They follow the published code, including its quirks, except that no held-out example
is in the training set.

Splits: `train`; `validation` and `iid`, two sets with the training depths, one for selection and the other for
reporting; `deeper_validation`, slightly deeper, on which the paper selects; and `test`, which is deeper still. Curves
continue beyond the test.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data import ctl, expressions, trees
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, joined, padded
from lenmem.fields import NonNegativeInt, PositiveInt, at_least, between
from lenmem.tasks.base import Source, Split
from lenmem.tasks.buckets import BalancedSource, BucketedSource
from lenmem.tasks.rows import RowTask
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class DepthTask(RowTask):
    """An expression and one label. The answer row contains the label and the depth; only the label is an answer
    slot."""

    unit: ClassVar[str] = "depth"
    vocabulary: ClassVar[int]
    classes: ClassVar[int]
    shared_ids: ClassVar[bool]
    chance: ClassVar[float]

    batches: Literal["bucketed", "mixed", "balanced"] = "bucketed"
    """Training batches. `bucketed`: inputs of similar length, as in most published runs. `mixed`: random rows.
    `balanced`: equally many rows of each depth, even if the set has only few of them; this is ours, and learns in fewer
    steps."""
    pool: PositiveInt = 1
    """Number of balanced batches that are drawn together and sorted by length, which reduces padding."""
    data_seed: NonNegativeInt = 0
    """Seed of the random parts of the sets."""

    @property
    def train_lengths(self) -> tuple[int, int]:
        """1 .. 5."""
        return 1, ctl.LONGEST

    @property
    def spec(self) -> Spec:
        """Tokens in, one label out."""
        return Spec(self.vocabulary, self.classes, shared_ids=self.shared_ids, chance=self.chance, shapes=self.shapes)

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """The depths."""
        return rows.answers[:, 1].astype(np.int32)

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """All splits except training. Depths without a held-out row use training rows."""
        held = joined([rows for split, rows in tables.items() if split != "train"])
        train = tables["train"]
        return joined([held, train[~np.isin(self.row_lengths(train), self.row_lengths(held))]])

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One expression and its label; padding is 0."""
        tokens, length, answer, _ = (array.astype(jnp.int32) for array in row)
        size, _ = self.shapes(capacity)
        tokens = jnp.pad(tokens[:size], (0, max(0, size - tokens.shape[0])))
        one = jnp.ones(1, bool)
        return Example(tokens, jnp.arange(size) < length, answer[:1], one, one)

    def source(self, split: Split, batch_size: int) -> Source:
        """Training batches as set by `batches`; other splits as in every `RowTask`."""
        mixed = super().source(split, batch_size)  # raises for an unknown split, or too large a batch
        if split != "train" or self.batches == "mixed":
            return mixed
        if self.batches == "bucketed":
            return BucketedSource(self, batch_size)
        return BalancedSource(self, batch_size, self.pool)


@dataclasses.dataclass(frozen=True)
class TableLookup(DepthTask):
    """`b a d 101` -> b(a(d(101))): fixed functions on eight symbols. Length: functions.

    Tokens: symbols 000 .. 111 are 0 .. 7, functions a .. k are 8 .. 18; j and k are never composed. The sets are the
    published draws (see `lenmem.data.ctl`). Training has 53,704 examples: all 88 of one function, 30 more copies of
    those of j and k, and 419, 3,729, 20,874 and 28,114 of 2 .. 5 functions (with the default seed). `validation` and
    `iid` have 4,000 each, the deeper sets 1,000 each (330, 327, 343 of 6 .. 8 functions; 514, 486 of 9, 10). Labels are
    nearly uniform: 12 to 13% each in training, 11 to 14% in the test. The published halves of the held-out pool are not
    alike: through the order of a Python set, all held-out examples of two functions are in the test half. Here the
    halves are random.

    Curves beyond 5 functions use fresh examples, with any number of functions.
    """

    vocabulary: ClassVar[int] = ctl.SYMBOLS + ctl.FUNCTIONS
    classes: ClassVar[int] = ctl.SYMBOLS
    shared_ids: ClassVar[bool] = True
    chance: ClassVar[float] = 0.127  # measured on training, like those of the other two tasks

    order: Literal["backward", "forward"] = "backward"
    """`forward`: the symbol comes first, then the functions in the order of application, `101 d a b`."""
    validation_depth: Annotated[int, between(6, 9)] = 8
    """Largest number of functions in `deeper_validation`; the test has the larger numbers, up to 10. The published
    baselines with 11 layers use 7."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """000 .. 111, a .. k."""
        return (*(f"{symbol:03b}" for symbol in range(ctl.SYMBOLS)), *"abcdefghijk")

    @property
    def test_lengths(self) -> tuple[int, int]:
        """`validation_depth` + 1 .. 10."""
        return self.validation_depth + 1, 10

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """1 .. 10, then up to 30."""
        return (*range(1, 11), 12, 14, 16, 20, 25, 30)

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The splits with their numbers of functions."""
        deeper = (ctl.LONGEST + 1, self.validation_depth)
        held = (2, ctl.LONGEST)
        names = {"train": self.train_lengths, "validation": held, "iid": held}
        return names | {"deeper_validation": deeper, "test": self.test_lengths}

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the functions and the symbol, one label."""
        return capacity + 1, 1

    def tables(self) -> dict[Split, Rows]:
        """The published sets. `data_seed` determines the division of the pool."""
        deeper = self.splits["deeper_validation"], self.splits["test"]
        words = cached("ctl", {"version": 1, "deeper": deeper}, lambda: _words(ctl.compositions(*deeper)))
        pool, validation, test = (words[name] for name in ("pool", "deeper_validation", "test"))
        order = np.random.default_rng(self.data_seed).permutation(ctl.POOL)
        held, iid, kept = np.split(pool[order], [ctl.HELD_OUT, 2 * ctl.HELD_OUT])
        single = np.full((ctl.FUNCTIONS * ctl.SYMBOLS, pool.shape[1]), -1, pool.dtype)
        single[:, 1], single[:, 0] = np.divmod(np.arange(len(single)), ctl.SYMBOLS)
        rare = single[single[:, 1] >= ctl.COMPOSED]
        train = np.concatenate([single, kept, np.tile(rare, (ctl.REPEATS, 1))])
        train = train[np.random.default_rng((self.data_seed, 1)).permutation(len(train))]
        sets = {"train": train, "validation": held, "iid": iid, "deeper_validation": validation, "test": test}
        return {name: self._rows(words) for name, words in sets.items()}

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """As in the other tasks, with each of the 88 examples of one function once."""
        held = super().held_out(tables)
        single = self.row_lengths(held) == 1
        _, first = np.unique(held.inputs[single], axis=0, return_index=True)
        return joined([held[~single], held[np.flatnonzero(single)[first]]])

    def _rows(self, words: np.ndarray) -> Rows:
        """Rows from int8[R, 1 + most]: a symbol and the functions in the order of application, padded with -1."""
        label, depths, table = words[:, 0].astype(np.intp), (words[:, 1:] >= 0).sum(1), ctl.tables()
        for function in words[:, 1:].T:
            label = np.where(function >= 0, table[function, label], label)
        tokens = np.where(words >= 0, words, 0).astype(np.uint8)
        tokens[:, 1:] += np.where(words[:, 1:] >= 0, ctl.SYMBOLS, 0).astype(np.uint8)
        if self.order == "backward":
            column = depths[:, None] - np.arange(tokens.shape[1])
            tokens = np.where(column >= 0, np.take_along_axis(tokens, np.maximum(column, 0), 1), 0).astype(np.uint8)
        answers = np.stack([label, depths], 1).astype(np.uint8)
        return Rows(tokens, depths.astype(np.int32) + 1, answers, np.ones(depths.size, np.int32))

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """Up to 5 functions: a held-out row (for 1 function: one of the 88). More functions: a fresh example."""
        row = super().sample(key, jnp.minimum(length, ctl.LONGEST), capacity)
        if capacity <= ctl.LONGEST:
            return row
        fresh = self._fresh(key, length, capacity)
        return jax.tree.map(lambda old, new: jnp.where(jnp.asarray(length) <= ctl.LONGEST, old, new), row, fresh)

    def check_length(self, length: int) -> None:
        """Examples of any length can be drawn. (`endless` is False: records have one curve, over `curve_lengths`.)"""

    def _fresh(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        of_symbol, of_functions = jax.random.split(key)
        symbol = jax.random.randint(of_symbol, (), 0, ctl.SYMBOLS)
        functions = jax.random.randint(of_functions, (capacity,), 0, ctl.COMPOSED)
        table = jnp.asarray(ctl.tables())

        def apply(value: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            number, function = step
            return jnp.where(number < length, table[function, value], value), None

        label, _ = jax.lax.scan(apply, symbol, (jnp.arange(capacity), functions))
        column = jnp.arange(capacity + 1)
        written = jnp.concatenate([symbol[None], functions + ctl.SYMBOLS])
        tokens = written[jnp.clip(length - column, 0, capacity)] if self.order == "backward" else written
        mask, one = column <= length, jnp.ones(1, bool)
        return Example(jnp.where(mask, tokens, 0), mask, label[None], one, one)


def _words(sets: dict[str, list[ctl.Composition]]) -> dict[str, np.ndarray]:
    """int8[R, 1 + most functions] for each set."""
    arrays = {}
    for name, compositions in sets.items():
        words = np.full((len(compositions), 1 + max(len(word) for word, _ in compositions)), -1, np.int8)
        for row, (word, symbol) in zip(words, compositions, strict=True):
            row[: len(word) + 1] = symbol, *word
        arrays[name] = words
    return arrays


@dataclasses.dataclass(frozen=True)
class TreeTask(DepthTask):
    """Random expressions of digits and operators, equally many at each depth (see `lenmem.data.trees`)."""

    lowest_depth: ClassVar[int]
    """The lowest training depth that is sampled; the sets have equally many examples of each depth from this on."""
    most: ClassVar[dict[int, int]] = {}
    """depth -> largest number of examples in a set, for depths with few different expressions."""

    train_size: PositiveInt = 100_000
    """Training examples."""
    held_out_size: PositiveInt = 1_000
    """Number of examples in each other split."""
    curve_size: PositiveInt = 100
    """Number of examples at each depth of a curve beyond the test."""
    clean: bool = False
    """Follow the paper's text where its code differs from it."""
    disjoint: bool = True
    """Exclude held-out examples from training. False: held-out sets of training depths may overlap with it, as
    published."""
    max_length: Annotated[int, at_least(40)] = 50
    """Greatest length of an expression."""
    curve_max_length: Annotated[int, at_least(40)] = 100
    """Greatest length at depths beyond the test, for which `max_length` would be too short."""

    @property
    def test_lengths(self) -> tuple[int, int]:
        """7 .. 8."""
        return 7, 8

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """1 .. 12."""
        return tuple(range(1, 13))

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The splits with their depths."""
        held = dict.fromkeys(("train", "validation", "iid"), self.train_lengths)
        return held | {"deeper_validation": (6, 6), "test": self.test_lengths}

    def language(self, trained: bool) -> trees.Language:
        """The expressions, for sets of training depths or for deeper sets."""
        raise NotImplementedError

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the largest possible number of tokens, one label."""
        longest = self.max_length if capacity <= self.test_lengths[1] else self.curve_max_length
        return self.language(trained=True).most_tokens(longest), 1

    def tables(self) -> dict[Split, Rows]:
        """Each split is a separate set, drawn with a separate seed."""
        first = (self.lowest_depth, self.train_lengths[1])
        held = {"validation": self._set("validation", 1, first)}
        held["iid"] = self._set("iid", 2, first, _trees(held["validation"]) if self.disjoint else ())
        excluded = [tree for part in held.values() for tree in _trees(part)] if self.disjoint else ()
        train = self._set("train", 0, first, excluded)
        deeper = {
            name: self._set(name, number, self.splits[name])
            for number, name in enumerate(("deeper_validation", "test"), 3)
        }
        return {name: self._rows(part) for name, part in {"train": train, **held, **deeper}.items()}

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """All splits except training, and depths 9 .. 12."""
        beyond = range(self.test_lengths[1] + 1, self.curve_lengths[-1] + 1)
        curve = [self._rows(self._set("curve", depth, (depth, depth))) for depth in beyond]
        return joined([super().held_out(tables), *curve])

    def counts(self, split: Split, depths: tuple[int, int]) -> dict[int, int]:
        """depth -> number of examples, equal up to rounding."""
        left = {"train": self.train_size, "curve": self.curve_size}.get(split, self.held_out_size)
        counts = {}
        for depth in range(depths[0], depths[1] + 1):
            counts[depth] = min(-(-left // (depths[1] + 1 - depth)), self.most.get(depth, left))
            left -= counts[depth]
        return counts

    def _set(
        self, split: Split, number: int, depths: tuple[int, int], exclude: Iterable[bytes] = ()
    ) -> dict[str, np.ndarray]:
        language = self.language(trained=depths[1] <= self.train_lengths[1])
        wanted = trees.Wanted(
            # a digit has depth 1 in the published code, 0 in the paper
            counts={depth + 1: count for depth, count in self.counts(split, depths).items() if count},
            lowest=depths[0] + 1,
            highest=depths[1] + 1,
            longest=self.curve_max_length if split == "curve" else self.max_length,
            seed=(self.data_seed, number),
        )
        exclude = sorted(exclude)
        settings: dict[str, Any] = dataclasses.asdict(wanted) | {
            "version": 2,
            "share": language.share,
            "clean": self.clean,
            "excluded": hashlib.sha256(b"".join(bytes([len(tree)]) + tree for tree in exclude)).hexdigest(),
        }
        name = type(self).__name__.lower()
        label = f"{name} {split}"
        return cached(f"{name}-{split}", settings, lambda: trees.collect(language, wanted, label, exclude))

    def _rows(self, part: dict[str, np.ndarray]) -> Rows:
        tokens, lengths = padded(part["tokens"], part["lengths"])
        answers = np.stack([part["values"], part["depths"] - 1], 1)
        return Rows(tokens, lengths, answers, np.ones(lengths.size, np.int32))


def _trees(part: dict[str, np.ndarray]) -> list[bytes]:
    """The expressions of a set, as bytes."""
    tokens, ends = part["tokens"].tobytes(), np.cumsum(part["lengths"])
    return [tokens[end - length : end] for end, length in zip(ends, part["lengths"], strict=True)]


@dataclasses.dataclass(frozen=True)
class Arithmetic(TreeTask):
    """`((4*7)+2)` -> 0: nested sums and products modulo 10. Length: depth; that of `(4*7)` is 1.

    Tokens: ( ) * + and ten digits; an expression has at most 49. Training has all 200 expressions of depth 1, and
    25,000 of each depth 2 .. 5, with 12, 15, 20 and 25 tokens on average (33 at depth 6, 38 and 43 at 7 and 8). Because
    of products, the label 0 is the most frequent: 26% in training, 30% in the test; 2, 4, 6, 8 are 10 to 11% each, 5 is
    8%, the other odd labels 6%. Generating the sets takes seconds.

    Published quirks: a node is an operator with probability 0.2 in sets of training depths and 0.3 in deeper sets, and
    an expression that is not deep enough always becomes the right operand of a new one. With `clean=True` the
    probability is 0.2, and the expression becomes either operand. With `disjoint=False` the held-out sets of training
    depths also contain the 200 expressions.
    """

    vocabulary: ClassVar[int] = len(expressions.ARITHMETIC_TOKENS)
    classes: ClassVar[int] = 10
    shared_ids: ClassVar[bool] = False
    chance: ClassVar[float] = 0.262
    lowest_depth: ClassVar[int] = 2
    most: ClassVar[dict[int, int]] = {2: 66_000}  # published: three quarters of the 88,000 there are

    @property
    def input_names(self) -> tuple[str, ...]:
        """The written symbols."""
        return expressions.ARITHMETIC_TOKENS

    def language(self, trained: bool) -> trees.Language:
        """Operators are rarer in sets of training depths."""
        return expressions.arithmetic(0.2 if trained or self.clean else 0.3, self.clean)

    def tables(self) -> dict[Split, Rows]:
        """The sampled sets, and the expressions of depth 1."""
        tables = super().tables()
        single = self._rows(expressions.single_operations())
        for number, split in enumerate(("train",) if self.disjoint else ("train", "validation", "iid")):
            rows = joined([tables[split], single])
            tables[split] = rows[np.random.default_rng((self.data_seed, 100, number)).permutation(len(rows))]
        return tables


@dataclasses.dataclass(frozen=True)
class DependencyListOps(TreeTask):
    """`[MED 4 8 5 [MAX 8 4 9 ] ]` -> 6: nested MAX, MED, MIN and SM of digits. Length: dependency depth.

    Tokens: ten digits, four operators with their bracket, a closing bracket; an expression has at most 43. The
    dependency depth ignores arguments that an operator does not select (`lenmem.data.expressions.listops`). Training
    has 200,000 expressions of each depth 1 .. 5, with 15, 18, 24, 29 and 32 tokens on average (35 at depth 6, 37 and 38
    at 7 and 8). Labels are 9 to 11% each in training, 9 to 13% in the test. Generating the sets takes about a minute on
    a free core, and longer with depths 9 .. 12 for a curve.

    Published quirks: an operator and its closing bracket count as three tokens towards `max_length`, and an expression
    that is not deep enough is never the last argument of a new one. With `clean=True` they count as two tokens, and the
    expression may be any argument.
    """

    vocabulary: ClassVar[int] = len(expressions.LISTOPS_TOKENS)
    classes: ClassVar[int] = 10
    shared_ids: ClassVar[bool] = True
    chance: ClassVar[float] = 0.106
    lowest_depth: ClassVar[int] = 1

    train_size: PositiveInt = 1_000_000
    """Training examples."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The written symbols."""
        return expressions.LISTOPS_TOKENS

    def language(self, trained: bool) -> trees.Language:
        """The same for all sets: up to 5 arguments."""
        return expressions.listops(0.3, 5, self.clean)
