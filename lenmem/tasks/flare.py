"""FLaRe: recognition of formal languages (Butoi et al., ICLR 2025, https://arxiv.org/abs/2411.07107).

There are eighteen languages, each with 10,000 training strings of up to 40 tokens, and test strings of up to 500
tokens. About half of the strings belong to the language; of the others, half are random and half are near misses.
Alternatively, a network predicts which tokens may follow each prefix of a string of the language.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.flare import String, files_of, read_language
from lenmem.data.rows import Rows, make_rows
from lenmem.fields import NonNegativeInt
from lenmem.tasks.base import Split, bit_metrics, evenly_spaced
from lenmem.tasks.rows import FileTask
from lenmem.types import Batch, Example, Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Flare(FileTask):
    """A string of a FLaRe directory -> 1 if it belongs to the language, else 0. Length: tokens, at least 1.

    With `answer="next_symbols"` the answers are the tokens that may follow each prefix, and whether the string may end
    there, only for strings of the language; a begin token stands for the empty prefix, and counts.

    Splits: `train` and `validation` (short strings), `validation_long`, `test_short` (if the language has it) and
    `test` (all lengths).
    """

    unit: ClassVar[str] = "tokens"

    directory: str = "example"
    """The directory of a language, with main.tok, labels.txt, datasets/ and, for `next_symbols`, next-symbols.jsonl;
    `example`: strings of bits with an even number of ones."""
    answer: Literal["label", "next_symbols"] = "label"
    """`label`: whether a string belongs to the language. `next_symbols`: the tokens that may follow its prefixes."""
    data_seed: NonNegativeInt = 0
    """Seed of the order of the strings."""

    def files(self) -> Sequence[Path]:
        """Strings and annotations of all splits."""
        return files_of(self.directory, following=not self.labelled)

    @property
    def language(self) -> Language:
        """The contents of the directory, read once."""
        return _read(self.directory, self.labelled, self.version)

    @property
    def labelled(self) -> bool:
        """Whether the answer is the label."""
        return self.answer == "label"

    @property
    def splits(self) -> dict[Split, tuple[int, int]]:
        """The shortest and the longest string of each split."""
        return {split: (int(sizes[0]), int(sizes[-1])) for split, sizes in self.language.lengths.items()}

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The lengths of the training strings."""
        return self.splits["train"]

    @property
    def test_lengths(self) -> tuple[int, int]:
        """The lengths of the test strings, short ones included."""
        return self.splits["test"]

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """Up to 32 lengths of the test strings, evenly spaced."""
        found = self.language.lengths["test"]
        return tuple(evenly_spaced(found))

    @property
    def spec(self) -> Spec:
        """Tokens in, and a label; or, after each token, a bit for each token and one for the end."""
        symbols = len(self.language.tokens)
        if self.labelled:
            return Spec(vocabulary=symbols, output_size=2, chance=self.language.chance, shapes=self.shapes)
        return Spec(
            vocabulary=symbols + 1,
            output_size=symbols + 1,
            outputs="multi_hot",
            alignment="aligned",
            causal=True,
            chance=self.language.chance,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The tokens of all splits, and the begin token if there is one."""
        return self.language.tokens if self.labelled else (*self.language.tokens, "<begin>")

    @property
    def answer_names(self) -> tuple[str, ...]:
        """No and yes; or the tokens and the end."""
        return ("no", "yes") if self.labelled else (*self.language.tokens, "<end>")

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the tokens, and a label or an answer for each of them."""
        return capacity, 1 if self.labelled else capacity

    def tables(self) -> dict[Split, Rows]:
        """The strings of all splits, in random order. A set of next symbols is stored as a bit mask."""
        names = self.language.tokens
        number = {token: i for i, token in enumerate(names)}
        if not self.labelled and len(names) > 30:
            raise ValueError(f"{self.directory} has {len(names)} different tokens; next_symbols takes at most 30")
        tables = {}
        for split, strings in self.language.strings.items():
            inputs = [[number[token] for token in string.tokens] for string in strings]
            if self.labelled:
                answers = [[int(string.label)] for string in strings]
            else:
                inputs = [[len(names), *tokens] for tokens in inputs]
                bit = {token: 1 << i for token, i in number.items()}
                answers = [
                    [
                        sum(bit[token] for token in after.tokens) + (after.end << len(names))
                        for after in string.following
                    ]
                    for string in strings
                ]
            rows = make_rows(inputs, answers)
            tables[split] = rows[np.random.default_rng(self.data_seed).permutation(len(rows))]
        return tables

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Tokens of the input, with the begin token if there is one; the empty string has length 1."""
        return np.maximum(rows.input_lengths, 1)

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One string; padding is 0."""
        tokens, length, answer, _ = (array.astype(jnp.int32) for array in row)
        mask = jnp.arange(capacity) < length
        tokens = jnp.pad(tokens, (0, max(0, capacity - tokens.shape[0])))[:capacity]
        if self.labelled:
            one = jnp.ones(1, bool)
            return Example(tokens, mask, answer, one, one)
        answer = jnp.pad(answer, (0, max(0, capacity - answer.shape[0])))[:capacity]
        bits = answer[:, None] >> jnp.arange(self.spec.output_size) & 1
        return Example(tokens, mask, bits.astype(jnp.float32), mask, mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """With `next_symbols`, a slot is correct if all its bits are."""
        return super().metrics(outputs, batch) if self.labelled else bit_metrics(outputs, batch)


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """The strings of a directory, or only those that belong to the language, and the values needed for a spec."""

    strings: dict[Split, list[String]]
    lengths: dict[Split, np.ndarray]
    """The lengths that occur, in ascending order."""
    tokens: tuple[str, ...]
    """The tokens that occur in any split."""
    chance: float
    """Token accuracy of the best constant answer on the training strings."""


@functools.lru_cache(maxsize=4)
def _read(directory: str, labelled: bool, version: str) -> Language:
    found = read_language(directory, following=not labelled)
    if not labelled:
        found = {split: [string for string in strings if string.label] for split, strings in found.items()}
    lengths = {}
    for split, strings in found.items():
        if not strings:
            raise ValueError(f"the split {split!r} of {directory} has no string of the language")
        lengths[split] = np.unique([max(1, len(string.tokens) + (not labelled)) for string in strings])
    everything = [string for strings in found.values() for string in strings]
    used = {token for string in everything for token in string.tokens}
    used.update(token for string in everything for after in string.following for token in after.tokens)
    train = found["train"]
    shares: dict[object, float] = defaultdict(float)
    for string in train:
        answers = [string.label] if labelled else string.following
        for answer in answers:
            shares[answer] += 1 / len(answers)
    return Language(found, lengths, tuple(sorted(used)), max(shares.values()) / len(train))
