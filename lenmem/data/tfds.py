"""TensorFlow Datasets, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def examples(name: str, split: str, features: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These features of all examples of a split, in order: NumPy arrays, integers or bytes.

    The data set is read from `$TFDS_DATA_DIR` (by default ~/tensorflow_datasets) in the format array_record. If it is
    missing, TFDS prepares it there, provided that this does not need TensorFlow. The data sets that lenmem reads
    (`scan/length`, `math_dataset`, `imdb_reviews`, `cifar10`) need TensorFlow, so prepare them where it is installed:

        tfds build scan/length --file_format=array_record

    Raises:
        ValueError: if TFDS is not installed, or the data set can neither be found nor prepared.
    """
    try:
        import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"reading {name} with TFDS needs: pip install 'lenmem[data]'") from None
    try:
        source = tfds.data_source(name, split=split)
    except Exception as error:  # TFDS raises errors of any type
        raise ValueError(
            f"TFDS has no {name} in the format array_record, and cannot prepare it here ({type(error).__name__}: "
            f"{error}). Prepare it where TensorFlow is installed, with `tfds build {name} --file_format=array_record`, "
            "and set TFDS_DATA_DIR to its directory"
        ) from error
    for example in source:
        yield tuple(example[feature] for feature in features)


def text(value: Any) -> str:
    """A text feature as a string; TFDS returns bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
