"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 pixels in ten classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lenmem.data.tfds import examples
from lenmem.errors import readable

SIDE, CLASSES = 32, 10
_RECORD = 1 + 3 * SIDE * SIDE
FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
_EXPECTED = (
    "the unpacked cifar-10-batches-bin directory (the binary version) of https://www.cs.toronto.edu/~kriz/cifar.html, "
    f"with {', '.join(sum(FILES.values(), ()))}"
)


def read_directory(directory: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8[R, 32, 32, 3] and classes uint8[R] of the *binary version*; nothing is unpickled.

    A record is a class, then 1024 red, 1024 green and 1024 blue values, row by row.

    Raises:
        ValueError: if a file is missing, or is not a number of records. The message says what is expected.
    """
    records = []
    for path in files_of(directory, split):
        with readable(path, _EXPECTED):
            data = np.fromfile(path, np.uint8)
        if not data.size or data.size % _RECORD:
            raise ValueError(f"{path} has {data.size} bytes; a file of the binary version has {_RECORD} for each image")
        records.append(data.reshape(-1, _RECORD))
        wrong = np.flatnonzero(records[-1][:, 0] >= CLASSES)
        if wrong.size:
            got = records[-1][wrong[0], 0]
            raise ValueError(f"{path}, image {wrong[0] + 1}: its class is {got}; classes are 0 to {CLASSES - 1}")
    every = np.concatenate(records)
    return every[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), every[:, 0]


def files_of(directory: str, split: str) -> list[Path]:
    """The files of `train` or `test`."""
    return [Path(directory) / name for name in FILES[split]]


def read_tfds(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes of TFDS's `cifar10`."""
    pairs = list(examples("cifar10", split, ("image", "label")))
    images = np.array([image for image, _ in pairs], np.uint8).reshape(-1, SIDE, SIDE, 3)
    return images, np.array([label for _, label in pairs], np.uint8)


def grey(images: np.ndarray) -> np.ndarray:
    """uint8[.., 3] -> uint8[..]: luma, 0.2989 R + 0.5870 G + 0.1140 B, times 255.5 / 255 and rounded down, as in
    TensorFlow's `rgb_to_grayscale`, which the published code uses."""
    weights = np.array([0.2989, 0.5870, 0.1140], np.float32) * np.float32(255.5 / 255)
    return np.floor(sum(weights[i] * images[..., i] for i in range(3))).astype(np.uint8)
