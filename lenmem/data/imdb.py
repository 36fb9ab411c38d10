"""The Large Movie Review Dataset (Maas et al. 2011): 25,000 + 25,000 film reviews in two classes."""

from __future__ import annotations

from pathlib import Path

from lenmem.data.tfds import examples, text

CLASSES = ("neg", "pos")


def read_directory(directory: str, split: str) -> tuple[list[bytes], list[int]]:
    """Texts and classes (0: negative) of `aclImdb/{train,test}/{neg,pos}/*.txt`, by class and name.

    Raises:
        ValueError: if a directory has none. The message says what is expected.
    """
    texts, labels = [], []
    for label, files in enumerate(files_of(directory, split)):
        reviews = [file.read_bytes() for file in files]
        if not all(reviews):
            raise ValueError(f"{files[reviews.index(b'')]} is empty; expected a review")
        texts += reviews
        labels += [label] * len(files)
    return texts, labels


def files_of(directory: str, split: str) -> list[list[Path]]:
    """The files of each class, by name. Raises ValueError if a directory has none."""
    found = []
    for name in CLASSES:
        folder = Path(directory) / split / name
        found.append(sorted(folder.glob("*.txt")))
        if not found[-1]:
            raise ValueError(
                f"{folder} has no *.txt; {directory!r} should be the unpacked aclImdb directory of "
                "https://ai.stanford.edu/~amaas/data/sentiment, with train/neg, train/pos, test/neg and test/pos"
            )
    return found


def read_tfds(split: str) -> tuple[list[bytes], list[int]]:
    """Texts and classes of TFDS's `imdb_reviews`."""
    pairs = list(examples("imdb_reviews", split, ("text", "label")))
    return [text(review).encode() for review, _ in pairs], [int(label) for _, label in pairs]
