"""TensorFlow Datasets, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def examples(name: str, split: str, features: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The given features of all examples of a split, in order: NumPy arrays, integers or bytes.

    The data set is read from `$TFDS_DATA_DIR` (by default ~/tensorflow_datasets) in the format array_record. TFDS
    prepares it there if it is missing and it can do so without TensorFlow; of those lenmem reads (`scan/length`,
    `imdb_reviews`, `cifar10`) it cannot, so they are prepared elsewhere:

        tfds build scan/length --file_format=array_record

    Raises:
        ValueError: where TFDS is not installed, or the data set can neither be found nor prepared.
    """
    try:
        import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"reading {name} by TFDS needs: pip install 'lenmem[data]'") from None
    try:
        source = tfds.data_source(name, split=split)
    except Exception as error:  # TFDS lets through whatever went wrong inside
        raise ValueError(
            f"TFDS has no {name} in the format array_record, and cannot prepare it here ({type(error).__name__}: "
            f"{error}). Prepare it where TensorFlow is installed, `tfds build {name} --file_format=array_record`, and "
            "let TFDS_DATA_DIR name the directory"
        ) from error
    for example in source:
        yield tuple(example[feature] for feature in features)


def text(value: Any) -> str:
    """A text feature as a string; TFDS gives bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
