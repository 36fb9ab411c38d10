"""Three tasks of the Long Range Arena (Tay et al. 2021, https://arxiv.org/abs/2011.04006): one label for a long input.

Neural Attention Memory evaluates its Transformer on these three (Nam & Seo 2023, section 4.2, Table 1). A length is a
number of tokens. Training and test have the same lengths: these tasks need long inputs, but no length generalisation.
The published baselines cut inputs at 2,000 (ListOps) and 1,000 tokens (text); Nam & Seo cut both at 1,000. The special
symbols of the benchmark are left out, so token ids differ from those of the benchmark.

`Digits` is not in the benchmark. It is a small task of the same kind, with data that scikit-learn contains, and tests
on inputs longer than in training.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data import cifar10, digits, imdb, listops
from lenmem.data.cache import cached
from lenmem.data.rows import Rows, make_rows, padded
from lenmem.fields import NonNegativeInt, PositiveInt, UnitInterval, at_least
from lenmem.tasks.base import Split
from lenmem.tasks.rows import FileTask, RowTask, SplitSeed, share_of, split_off
from lenmem.types import Example, Spec

_BARREN_BLOCKS = 100
"""Number of consecutive blocks of trees without a new one after which the search ends."""


@dataclasses.dataclass(frozen=True)
class Classification(RowTask):
    """Inputs up to a maximal number of tokens, one label. Subclasses define `tables`, `lengths` and the spec's
    numbers."""

    vocabulary: ClassVar[int]
    classes: ClassVar[int]
    shared_ids: ClassVar[bool] = False
    chance: ClassVar[float]

    @property
    def lengths(self) -> tuple[int, int]:
        """Fewest and most tokens of an input, both included."""
        raise NotImplementedError

    @property
    def train_lengths(self) -> tuple[int, int]:
        """As `lengths`."""
        return self.lengths

    @property
    def test_lengths(self) -> tuple[int, int]:
        """As `lengths`."""
        return self.lengths

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The upper ends of bins of `length_bin` lengths."""
        shortest, longest = self.lengths
        return (*range(shortest - 1 + self.length_bin, longest, self.length_bin), longest)

    @property
    def spec(self) -> Spec:
        """Tokens in, one label out."""
        return Spec(self.vocabulary, self.classes, shared_ids=self.shared_ids, chance=self.chance, shapes=self.shapes)

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the tokens, one label."""
        return capacity, 1

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One input and its label; padding is 0."""
        tokens, length, label, _ = (array.astype(jnp.int32) for array in row)
        tokens = jnp.pad(tokens[:capacity], (0, max(0, capacity - tokens.shape[0])))
        one = jnp.ones(1, bool)
        return Example(tokens, jnp.arange(capacity) < length, label, one, one)


@dataclasses.dataclass(frozen=True, eq=False)
class ListOps(FileTask, Classification):
    """`[MAX 2 [MIN 4 7 ] 0 ]` -> 4: nested MIN, MAX, MED (median, rounded down) and SM (sum modulo 10) of digits.

    Trees are drawn as in the benchmark, and accepted if they have more than `min_length` and fewer than `max_length`
    tokens; no tree occurs twice. They are generated once, in about half a minute, and cached on disk
    (`lenmem.data.cache`). The seed of the benchmark's trees was not published, but the trees were (`origin`).
    """

    vocabulary: ClassVar[int] = listops.SYMBOLS
    classes: ClassVar[int] = 10
    shared_ids: ClassVar[bool] = True
    chance: ClassVar[float] = 0.17  # measured on the default trees
    length_bin: ClassVar[int] = 100
    of_reading: ClassVar[tuple[str, ...]] = ("cut_at", "origin")
    """Fields that generated trees do not depend on."""

    origin: str = "generated"
    """`generated`, or the directory with the benchmark's `basic_train.tsv`, `basic_val.tsv` and `basic_test.tsv`, which
    determine the sizes of the sets."""
    train_size: PositiveInt = 96_000
    """Training examples."""
    validation_size: PositiveInt = 2_000
    """Validation examples."""
    test_size: PositiveInt = 2_000
    """Test examples."""
    min_length: PositiveInt = 500
    """All trees have more tokens than this."""
    max_length: PositiveInt = 2_000
    """All trees have fewer tokens than this."""
    max_depth: Annotated[int, at_least(2)] = 10
    """Greatest depth of a digit; the root has depth 1."""
    max_arguments: Annotated[int, at_least(2)] = 10
    """Maximal number of arguments of an operator."""
    cut_at: PositiveInt = 2_000
    """Inputs are cut after this many tokens."""
    data_seed: NonNegativeInt = 0
    """Seed of the trees."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The written symbols."""
        return (*"0123456789", *listops.OPERATORS, "]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_length < self.max_length - 1:
            raise ValueError(f"no tree has more than {self.min_length} and fewer than {self.max_length} tokens")

    def files(self) -> Sequence[Path]:
        """The three files of the benchmark, if they are the origin."""
        return [] if self.origin == "generated" else [listops.file_of(self.origin, split) for split in listops.FILES]

    @property
    def lengths(self) -> tuple[int, int]:
        """From `min_length` to `max_length`, cut at `cut_at`."""
        return min(self.min_length + 1, self.cut_at), min(self.max_length - 1, self.cut_at)

    def tables(self) -> dict[Split, Rows]:
        """The trees, in the order of generation or of the files."""
        if self.origin != "generated":
            return {split: self.read(split) for split in listops.FILES}
        names = [field.name for field in dataclasses.fields(self) if field.name not in self.of_reading]
        settings = {"version": 1} | {name: getattr(self, name) for name in names}
        arrays = cached("listops", settings, self._trees)
        tokens, lengths = padded(arrays["tokens"], arrays["lengths"])
        rows = Rows(
            np.ascontiguousarray(tokens[:, : self.cut_at]),
            np.minimum(lengths, self.cut_at),
            arrays["values"][:, None],
            np.ones(lengths.size, np.int32),
        )
        ends = np.cumsum([self.train_size, self.validation_size])
        return {"train": rows[: ends[0]], "validation": rows[ends[0] : ends[1]], "test": rows[ends[1] :]}

    def read(self, split: Split) -> Rows:
        """The trees of one of the benchmark's files. Raises ValueError if one is too short or too long."""
        trees, values = listops.read_directory(self.origin, split)
        wrong = next((n for n, tree in enumerate(trees) if not self.min_length < len(tree) < self.max_length), None)
        if wrong is not None:
            raise ValueError(
                f"{self.origin}/{listops.FILES[split]}, line {wrong + 2}: {len(trees[wrong])} tokens; trees must have "
                f"more than min_length {self.min_length} and fewer than max_length {self.max_length}"
            )
        return make_rows(trees, [[value] for value in values], self.cut_at)

    def _trees(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.data_seed)
        grammar = listops.Grammar(self.max_depth, self.max_arguments)
        wanted = self.train_size + self.validation_size + self.test_size
        seen: set[bytes] = set()
        parts: list[tuple[np.ndarray, int, int]] = []
        barren = 0
        while len(parts) < wanted:
            before = len(parts)
            tokens, lengths, values = listops.expressions(rng, grammar, 4096, self.min_length + 1, self.max_length - 1)
            for end, length, value in zip(np.cumsum(lengths), lengths, values, strict=True):
                tree = tokens[end - length : end]
                digest = hashlib.blake2b(tree.tobytes(), digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    parts.append((tree, length, value))
            barren = 0 if len(parts) > before else barren + 1
            if barren == _BARREN_BLOCKS:
                raise ValueError(
                    f"{wanted} different trees of {self.min_length + 1} to {self.max_length - 1} tokens, depth "
                    f"{self.max_depth} and {self.max_arguments} arguments are too many to be found; got {len(parts)}"
                )
        trees, lengths, values = zip(*parts[:wanted], strict=True)
        return {
            "tokens": np.concatenate(trees),
            "lengths": np.array(lengths, np.int32),
            "values": np.array(values, np.uint8),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class _FileTask(FileTask, Classification):
    """An external data set. Part of its training set is held out for validation."""

    origin: str = "tfds"
    """`tfds`, or the directory with the published files."""
    validation_share: UnitInterval = 0.1
    """Fraction of the training set that is held out. 0: none; the split `validation` is then the test set."""
    validation_seed: SplitSeed = 0
    """Seed of the choice of held-out examples."""

    def files_of(self, split: Split) -> Sequence[Path]:
        """The published files of `train` or `test`."""
        raise NotImplementedError

    def files(self) -> Sequence[Path]:
        """The published files, if they are the origin."""
        return () if self.origin == "tfds" else (*self.files_of("train"), *self.files_of("test"))

    def read(self, split: Split) -> Rows:
        """All rows of `train` or `test`."""
        raise NotImplementedError

    def tables(self) -> dict[Split, Rows]:
        """Training, validation (held out from the training set) and test."""
        rows = self.read("train")
        train, validation = split_off(rows, share_of(len(rows), self.validation_share), self.validation_seed)
        test = self.read("test")
        test = test[np.random.default_rng(self.validation_seed).permutation(len(test))]
        return {"train": train, "validation": validation if self.validation_share else test, "test": test}


@dataclasses.dataclass(frozen=True, eq=False)
class ByteText(_FileTask):
    """A film review, byte by byte -> whether it is positive (IMDB, 25,000 + 25,000 reviews).

    The benchmark validates on the test set: `validation_share=0`.
    """

    vocabulary: ClassVar[int] = 256
    classes: ClassVar[int] = 2
    chance: ClassVar[float] = 0.5
    length_bin: ClassVar[int] = 100

    max_length: PositiveInt = 1_000
    """Reviews are cut after this many bytes."""

    @property
    def lengths(self) -> tuple[int, int]:
        """Up to `max_length`."""
        return 1, self.max_length

    def files_of(self, split: Split) -> Sequence[Path]:
        """A file for each review."""
        return [file for files in imdb.files_of(self.origin, split) for file in files]

    def read(self, split: Split) -> Rows:
        """Reviews as bytes."""
        texts, labels = imdb.read_tfds(split) if self.origin == "tfds" else imdb.read_directory(self.origin, split)
        return make_rows(texts, [[label] for label in labels], self.max_length)


@dataclasses.dataclass(frozen=True, eq=False)
class PixelImage(_FileTask):
    """A picture of 32 x 32 grey pixels, row by row -> its class (CIFAR-10, 50,000 + 10,000 pictures).

    The benchmark holds out the last tenth of the training set for validation; here a random tenth is held out.
    """

    vocabulary: ClassVar[int] = 256
    classes: ClassVar[int] = 10
    chance: ClassVar[float] = 0.1

    @property
    def lengths(self) -> tuple[int, int]:
        """Always 1,024."""
        return cifar10.SIDE**2, cifar10.SIDE**2

    def files_of(self, split: Split) -> Sequence[Path]:
        """The batches of the binary version."""
        return cifar10.files_of(self.origin, split)

    def read(self, split: Split) -> Rows:
        """Pixels as luma values."""
        reader = cifar10.read_tfds if self.origin == "tfds" else functools.partial(cifar10.read_directory, self.origin)
        images, labels = reader(split)
        pixels = cifar10.grey(images).reshape(len(images), -1)
        ones = np.ones(len(images), np.int32)
        return Rows(pixels, ones * pixels.shape[1], labels[:, None], ones)


@dataclasses.dataclass(frozen=True)
class Digits(Classification):
    """A written digit of grey pixels, row by row -> which digit it is (scikit-learn's 1,797 pictures).

    Training pictures have 8 x 8 pixels. Test pictures are held out, and enlarged to each of the `sides` by repeating
    pixels. A token is the ink of a pixel, 0 to 16. Needs scikit-learn, from the extra `lenmem[plot]`; nothing is
    downloaded.
    """

    vocabulary: ClassVar[int] = digits.INKS
    classes: ClassVar[int] = 10
    chance: ClassVar[float] = 0.1

    sides: tuple[int, ...] = (12, 16, 24, 32)
    """Side lengths of the enlarged pictures in pixels, ascending, each more than 8."""
    validation_size: PositiveInt = 180
    """Number of validation pictures, with 8 x 8 pixels."""
    test_size: PositiveInt = 360
    """Number of test pictures. The remaining pictures are for training."""
    data_seed: NonNegativeInt = 0
    """Seed of the division into training, validation and test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sides or list(self.sides) != sorted({*self.sides}) or self.sides[0] <= digits.SIDE:
            raise ValueError(f"sides is {self.sides}; they must be ascending, each more than {digits.SIDE}")
        if self.validation_size + self.test_size >= digits.PICTURES:
            raise ValueError(
                f"validation_size and test_size are {self.validation_size} and {self.test_size}; together they must be "
                f"fewer than the {digits.PICTURES} pictures"
            )

    @property
    def train_lengths(self) -> tuple[int, int]:
        """Always 64."""
        return digits.SIDE**2, digits.SIDE**2

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The numbers of pixels of the smallest and the largest enlarged picture."""
        return self.sides[0] ** 2, self.sides[-1] ** 2

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The numbers of pixels of the 8 x 8 pictures and of all enlarged pictures."""
        return tuple(side**2 for side in (digits.SIDE, *self.sides))

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The usual splits, and `same_size`: the test pictures with 8 x 8 pixels."""
        return super().splits | {"same_size": self.train_lengths}

    def tables(self) -> dict[Split, Rows]:
        """The pictures of each split; those of the test in all `sides`."""
        pictures, labels = digits.read()
        order = np.random.default_rng(self.data_seed).permutation(len(labels))
        test, validation, train = np.split(order, [self.test_size, self.test_size + self.validation_size])

        def rows(which: np.ndarray, *sides: int) -> Rows:
            pixels = [digits.enlarged(pictures[which], side).reshape(len(which), -1) for side in sides]
            return make_rows(
                [row.tolist() for part in pixels for row in part], [[n] for n in labels[[*which] * len(sides)]]
            )

        large = rows(test, *self.sides)
        large = large[np.random.default_rng(self.data_seed).permutation(len(large))]
        small = {"train": train, "validation": validation, "same_size": test}
        return {"test": large} | {split: rows(which, digits.SIDE) for split, which in small.items()}

    def held_out(self, tables: dict[Split, Rows]) -> Rows:
        """The test pictures in all sizes."""
        small, large = tables["same_size"], tables["test"]
        pixels = np.pad(small.inputs, ((0, 0), (0, large.inputs.shape[1] - small.inputs.shape[1])))
        return Rows(*(np.concatenate(both) for both in zip((pixels, *small.arrays[1:]), large.arrays, strict=True)))
