"""The base of tasks whose inputs and answers are texts."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax

from lenmem.tasks.base import Source, Split
from lenmem.tasks.buckets import BucketedSource
from lenmem.tasks.rows import RowTask, ended_example
from lenmem.types import Example, Spec


@dataclasses.dataclass(frozen=True)
class TextTask(RowTask):
    """A text -> a text and the end symbol. Words have the same ids on both sides.

    Subclasses define `end`, `input_names`, `shapes` and the data. A part of the data with a separate accuracy, such as
    one task of bAbI, is a split.
    """

    batches: Literal["bucketed", "mixed"] = "bucketed"
    """Training batches: `bucketed`, inputs of similar length, or `mixed`, random rows."""

    @property
    def end(self) -> int:
        """The id of the end symbol, which equals the number of word ids."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """Words in; words and the end symbol out."""
        return Spec(
            vocabulary=self.end,
            output_size=self.end + 1,
            shared_ids=True,
            length_rule="end",
            end_id=self.end,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def chance(self) -> float:
        """Token accuracy of always answering with the end symbol: 1/2 for answers of one word."""
        return 0.5

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The words and the end symbol."""
        return (*self.input_names, "<eos>")

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One question; padding is 0."""
        return ended_example(row, self.shapes(capacity), self.end)

    def source(self, split: Split, batch_size: int) -> Source:
        """Training batches as set by `batches`; other splits as in every `RowTask`."""
        mixed = super().source(split, batch_size)  # raises for an unknown split, or too large a batch
        return BucketedSource(self, batch_size) if split == "train" and self.batches == "bucketed" else mixed
