"""The base class of the seven tasks."""

from __future__ import annotations

import dataclasses

from lenmem.fields import Lengths, PositiveInt
from lenmem.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class DncTask(Task):
    """Base class of the seven tasks: their lengths."""

    train_lengths: Lengths = (5, 15)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = (2, 100)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest test length, both included. As in the paper, this range includes the training lengths."""
    selection_length: PositiveInt = 30
    """Length of the split `selection`, longer than in training, on which the paper selects the training iteration. Our
    choice: the length at which the paper analyses states."""

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """The usual splits and `selection`, which has one length."""
        return super().splits | {"selection": (self.selection_length, self.selection_length)}

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """From the shortest to the longest length, at growing intervals."""
        ranges = (self.train_lengths, self.test_lengths)
        return growing_lengths(min(low for low, _ in ranges), max(high for _, high in ranges))

    @property
    def trained(self) -> range:
        """The training lengths."""
        return range(self.train_lengths[0], self.train_lengths[1] + 1)


def growing_lengths(shortest: int, longest: int) -> tuple[int, ...]:
    """Both ends, and between them every length up to 20, every 5th up to 50, every 10th up to 100, every 50th up to
    500, and so on. This includes all lengths of the paper's Table V."""

    def included(n: int) -> bool:
        unit = 10 ** (len(str(n - 1)) - 1)
        return n <= 20 or n % (unit // 2 if n <= 5 * unit else unit) == 0 or n in (shortest, longest)

    return tuple(filter(included, range(shortest, longest + 1)))
