"""Fixed data sets: rows of tokens, stored in arrays on the host."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.placement import is_here

_EMBEDDED_BYTES = 4 * 2**20
"""Larger arrays stay on the host. As constants, they would be compiled into every program."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """R pairs of token sequences, each padded at its end."""

    inputs: np.ndarray
    """uint8[R, N]; int32 for larger ids."""
    input_lengths: np.ndarray
    """int32[R]."""
    answers: np.ndarray
    """uint8[R, M]; int32 for larger ids."""
    answer_lengths: np.ndarray
    """int32[R]."""

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: np.ndarray | slice) -> Rows:
        """The rows selected by an index array, a mask or a slice."""
        return Rows(*(array[index] for array in self.arrays))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """inputs, input_lengths, answers, answer_lengths."""
        return self.inputs, self.input_lengths, self.answers, self.answer_lengths


def make_rows(
    inputs: Sequence[Sequence[int] | bytes], answers: Sequence[Sequence[int] | bytes], input_size: int = 0
) -> Rows:
    """Rows from lists of integers (or bytes). Inputs are cut at `input_size`, unless that is 0."""
    cut = [row[:input_size] for row in inputs] if input_size else inputs
    return Rows(*padded(*_concatenated(cut)), *padded(*_concatenated(answers)))


def joined(parts: Sequence[Rows]) -> Rows:
    """The concatenated rows of all parts, padded to the widest."""
    widths = [
        max(array.shape[1] for array in side) for side in zip(*((p.inputs, p.answers) for p in parts), strict=True)
    ]

    def wide(arrays: Sequence[np.ndarray], width: int) -> np.ndarray:
        return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])

    return Rows(
        wide([part.inputs for part in parts], widths[0]),
        np.concatenate([part.input_lengths for part in parts]),
        wide([part.answers for part in parts], widths[1]),
        np.concatenate([part.answer_lengths for part in parts]),
    )


def _concatenated(rows: Sequence[Sequence[int] | bytes]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows], np.int32)
    try:
        return np.frombuffer(b"".join(bytes(row) for row in rows), np.uint8), lengths
    except ValueError:  # ids beyond 255
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths


def padded(values: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows padded with 0, lengths) of concatenated sequences, int[sum of lengths]."""
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    rows = np.zeros(mask.shape, values.dtype)
    rows[mask] = values
    return rows, lengths


def take(array: np.ndarray, index: jax.Array) -> jax.Array:
    """`array[index]`, also under `vmap`. Small arrays become constants of the program, large ones stay on the host.

    A program that is compiled for a platform of which this process has no device cannot call the host. It contains
    arbitrary numbers of the same shape and dtype instead of the rows, so that the rest of the program is the same.
    """
    if array.nbytes <= _EMBEDDED_BYTES:
        return jnp.asarray(array)[index]
    shape = jax.ShapeDtypeStruct((*index.shape, *array.shape[1:]), array.dtype)
    if not is_here():
        numbers = jnp.expand_dims(index, range(index.ndim, index.ndim + array.ndim - 1))
        return jnp.broadcast_to(numbers, shape.shape).astype(array.dtype)
    return jax.pure_callback(lambda i: array[np.asarray(i)], shape, index, vmap_method="broadcast_all")
