"""Word problems of finite groups: the running product of a sequence of elements, at each position.

Merrill, Petty & Sabharwal, "The Illusion of State in State-Space Models" (ICML 2024, arXiv 2404.08819), and the work on
state tracking after it: Z60 can be tracked by a diagonal linear recurrence, A5 and S5 cannot. The published protocols
differ in lengths; here the network is trained on lengths up to 40 and tested on lengths up to 256. `scaled_accuracy` is
0 at chance, so that groups of different orders can be compared.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.fields import Lengths
from lenmem.tasks.base import Task, scaled_accuracy
from lenmem.types import Batch, Example, Spec

MOST_ELEMENTS = 720
"""Most elements of a group. The multiplication table has the square of this number of entries."""


@functools.cache
def multiplication_table(name: str) -> np.ndarray:
    """int[G, G]: the index of the product a b, for elements a and b of a group. Element 0 is the identity.

    `Zn` are the integers modulo n. `Sn` are the permutations of n points, in lexicographic order as tuples of images,
    and `An` the even permutations; a b applies b first. `AxB` is a direct product; (a, b) has the index a |B| + b.
    Raises ValueError for any other name, and for more than 720 elements.
    """
    table = np.zeros((1, 1), np.int32)
    for part in name.split("x"):
        kind, size = _factor(part, name)
        order = size if kind == "Z" else math.factorial(size) // (2 if kind == "A" and size > 1 else 1)
        if len(table) * order > MOST_ELEMENTS:
            raise ValueError(f"the group {name} has more than {MOST_ELEMENTS} elements")
        factor = _cyclic(size) if kind == "Z" else _permutations(size, even=kind == "A")
        pairs = table[:, None, :, None] * len(factor) + factor[None, :, None, :]
        table = pairs.reshape(len(table) * len(factor), -1)
    return table


def _factor(part: str, name: str) -> tuple[str, int]:
    match = re.fullmatch(r"([ZSA])([1-9]\d{0,3})", part)
    if not match:
        raise ValueError(f"group is {name!r}; it must be Zn, Sn or An with a number n, or a product such as A4xZ5")
    return match[1], int(match[2])


def _cyclic(size: int) -> np.ndarray:
    numbers = np.arange(size, dtype=np.int32)
    return (numbers[:, None] + numbers) % size


def _permutations(size: int, *, even: bool) -> np.ndarray:
    elements = [p for p in itertools.permutations(range(size)) if not (even and _inversions(p) % 2)]
    number = {p: i for i, p in enumerate(elements)}
    products = [[number[tuple(a[image] for image in b)] for b in elements] for a in elements]
    return np.array(products, np.int32)


def _inversions(permutation: tuple[int, ...]) -> int:
    return sum(a > b for a, b in itertools.combinations(permutation, 2))


@dataclasses.dataclass(frozen=True)
class WordProblem(Task):
    """x_1 x_2 .. x_k -> x_1, x_1 x_2, .., x_1 x_2 .. x_k. Elements are uniform. Length: k elements."""

    unit: ClassVar[str] = "elements"

    group: str = "S5"
    """The group: Zn, Sn, An, or a direct product such as A4xZ5. At most 720 elements."""
    train_lengths: Lengths = (1, 40)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest training length, both included."""
    test_lengths: Lengths = (41, 256)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Smallest and largest test length, both included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        multiplication_table(self.group)

    @property
    def elements(self) -> int:
        """Order of the group."""
        return len(multiplication_table(self.group))

    @property
    def spec(self) -> Spec:
        """Elements in, elements out, position by position."""
        return Spec(
            vocabulary=self.elements,
            output_size=self.elements,
            shared_ids=True,
            alignment="aligned",
            causal=True,
            chance=1 / self.elements,
            shapes=self.shapes,
        )

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): one answer for each element."""
        return capacity, capacity

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        """One example; padding is the identity, 0."""
        table = jnp.asarray(multiplication_table(self.group))
        mask = jnp.arange(capacity) < length
        word = jnp.where(mask, jax.random.randint(key, (capacity,), 0, self.elements, jnp.int32), 0)
        products = jax.lax.associative_scan(lambda a, b: table[a, b], word)
        return Example(word, mask, jnp.where(mask, products, 0), mask, mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Also `scaled_accuracy`: the token accuracy scaled so that chance is 0."""
        values = super().metrics(outputs, batch)
        return values | {"scaled_accuracy": scaled_accuracy(values["token_accuracy"], self.spec.chance)}
